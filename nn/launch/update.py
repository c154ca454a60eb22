"""The end of a step: parameters updated by an optimiser's rule (kernels/nn/update.cu), the loss kept."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nn.launch.gemm.components import Components, split
from nn.launch.shapes import line_shape, require_shape
from nn.launch.work import Compute, Work
from nn.optimisers.base import Optimiser, Slices
from pyrt.arrays import DeviceArray
from pyrt.exchange import PackedUpdate
from pyrt.kernels import Launch, blocks

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels

_SEGMENT = struct.Struct("qiii4i4xP")
_REAL = {"float": "f", "double": "d"}
_UPDATE_TAIL = "PP"

_BLOCK_BYTES = 256 * 1024
"""NumPy updates so many bytes of an array at once: the rule goes over them several times, and a core's cache
holds those of four arrays. 1.6 MB of parameters with momentum on a core with 2 MB of cache: 491 us, against
789 us at once, and 799 us in blocks of an eighth."""

_MOST_BLOCKS = 1024
"""The most blocks of an array: each is bound by itself. An array of more than 256 MB has larger ones."""


@dataclass(frozen=True)
class Segment:
    """Elements ``start`` to ``start + size`` of the flat parameters, which lie in one layer.

    The first ``decayed`` are weights, from the layer's weight number ``first`` on; ``components``, if any,
    belong to all the layer's weights.
    """

    start: int
    size: int
    decayed: int
    first: int = 0
    components: Components | None = None
    layer: int = 0

    @property
    def stop(self) -> int:
        return self.start + self.size

    def blocks(self, size: int) -> list[Segment]:
        """Cut it into segments of so many elements; the last may have fewer. Without components."""
        starts = range(0, self.size, size)
        return [
            Segment(
                self.start + start,
                min(size, self.size - start),
                max(0, min(size, self.decayed - start)),
                self.first + start,
                layer=self.layer,
            )
            for start in starts
        ]

    def packed(self) -> bytes:
        """Pack it as kernels/nn/update.cuh has it."""
        place, parts = (self.start, self.size, self.decayed, self.first), self.components
        if parts is None:
            return _SEGMENT.pack(*place, 1, 0, 0, 0, 0)
        return _SEGMENT.pack(
            *place, parts.columns, parts.count, parts.ld, parts.distance, parts.array.pointer
        )

    def written_components(self) -> list[DeviceArray]:
        """Return the components of its weights: a matrix of the rows that they lie in for each component."""
        parts = self.components
        if parts is None or not self.decayed:
            return []
        start = self.first // parts.columns
        stop = -(-(self.first + self.decayed) // parts.columns)
        firsts = range(0, parts.count * parts.rows, parts.rows)
        return [parts.numbers.rows(first + start, first + stop) for first in firsts]


@dataclass(frozen=True)
class LossRing:
    """Where the loss (1,) of each step goes: ``losses[place[0]]``; place (1,) int32 moves on, and around."""

    loss: DeviceArray
    losses: DeviceArray
    place: DeviceArray

    def packed(self) -> bytes:
        """Pack it as kernels/nn/batch.cuh has it."""
        require_shape("keep_loss", (1,), loss=self.loss, place=self.place)
        pointers = (array.pointer for array in (self.loss, self.losses, self.place))
        return struct.pack("PPPi4x", *pointers, self.losses.size)

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        return self.loss, self.place

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return self.losses.rows(0, 1), self.place

    def in_numpy(self) -> Callable[[], None]:
        """Bind the keeping of a loss to host memory."""
        loss, losses, place = (array.host_view() for array in (self.loss, self.losses, self.place))

        def keep() -> None:
            losses[place[0]] = loss[0]
            place[0] = (int(place[0]) + 1) % len(losses)

        return keep


@dataclass(frozen=True)
class UpdateArrays:
    """The flat arrays that an update works on; ``gradients`` may be the longest."""

    optimiser: Optimiser
    parameters: DeviceArray
    gradients: DeviceArray
    states: Mapping[str, DeviceArray]
    """Those that the optimiser names."""
    clock: DeviceArray | None
    """(n,) float64: what the optimiser keeps about steps."""

    def require_fit(self, segments: Sequence[Segment]) -> None:
        """Raise ValueError unless the arrays fit each other and the segments."""
        (size,) = self.parameters.shape
        if self.gradients.size < size or any(segment.stop > size for segment in segments):
            raise ValueError(f"update: gradients {self.gradients.shape}, or {segments}, do not fit {(size,)}")
        require_shape("update", (size,), **self.states)

    def packed(self, kernels: Kernels, ring: LossRing | None) -> DeviceArray:
        """Pack the update as kernels/nn/update.cuh has it, for a step that ends with the ring, if any."""
        real = _REAL[kernels.real]
        states = [self.states[name].pointer for name in self.optimiser.states]
        fields = self.optimiser.fields(states, self.clock.pointer if self.clock is not None else 0)
        pointer = kernels.upload(ring.packed()).pointer if ring is not None else 0
        layout = f"{self.optimiser.packed_format(real)}0P{_UPDATE_TAIL}"
        return kernels.upload(struct.pack(layout, *fields, self.parameters.pointer, pointer))

    def for_peers(self, kernels: Kernels, segments: Sequence[Segment], ring: LossRing | None) -> PackedUpdate:
        """Pack the update for an exchange over peer memory, whose buckets begin with these segments."""
        packed = [segment.packed() for segment in segments]
        return PackedUpdate(kernels.library, self.optimiser.header, packed, self.packed(kernels, ring))


@dataclass(frozen=True)
class Update(Work):
    """New parameters of some segments, from the sums of their gradients; with a ring the loss is kept."""

    arrays: UpdateArrays
    segments: Sequence[Segment]
    ring: LossRing | None = None

    @property
    def _changed(self) -> list[DeviceArray]:
        flat = self.arrays.parameters, *self.arrays.states.values()
        return [array.rows(s.start, s.stop) for array in flat for s in self.segments]

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        gradients = [self.arrays.gradients.rows(s.start, s.stop) for s in self.segments]
        return *gradients, *self._changed, *(self.ring.reads if self.ring is not None else ())

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        components = (array for s in self.segments for array in s.written_components())
        return *self._changed, *components, *(self.ring.writes if self.ring is not None else ())

    @property
    def results(self) -> tuple[DeviceArray | Components, ...]:
        components = dict.fromkeys(s.components for s in self.segments if s.components is not None)
        return *self._changed, *components, *(self.ring.writes if self.ring is not None else ())

    @property
    def flops(self) -> int:
        """Of the rule; a weight's components cost one each."""
        each, weight = self.arrays.optimiser.flops
        return sum(
            each * s.size + (weight + (s.components.count if s.components is not None else 0)) * s.decayed
            for s in self.segments
        )

    def on_device(self, kernels: Kernels) -> Launch:
        self.arrays.require_fit(self.segments)
        (across,), block = line_shape(blocks(max(segment.size for segment in self.segments), 4))
        kernel = kernels.kernel("nn/update", "update", UPDATE=self.arrays.optimiser.header)
        return kernel.bind(
            (across, len(self.segments)),
            block,
            kernels.upload(b"".join(segment.packed() for segment in self.segments)),
            self.arrays.packed(kernels, self.ring),
            self.arrays.gradients,
        )

    def in_numpy(self) -> Compute:
        calls: list[Compute] = [call for segment in self.segments for call in self._updates(segment)]
        calls += [self._split(segment) for segment in self.segments if segment.components is not None]
        if self.ring is not None:
            calls.append(self.ring.in_numpy())

        def update() -> None:
            for call in calls:
                call()

        return update

    def _split(self, segment: Segment) -> Compute:
        """Bind the splitting of a segment's weights into their components."""
        parts = segment.components
        assert parts is not None
        weights = self.arrays.parameters.rows(segment.start, segment.start + segment.decayed).host_view()
        rows, columns = np.divmod(np.arange(segment.first, segment.first + segment.decayed), parts.columns)
        bits = parts.matrix.host_view().reshape(parts.count, parts.rows, parts.ld)

        def compute() -> None:
            bits[:, rows, columns] = split(weights, parts.count)

        return compute

    def _updates(self, segment: Segment) -> list[Compute]:
        """Bind the updates of a segment's blocks; they share what they keep beside the arrays."""
        driver, dtype = self.arrays.parameters.driver, self.arrays.parameters.dtype
        size = max(_BLOCK_BYTES // dtype.itemsize, -(-segment.size // _MOST_BLOCKS))
        parts = segment.blocks(size)
        with driver.ledger.of("workspaces", segment.layer):
            largest = max((part.size for part in parts), default=0)
            scratch = DeviceArray.empty(driver, (largest,), dtype).host_view()
        arrays, rule = self.arrays, self.arrays.optimiser
        span = segment.start, segment.stop  # viewed once: a view of each block costs more than its slice
        views = [
            array.rows(*span).host_view()
            for array in (arrays.parameters, arrays.gradients, *arrays.states.values())
        ]
        clock = arrays.clock.host_view() if arrays.clock is not None else np.empty(0)

        def slices(part: Segment) -> Slices:
            p, g, *states = (view[part.start - segment.start : part.stop - segment.start] for view in views)
            return Slices(p, g, states, part.decayed, clock, scratch[: part.size])

        return [rule.in_numpy(slices(part)) for part in parts]


@dataclass(frozen=True)
class EndStep(Work):
    """The end of a step that its updates do not end: the loss is kept, the optimiser counts the step."""

    arrays: UpdateArrays
    ring: LossRing | None

    @property
    def _clock(self) -> tuple[DeviceArray, ...]:
        return (self.arrays.clock,) if self.arrays.clock is not None else ()

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        return *(self.ring.reads if self.ring is not None else ()), *self._clock

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return *(self.ring.writes if self.ring is not None else ()), *self._clock

    @property
    def flops(self) -> int:
        return 0

    def on_device(self, kernels: Kernels) -> Launch:
        kernel = kernels.kernel("nn/update", "end_step", UPDATE=self.arrays.optimiser.header)
        return kernel.bind((1,), (1,), self.arrays.packed(kernels, self.ring))

    def in_numpy(self) -> Compute:
        keep = self.ring.in_numpy() if self.ring is not None else None
        clock = self.arrays.clock.host_view() if self.arrays.clock is not None else None

        def end() -> None:
            if keep is not None:
                keep()
            if clock is not None:
                self.arrays.optimiser.count_step(clock)

        return end
