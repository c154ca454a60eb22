"""Filters turned around for the gradient of a convolution's images (kernels/conv/flip.cu)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nn.launch.conv.convolution import InputGradient
from nn.launch.gemm.components import Components, split
from nn.launch.shapes import line_shape
from nn.launch.work import Compute, Work
from pyrt.arrays import DeviceArray
from pyrt.kernels import Launch

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels

TURN = struct.Struct("6iPP")


@dataclass(frozen=True)
class Turn:
    """Filters W (filters, places channels) as components of T (channels, places filters), places reversed."""

    W: DeviceArray
    T: Components
    places: int

    @classmethod
    def of(cls, work: InputGradient, room: Callable[[int, int], Components]) -> Turn:
        """Turn the filters of a convolution; ``room`` makes components of so many rows and columns."""
        places = work.window.rows * work.window.columns
        return cls(work.filters, room(work.window.channels, places * work.filter_count), places)

    def packed(self) -> bytes:
        """Pack it as kernels/conv/flip.cu has it."""
        filters, T = self.W.shape[0], self.T
        sizes = filters, self.places, T.rows, T.count, T.ld, T.distance
        return TURN.pack(*sizes, self.W.pointer, T.array.pointer)


@dataclass(frozen=True)
class FlipFilters(Work):
    """Turns the filters of one layer, or of several, in one launch."""

    kind = "flip filters"
    turns: Sequence[Turn]

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        return tuple(turn.W for turn in self.turns)

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return tuple(turn.T.numbers for turn in self.turns)

    @property
    def results(self) -> tuple[Components, ...]:
        return tuple(turn.T for turn in self.turns)

    @property
    def flops(self) -> int:
        return sum(turn.W.size * turn.T.count for turn in self.turns)

    def on_device(self, kernels: Kernels) -> Launch:
        if not all(turn.W.is_contiguous for turn in self.turns):
            raise ValueError("flip filters: filters are not contiguous")
        (across,), block = line_shape(max(turn.W.size for turn in self.turns))
        turns = kernels.upload(b"".join(turn.packed() for turn in self.turns))
        return kernels.kernel("conv/flip", "flip_filters").bind((across, len(self.turns)), block, turns)

    def in_numpy(self) -> Compute:
        pairs = [(turn, turn.W.host_view()) for turn in self.turns]

        def compute() -> None:
            for turn, w in pairs:
                T = turn.T
                turned = w.reshape(len(w), turn.places, T.rows)[:, ::-1].transpose(2, 1, 0)
                T.numbers.host_view()[:] = split(turned.reshape(T.rows, -1), T.count).reshape(-1, T.columns)

        return compute
