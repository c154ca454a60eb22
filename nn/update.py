"""The end of a step: gradient descent on the flat buffers, v = momentum v + g + reg W, p -= rate v."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from nn.launches import Descent, Kernels, LossRing, Stretch
from nn.network import Network
from nn.operations import STEP, Compute, Operation, keep_loss
from nn.patterns import merged
from nn.tensor_cores import SPLIT_AT_ONCE, Terms
from pyrt.driver import StreamHandle
from pyrt.exchange import Bucket, QueueWork
from pyrt.exchange.peer import Peers
from pyrt.kernels import Launch
from pyrt.memory import Arena, DeviceArray


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
        ring: LossRing | None,
        terms: Mapping[int, Terms] | None = None,
    ) -> None:
        """``velocity`` is needed with momentum only; ``kernels`` is None where NumPy does the work.

        A step ends with its loss in the ``ring``; without one others end it. ``terms`` are those of some
        layers' weights, which follow them.
        """
        self._parameters = parameters
        self._gradients = gradients
        self._velocity = velocity
        self._rate, self._momentum, self._reg = rate, momentum, reg
        self._kernels = kernels
        self._ring = ring
        self._terms = dict(terms or {})
        self._weights = {layer: parameters.layout.span(f"W{layer}") for layer in network.layers}

    def bind(self, *buckets: Bucket, ends_step: bool = False) -> QueueWork:
        """The update of these parts of the flat buffers, each of which lies in one layer; perhaps of none.

        What lies behind the last parameter (the loss) is left alone.
        """
        if not self._stretches(buckets) and not (ends_step and self._ring):
            return _nothing
        operation = self.operation(*buckets, ends_step=ends_step)
        if self._kernels is not None:
            return operation.on_device(self._kernels)
        compute = operation.in_numpy()
        return lambda stream: compute()

    def bind_spread(self, peers: Peers) -> QueueWork:
        """The update of the peers' buckets by the ranks that own their shards, for all; the step ends."""
        assert self._kernels is not None, "peers have kernels"
        return self._kernels.sum_update_spread(peers, self._spread(peers))

    def bind_spread_in_two(self, peers: Peers) -> tuple[QueueWork, QueueWork]:
        """The same in two: the sums of the shard that this rank owns, in place of its gradients; the rest."""
        assert self._kernels is not None, "peers have kernels"
        descent = self._spread(peers)
        return (
            self._kernels.sum_shards(peers, descent.stretches),
            self._kernels.sum_update_spread(peers, descent, summed=True),
        )

    def _spread(self, peers: Peers) -> Descent:
        return self._descend([self._stretch(*bucket) for bucket in peers.buckets], self._ring)

    def refresh(self) -> QueueWork:
        """What queues the splitting of all weights that have terms."""
        if self._kernels is None:
            return _nothing
        weights = [(self._parameters[f"W{layer}"], terms) for layer, terms in self._terms.items()]
        launches = [
            self._kernels.tensor_cores.split(*weights[i : i + SPLIT_AT_ONCE])
            for i in range(0, len(weights), SPLIT_AT_ONCE)
        ]

        def queue(stream: StreamHandle) -> None:
            for launch in launches:
                launch(stream)

        return queue

    def operation(self, *buckets: Bucket, ends_step: bool = False) -> Operation:
        """The same as an operation of a step; there is something to do."""
        stretches = self._stretches(buckets)
        parts = [self._descent(stretches)] if stretches else []
        if ends_step and self._ring:
            parts.append(keep_loss(self._ring))
        if len(parts) == 1:
            return parts[0]
        return merged(
            parts[0].name,
            parts,
            tuple(array for part in parts for array in part.reads),
            tuple(array for part in parts for array in part.writes),
            partial(self._launch, stretches=stretches, ring=self._ring),
        )

    def _descent(self, stretches: Sequence[Stretch]) -> Operation:
        flat = [arena.flat for arena in (self._parameters, self._velocity) if arena is not None]
        changed = [array.rows(s.start, s.start + s.size) for array in flat for s in stretches]
        gradients = [self._gradients.flat.rows(s.start, s.start + s.size) for s in stretches]
        return Operation(
            "step",
            STEP,
            reads=(*gradients, *changed),
            writes=(*changed, *(array for s in stretches for array in _terms(s))),
            flops=sum(self._flops(stretch) for stretch in stretches),
            on_device=partial(self._launch, stretches=stretches),
            in_numpy=lambda: self._in_numpy(stretches),
        )

    def _flops(self, stretch: Stretch) -> int:
        """p -= rate v, and what makes v; a weight's terms cost one each."""
        terms = stretch.terms.count if stretch.terms is not None else 0
        momentum = 2 if self._velocity is not None else 0
        return (2 + momentum) * stretch.size + (2 + terms) * stretch.decayed

    def _launch(self, kernels: Kernels, stretches: Sequence[Stretch], ring: LossRing | None = None) -> Launch:
        return kernels.sgd(self._descend(stretches, ring))

    def _descend(self, stretches: Sequence[Stretch], ring: LossRing | None) -> Descent:
        return Descent(
            self._parameters.flat,
            self._gradients.flat,
            self._velocity.flat if self._velocity is not None else None,
            stretches,
            self._rate,
            self._momentum,
            self._reg,
            ring,
        )

    def _stretches(self, buckets: Sequence[Bucket]) -> list[Stretch]:
        """Those of the buckets that have parameters."""
        return [self._stretch(*bucket) for bucket in buckets if bucket.start < self._parameters.layout.size]

    def _stretch(self, start: int, stop: int) -> Stretch:
        stop = min(stop, self._parameters.layout.size)
        layer = self._layer_at(start)
        first, end = self._weights[layer]
        decayed = max(0, min(stop, end) - start)
        return Stretch(start, max(0, stop - start), decayed, start - first, self._terms.get(layer))

    def _layer_at(self, start: int) -> int:
        """The layer of a place in the flat buffers."""
        return max(layer for layer, (first, _) in self._weights.items() if first <= start)

    def _in_numpy(self, stretches: Sequence[Stretch]) -> Compute:
        calls = [self._one_in_numpy(stretch) for stretch in stretches]

        def update() -> None:
            for call in calls:
                call()

        return update

    def _one_in_numpy(self, stretch: Stretch) -> Callable[[], None]:
        start, stop, decayed = stretch.start, stretch.start + stretch.size, stretch.decayed
        p, g = (arena.flat.rows(start, stop).host_view() for arena in (self._parameters, self._gradients))
        v = self._velocity.flat.rows(start, stop).host_view() if self._velocity is not None else None
        driver = self._parameters.flat.driver
        with driver.ledger.of("workspaces", self._layer_at(start)):
            scratch = DeviceArray.empty(driver, p.shape, p.dtype).host_view()
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


def _nothing(stream: StreamHandle) -> None:
    pass


def _terms(stretch: Stretch) -> list[DeviceArray]:
    """Those of its weights: for each term a matrix of the rows that they lie in."""
    terms = stretch.terms
    if terms is None or not stretch.decayed:
        return []
    start = stretch.first // terms.columns
    stop = -(-(stretch.first + stretch.decayed) // terms.columns)
    return [
        terms.numbers.rows(first + start, first + stop)
        for first in range(0, terms.count * terms.rows, terms.rows)
    ]
