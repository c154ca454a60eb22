"""Sums of gradients over the ranks, and the update that follows: a ladder from the plain to the fast.

================ ====================================================================================
``local``        one rank: nothing to sum; several: none, to measure a step without an exchange
``root``         master and workers: MPI_Gather, sum and update on rank 0, MPI_Bcast of the parameters
``blocking``     the course's way: all gradients down, MPI_Allreduce, up, update
``host``         in pieces: copies, MPI_Iallreduce and updates overlap, also with the backward pass
``device``       bucket by bucket, without copies: MPI is given device buffers, where it can take them
``peer``         one node: a kernel sums, updates and spreads over the memory of all its GPUs
``hierarchical`` several nodes: within each as ``peer``, across them as ``host``
``hogwild``      one node, no sums: ranks update shared parameters, and wait for nobody
``server``       no sums: workers push gradients to ranks that hold the parameters, and pull
================ ====================================================================================

An exchange is made once for a flat gradient buffer cut into buckets, and then used once a step: ``ready``
for each bucket in order, as soon as the kernels that fill it are queued on the compute stream, then
``finish``. It owns the update: after ``finish``, in the order of the compute stream, the parameters are
new on every rank, and the step is over. How it gets there is its own affair: it may sum on the host or in
a kernel, update a shard and spread it, or only queue work that a graph captures.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from pyrt.arrays import DeviceArray
from pyrt.driver import Driver, StreamHandle
from pyrt.job import Job
from pyrt.kernels import KernelLibrary
from pyrt.phases import Phases
from pyrt.streams import Streams

if TYPE_CHECKING:
    from mpi4py import MPI

QueueWork = Callable[[StreamHandle], object]

_SUMS_ONLY, _NOTHING = struct.Struct("qi4x"), struct.Struct("i")
"""The structs Segment and Update of kernels/comm/sums_only.cuh."""


class Bucket(NamedTuple):
    """A part of the flat gradient buffer, in elements, that may be exchanged once it is full."""

    start: int
    stop: int


class Update(Protocol):
    """The update of parameters: what an exchange applies to what it has summed."""

    def bind(self, *buckets: Bucket, ends_step: bool = False) -> QueueWork:
        """Bind the update of the parameters in these parts of the flat buffers.

        What lies behind the parameters is left alone; a bucket may lie there altogether. One of an
        exchange's ends each step: it is queued last, when all sums are there. It may have no buckets.
        """

    def refresh(self) -> QueueWork:
        """Bind the work that follows when someone else has written parameters on this device."""

    def apart(self) -> Update:
        """Return the same update with its own count of steps, for a range that is updated at other times."""

    def for_peers(self, driver: Driver, buckets: Sequence[Bucket]) -> PackedUpdate:
        """Pack the update of these buckets for kernels that sum over peer memory; it ends the step."""

    def bind_end(self) -> QueueWork:
        """Bind the end of a step behind such a kernel; `nothing` if the kernel ends it."""


@dataclass(frozen=True)
class PackedUpdate:
    """An update as the kernels take it that sum over peer memory (kernels/comm/shard.cuh)."""

    library: KernelLibrary
    header: str
    """The constant UPDATE of the kernels: the header that says what an update does."""
    segments: Sequence[bytes]
    """For each bucket its struct Segment: what there is to update."""
    update: DeviceArray
    """Its struct Update."""


def nothing(stream: StreamHandle) -> None:
    """Queue nothing."""


class NoUpdate:
    """For sums alone: every exchange leaves the sums of all buckets in the gradients of every rank."""

    def bind(self, *buckets: Bucket, ends_step: bool = False) -> QueueWork:
        return nothing

    def refresh(self) -> QueueWork:
        return nothing

    def apart(self) -> NoUpdate:
        return self

    def for_peers(self, driver: Driver, buckets: Sequence[Bucket]) -> PackedUpdate:
        segments = [_SUMS_ONLY.pack(bucket.start, 0) for bucket in buckets]
        update = DeviceArray.from_host(driver, np.frombuffer(_NOTHING.pack(0), np.uint8))
        return PackedUpdate(KernelLibrary(driver), "comm/sums_only.cuh", segments, update)

    def bind_end(self) -> QueueWork:
        return nothing


@dataclass(frozen=True)
class Asynchrony:
    """Settings of asynchronous training: atomic updates, parameter servers, the bound on staleness."""

    atomic: bool = False
    """Ranks add atomically to shared parameters, so that no update is lost."""
    servers: int = 0
    """The number of parameter servers, which are the first ranks."""
    staleness: float = math.inf
    """The most steps that a worker may be ahead of the slowest one."""
    kept: int = 1
    """The number of servers that hold each shard of the parameters: 1 or 2."""

    @property
    def is_synchronous(self) -> bool:
        """Return whether servers sum the gradients of all workers in each step, as synchronous training."""
        return self.servers > 0 and self.staleness == 0

    def text(self, ranks: int) -> str:
        """Say how servers and workers work together."""
        who = f"{self.servers} server(s), the first ranks, and {ranks - self.servers} worker(s)"
        if self.is_synchronous:
            return f"{who}, which wait for each other in each step"
        bound = "wait for nobody"
        if not math.isinf(self.staleness):
            bound = f"are {self.staleness:g} step(s) apart at most"
        return f"{who}, which {bound}; results differ from run to run"


SYNCHRONOUS = Asynchrony()
"""The settings of exchanges whose ranks wait for each other."""


@dataclass(frozen=True)
class ExchangeContext:
    """What every exchange is made from."""

    driver: Driver
    streams: Streams
    job: Job
    node: MPI.Comm
    """The ranks that count as those of this rank's node."""
    phases: Phases
    parameters: DeviceArray
    """The flat buffer (m,): equal on all ranks, before a step and after it."""
    gradients: DeviceArray
    """The flat buffer (n,), n >= m: sums of this rank before. After a step what lies behind the first m is
    summed over all ranks; these are whatever the exchange and the update have left there."""
    buckets: Sequence[Bucket]
    """In the order in which the backward pass fills them; together all that must be summed."""
    update: Update
    asynchrony: Asynchrony = SYNCHRONOUS
    """Settings of asynchronous exchanges; others do not read them."""

    def __post_init__(self) -> None:
        """Raise ValueError unless there are buckets, each with gradients in it."""
        if not self.buckets:
            raise ValueError("an exchange needs a bucket or more")
        for start, stop in self.buckets:
            if not 0 <= start < stop <= self.gradients.size:
                raise ValueError(
                    f"no bucket has elements {start} to {stop} of {self.gradients.size} gradients"
                )

    @property
    def updated(self) -> int:
        """Count the gradients of parameters that the update changes: the first; the rest is summed only."""
        return 0 if isinstance(self.update, NoUpdate) else self.parameters.size


class Exchange(Protocol):
    """One sum over ranks and one update a step."""

    name: str
    on_device: bool
    """Whether all it does is to queue work on the device: a graph can hold it then."""
    updates: Sequence[Bucket]
    """The parts of the flat buffers whose parameters this rank updates itself: what an update keeps from step
    to step, momentum, is right in these alone."""

    def ready(self, bucket: int) -> None:
        """Note that the kernels that fill this bucket are queued on the compute stream. In bucket order.

        From here on this and earlier buckets' parameters may change: kernels that read them are queued.
        """

    def finish(self) -> None:
        """End the step: all buckets are ready.

        Work queued on the compute stream from here on sees new parameters.
        """

    def close(self) -> None:
        """Let go of all that is not this process's own. Waits for other ranks for a moment at most; safe to
        call twice.

        Between two steps, or after an exception that has ended one early.
        """


class UpdateCounts(NamedTuple):
    """The updates of all ranks."""

    made: int
    kept: float
    """The number of those that are in the parameters; an estimate where some get lost."""
    stale: list[int]
    """Counts the updates that came behind 0, 1, .. of others since their rank had pulled the parameters."""


class Asynchronous(Exchange, Protocol):
    """An exchange whose ranks, the workers, wait for each other only where they meet.

    After `finish` each has parameters of its own; after `begin` and `meet` all have the same.
    """

    def begin(self) -> None:
        """Make the parameters of the first rank those of all, before the first step. Collective."""

    def meet(self) -> None:
        """Wait until the updates of all steps are over, and give each rank what they have left. Collective.

        Between two steps, of which all ranks have made as many.
        """

    def count(self) -> UpdateCounts:
        """Count the updates of all ranks since `begin`. Collective, behind `meet`."""
