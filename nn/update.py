"""Stochastic gradient descent on the flat buffers: v = momentum v + g + reg W;  p -= rate v."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from nn.launches import Kernels, Stretch
from nn.network import Network
from nn.tensor_cores import Terms
from pyrt.exchange import Bucket, QueueWork
from pyrt.memory import Arena


class SgdUpdate:
    """Updates any parts of the parameters, each within a layer; weights decay, biases do not."""

    def __init__(
        self,
        network: Network,
        parameters: Arena,
        gradients: Arena,
        velocity: Arena | None,
        rate: float,
        momentum: float,
        reg: float,
        kernels: Kernels | None,
        terms: Mapping[int, Terms] | None = None,
    ) -> None:
        """``velocity`` is needed with momentum only; ``kernels`` is None where NumPy does the work.

        ``terms`` are those of some layers' weights, which follow them.
        """
        self._parameters = parameters
        self._gradients = gradients
        self._velocity = velocity
        self._rate, self._momentum, self._reg = rate, momentum, reg
        self._kernels = kernels
        self._terms = dict(terms or {})
        self._weights = {layer: parameters.layout.span(f"W{layer}") for layer in network.layers}

    def bind(self, *buckets: Bucket) -> QueueWork:
        """The update of these parts of the flat buffers, each of which lies in one layer.

        What lies behind the last parameter (the loss) is left alone.
        """
        stretches = [self._stretch(*bucket) for bucket in buckets]
        if self._kernels is None:
            return self._in_numpy(stretches)
        velocity = self._velocity.flat if self._velocity is not None else None
        return self._kernels.sgd(
            self._parameters.flat,
            self._gradients.flat,
            velocity,
            stretches,
            self._rate,
            self._momentum,
            self._reg,
        )

    def _stretch(self, start: int, stop: int) -> Stretch:
        stop = min(stop, self._parameters.layout.size)
        layer = max(layer for layer, (first, _) in self._weights.items() if first <= start)
        first, end = self._weights[layer]
        decayed = max(0, min(stop, end) - start)
        return Stretch(start, stop - start, decayed, start - first, self._terms.get(layer))

    def _in_numpy(self, stretches: Sequence[Stretch]) -> Callable[[object], None]:
        calls = [self._one_in_numpy(stretch) for stretch in stretches]

        def update(stream: object) -> None:
            for call in calls:
                call()

        return update

    def _one_in_numpy(self, stretch: Stretch) -> Callable[[], None]:
        start, stop, decayed = stretch.start, stretch.start + stretch.size, stretch.decayed
        p, g = (arena.flat.rows(start, stop).host_view() for arena in (self._parameters, self._gradients))
        v = self._velocity.flat.rows(start, stop).host_view() if self._velocity is not None else None
        scratch = np.empty_like(p)
        rate, momentum, reg = self._rate, self._momentum, self._reg

        def update() -> None:
            np.multiply(p[:decayed], reg, out=scratch[:decayed])
            np.add(g[:decayed], scratch[:decayed], out=g[:decayed])
            step = g
            if v is not None:
                np.multiply(v, momentum, out=v)
                np.add(v, g, out=v)
                step = v
            np.multiply(step, rate, out=scratch)
            np.subtract(p, scratch, out=p)

        return update
