"""Stochastic gradient descent on the flat buffers: v = momentum v + g + reg W;  p -= rate v."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nn.launches import Kernels
from nn.network import Network
from pyrt.exchange import QueueWork
from pyrt.memory import Arena, DeviceArray


class SgdUpdate:
    """Updates any part of one layer's parameters; weights decay, biases do not."""

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
    ) -> None:
        """``velocity`` is needed with momentum only; ``kernels`` is None where NumPy does the work."""
        self._parameters = parameters
        self._gradients = gradients
        self._velocity = velocity
        self._rate, self._momentum, self._reg = rate, momentum, reg
        self._kernels = kernels
        self._weights = [parameters.layout.span(f"W{layer}") for layer in network.layers]

    def bind(self, start: int, stop: int) -> QueueWork:
        """The update of elements ``start`` to ``stop`` of the flat buffers, which lie in one layer.

        What lies behind the last parameter (the loss) is left alone.
        """
        stop = min(stop, self._parameters.layout.size)
        decayed = max(0, min(stop, self._end_of_weights(start)) - start)
        arrays = [
            arena.flat.rows(start, stop) if arena is not None else None
            for arena in (self._parameters, self._gradients, self._velocity)
        ]
        parameters, gradients, velocity = arrays
        assert parameters is not None and gradients is not None
        if self._kernels is not None:
            return self._kernels.sgd(
                parameters, gradients, velocity, decayed, self._rate, self._momentum, self._reg
            )
        return self._in_numpy(parameters, gradients, velocity, decayed)

    def _end_of_weights(self, start: int) -> int:
        """Where the weights end in the layer that holds element ``start``."""
        return next(end for first, end in reversed(self._weights) if first <= start)

    def _in_numpy(
        self, parameters: DeviceArray, gradients: DeviceArray, velocity: DeviceArray | None, decayed: int
    ) -> Callable[[object], None]:
        p, g = parameters.host_view(), gradients.host_view()
        v = velocity.host_view() if velocity is not None else None
        scratch = np.empty_like(p)
        rate, momentum, reg = self._rate, self._momentum, self._reg

        def update(stream: object) -> None:
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
