"""The end of a step: an optimiser's update of any parts of the flat buffers, as an exchange asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace

import numpy as np

from nn.launch.gemm.components import SPLIT_AT_ONCE, Components, Split
from nn.launch.kernels import Kernels
from nn.launch.update import EndStep, LossRing, Segment, Update, UpdateArrays
from nn.launch.work import Work
from nn.model.network import Network
from nn.optimisers.base import Optimiser
from nn.program.operations import STEP, Operation
from nn.program.step import Wrap, bound
from pyrt.arrays import Arena, DeviceArray, Layout
from pyrt.driver import Driver, StreamHandle
from pyrt.exchange import Bucket, PackedUpdate, QueueWork, nothing
from pyrt.kernels import in_order


class OptimiserState:
    """The optimiser's state for this rank's parameters: named arrays, and the number of steps."""

    def __init__(self, driver: Driver, optimiser: Optimiser, layout: Layout) -> None:
        """Zeros, laid out as the parameters."""
        self._optimiser = optimiser
        self.arenas = {name: Arena(driver, layout) for name in optimiser.states}
        self.counts = optimiser.clock > 0
        """Whether it counts steps."""
        self._driver, self._apart = driver, list[OptimiserState]()
        self._make_clock()

    def _make_clock(self) -> None:
        clock = (self._optimiser.clock,)
        self.clock = DeviceArray.empty(self._driver, clock, "f8") if self.counts else None
        self.start(0)

    def apart(self) -> OptimiserState:
        """Return the same state with a count of steps of its own."""
        made = copy(self)
        made._apart = []
        made._make_clock()
        self._apart.append(made)
        return made

    def start(self, step: int) -> None:
        """Begin after so many steps; so do those that were made by `apart`."""
        if self.clock is not None:
            self.clock.set(np.array(self._optimiser.clock_at(step), np.float64))
        for other in self._apart:
            other.start(step)


@dataclass(frozen=True)
class ParameterUpdate:
    """Updates any parts of the parameters, each within a layer; weights decay, biases do not.

    ``kernels`` is None where NumPy does the work. A step ends with its loss in the ``ring``; without one
    others end it. ``components`` of some layers' weights are updated with them.
    """

    network: Network
    optimiser: Optimiser
    parameters: Arena
    gradients: Arena
    state: OptimiserState
    kernels: Kernels | None
    ring: LossRing | None = None
    components: Mapping[int, Components] = field(default_factory=dict)
    wrap: Wrap = lambda operation, queue: queue
    """What is put around each operation that is bound; not where kernels sum and update in one."""

    @property
    def arrays(self) -> UpdateArrays:
        """The flat arrays that it works on."""
        states = {name: arena.flat for name, arena in self.state.arenas.items()}
        flat = self.parameters.flat, self.gradients.flat
        return UpdateArrays(self.optimiser, *flat, states, self.state.clock)

    @property
    def _ends_apart(self) -> bool:
        """Whether a kernel of its own ends a step: the optimiser counts steps, when all updates are over."""
        return self.ring is not None and self.state.counts

    def bind(self, *buckets: Bucket, ends_step: bool = False) -> QueueWork:
        """Bind the update of these parts of the flat buffers, each within one layer; there may be none.

        What lies behind the last parameter (the loss) is left alone.
        """
        operations = self.operations(*buckets, ends_step=ends_step)
        if not operations:
            return nothing
        calls = [self.wrap(operation, bound(operation, self.kernels)) for operation in operations]
        if len(calls) == 1:
            return calls[0]

        def queue(stream: StreamHandle) -> None:
            for call in calls:
                call(stream)

        return queue

    def operations(self, *buckets: Bucket, ends_step: bool = False) -> list[Operation]:
        """Return the same as operations of a step; there may be nothing to do."""
        segments, ring = self.segments(buckets), self.ring if ends_step else None
        works: list[tuple[str, Work]] = []
        if segments:
            works.append(("step", Update(self.arrays, segments, None if self._ends_apart else ring)))
        if ring is not None and (self._ends_apart or not segments):
            works.append(("keep loss", EndStep(self.arrays, ring)))
        return [Operation(name, STEP, work) for name, work in works]

    def apart(self) -> ParameterUpdate:
        """Return the same update, which counts its steps by itself."""
        return replace(self, state=self.state.apart())

    def for_peers(self, driver: Driver, buckets: Sequence[Bucket]) -> PackedUpdate:
        """Pack the update of these buckets, by the ranks that own the shards; it ends the step."""
        assert self.kernels is not None, "peers have kernels"
        segments = [self._segment(*bucket) for bucket in buckets]
        return self.arrays.for_peers(self.kernels, segments, None if self._ends_apart else self.ring)

    def bind_end(self) -> QueueWork:
        """Bind what a step needs behind such a kernel."""
        if not self._ends_apart:
            return nothing
        assert self.kernels is not None, "peers have kernels"
        return EndStep(self.arrays, self.ring).on_device(self.kernels)

    def refresh(self) -> QueueWork:
        """Bind the splitting of all weights that have components."""
        if self.kernels is None or not self.components:
            return nothing
        kernels = self.kernels
        weights = [(self.parameters[f"W{layer}"], parts) for layer, parts in self.components.items()]
        groups = (weights[start : start + SPLIT_AT_ONCE] for start in range(0, len(weights), SPLIT_AT_ONCE))
        return in_order([Split(group).on_device(kernels) for group in groups])

    def segments(self, buckets: Sequence[Bucket]) -> list[Segment]:
        """Cut the buckets that have parameters to what they have of them."""
        return [self._segment(*bucket) for bucket in buckets if bucket.start < self.parameters.layout.size]

    def _segment(self, start: int, stop: int) -> Segment:
        layout = self.parameters.layout
        stop = min(stop, layout.size)
        spans = {layer: layout.span(f"W{layer}") for layer in self.network.numbers}
        layer = max(layer for layer, (first, _) in spans.items() if first <= start)
        first, end = spans[layer]
        decayed = max(0, min(stop, end) - start)
        size, parts = max(0, stop - start), self.components.get(layer)
        return Segment(start, size, decayed, start - first, parts, layer)
