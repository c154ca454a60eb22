"""Matrices that move between the ranks of a group, from one spread to another: for layers that ranks share.

======================= ========================== =====================================================
source                  target                     what MPI calls it
======================= ========================== =====================================================
``rows``, ``columns``   ``whole``                  all-gather
``rows``                ``columns``                all-to-all; and the other way round
spans                   spans                      all-to-all; with a halo a part goes to several ranks
``whole``, a sum        ``rows``, ``columns``      reduce-scatter
``whole``, a sum        ``whole``                  all-reduce: a reduce-scatter over rows, then an all-gather
======================= ========================== =====================================================

Of a sum each rank has a whole matrix, and the target is the sum of all of them, added up from rank 0 on.

Ways to move: ``host`` (MPI, through host memory), ``device`` (MPI, on device buffers), ``peer`` (a kernel,
over the memory of a node's GPUs), and ``local`` for one rank, where nothing moves.
docs/explain/redistribution.md says what each sends, and who waits for whom.

The ranks of a group make the same moves in the same order; one is finished before the next is started. All
that does not write the source, and does not touch the target, may be queued on the compute stream between
``start`` and ``finish``, and runs beside the move.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from pyrt.arrays import DeviceArray
from pyrt.driver import Driver
from pyrt.job import Job
from pyrt.phases import Phases
from pyrt.redistribute.regions import SPREADS, Region, Spans, region
from pyrt.streams import Streams

CHOICES = ("host", "device", "peer")

_SPANS = "spans"
_PLAIN = (
    *(("rows", "whole"), ("columns", "whole"), ("rows", "columns"), ("columns", "rows")),
    *((_SPANS, "whole"), (_SPANS, "rows"), (_SPANS, "columns"), ("rows", _SPANS), (_SPANS, _SPANS)),
)


@dataclass(frozen=True)
class Redistribution:
    """A matrix of this shape from one spread to another; with ``sums`` the sum of all ranks' matrices.

    So many rows stay ``together``, as the pixels of an image, of which each is a row of its channels. Spans
    are columns of each rank; those of a source do not overlap.
    """

    shape: tuple[int, int]
    source: str | Spans
    target: str | Spans
    sums: bool = False
    together: int = 1

    def __post_init__(self) -> None:
        pair = tuple(one if isinstance(one, str) else _SPANS for one in (self.source, self.target))
        allowed = [("whole", one) for one in (*SPREADS, _SPANS)] if self.sums else _PLAIN
        if pair not in allowed:
            raise ValueError(f"no {'sum' if self.sums else 'move'} from {self.source} to {self.target}")

    @property
    def stages(self) -> tuple[Redistribution, ...]:
        """The moves that it is made of, each of one message from each rank to each rank."""
        if self.sums and self.target == "whole":
            first = replace(self, target="rows")
            return first, replace(self, source="rows", sums=False)
        return (self,)

    def source_of(self, ranks: int, rank: int) -> Region:
        """Return the region that this rank has."""
        return region(self.source, self.shape, ranks, rank, self.together)

    def target_of(self, ranks: int, rank: int) -> Region:
        """Return the region that this rank gets."""
        return region(self.target, self.shape, ranks, rank, self.together)

    def message(self, ranks: int, sender: int, receiver: int) -> Region:
        """Return what one rank sends another, or keeps, in a one-stage redistribution; may be empty."""
        return self.source_of(ranks, sender).intersection(self.target_of(ranks, receiver))

    def sent(self, ranks: int, rank: int) -> int:
        """Elements that this rank sends to others."""
        return sum(self._sizes_sent(ranks, rank))

    def received(self, ranks: int, rank: int) -> int:
        """Elements that this rank receives from others."""
        return sum(
            stage.message(ranks, other, rank).size
            for stage in self.stages
            for other in range(ranks)
            if other != rank
        )

    def messages(self, ranks: int, rank: int) -> int:
        """Messages that this rank sends to others, without empty ones."""
        return sum(size > 0 for size in self._sizes_sent(ranks, rank))

    def _sizes_sent(self, ranks: int, rank: int) -> list[int]:
        return [
            stage.message(ranks, rank, other).size
            for stage in self.stages
            for other in range(ranks)
            if other != rank
        ]


@dataclass(frozen=True)
class RedistributionContext:
    """What connects the ranks of a group is made from this."""

    driver: Driver
    streams: Streams
    job: Job
    """Its ranks are the group's; its node, those of the group that are on this rank's machine."""
    phases: Phases
    dtype: np.dtype
    largest: int
    """The most elements that a rank receives in a move: `Redistribution.received`."""

    @property
    def barrier(self) -> Callable[[], None]:
        """`Phases.barrier` for the ranks of the group: others may have no samples, and then make no move."""
        return self.job.comm.Barrier if self.phases.profile else self.phases.barrier


class Bound(Protocol):
    """A move of two device arrays, made once and done any number of times."""

    def start(self) -> None:
        """Start the move.

        Work that fills the source or used the target is already queued on the compute stream.
        """

    def finish(self) -> None:
        """End the move.

        Work queued on the compute stream from here on sees the target and may write the source.
        """


class Redistributor(Protocol):
    """What connects the ranks of a group."""

    name: str
    on_device: bool
    """Whether ``start`` and ``finish`` only queue work on the device: a graph can hold them then."""

    def bind(self, phase_name: str, move: Redistribution, source: DeviceArray, target: DeviceArray) -> Bound:
        """Bind the move of this rank's regions, matrices that may be views of some columns.

        Every rank binds it, with regions of the same matrix. For a sum to ``whole``, source and target may be
        the same array. Raises ValueError for arrays of other shapes or dtypes.
        """

    def close(self) -> None:
        """Let go of all that is not this process's own. Waits for other ranks for a moment at most; safe to
        call twice.

        Between two moves, or after an exception that has ended one early.
        """


def require_fitting(
    setting: RedistributionContext, move: Redistribution, source: DeviceArray, target: DeviceArray
) -> tuple[Region, Region]:
    """Return what this rank has and gets; ValueError if these arrays do not fit."""
    ranks, rank = setting.job.size, setting.job.rank
    regions = move.source_of(ranks, rank), move.target_of(ranks, rank)
    for array, held in zip((source, target), regions, strict=True):
        if array.shape != held.shape or array.dtype != setting.dtype:
            given = f"{array.shape} of {array.dtype}"
            raise ValueError(f"{move} asks for an array {held.shape} of {setting.dtype}, not {given}")
    return regions
