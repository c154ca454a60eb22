"""Moves by MPI, in stages: messages are packed, sent, added up if it is a sum, and unpacked.

What the memory is that MPI is given, and what packs and adds up there, is the affair of those who inherit:
pyrt/redistribute/host.py, pyrt/redistribute/device.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI

from pyrt.arrays import DeviceArray
from pyrt.driver import StreamHandle
from pyrt.redistribute import Redistribution, RedistributionContext, require_fitting
from pyrt.redistribute.packing import Packing, QueueWork
from pyrt.redistribute.regions import Region

_MPI_TYPES = {np.dtype(np.float32): MPI.FLOAT, np.dtype(np.float64): MPI.DOUBLE}


class Memory(Protocol):
    """A flat array of a setting's dtype that MPI can be given."""

    def part(self, start: int, stop: int) -> Memory:
        """Some elements of it."""

    def for_mpi(self) -> Any:
        """Return the buffer as mpi4py takes it."""


class StagedLinks(ABC):
    """A communicator, a stream and buffers, which all moves share: there is one move at a time."""

    name: str
    on_device = False

    def __init__(self, setting: RedistributionContext) -> None:
        """Collective."""
        self.setting = setting
        # When a call is made depends on events: calls of others must not come between.
        self._comm: MPI.Comm | None = setting.job.comm.Dup()
        self.stream = setting.driver.create_stream()
        self.request = MPI.REQUEST_NULL
        self.progress = 0
        """Changes with all that a move does."""
        self.is_inside = False
        """Somebody waits for a move."""

    @property
    def comm(self) -> MPI.Comm:
        assert self._comm is not None, "closed"
        return self._comm

    def bind(
        self, phase_name: str, move: Redistribution, source: DeviceArray, target: DeviceArray
    ) -> StagedMove:
        return StagedMove(self, phase_name, move, source, target)

    def close(self) -> None:
        """MPI can neither cancel nor free a collective: after an error one may be left under way."""
        if self._comm is None:
            return
        self.request.Test()
        self._comm.Free()
        self._comm = None

    @abstractmethod
    def memory_of(self, array: DeviceArray) -> Memory | None:
        """Return the memory of an array without gaps; None if MPI cannot be given it."""

    @abstractmethod
    def outgoing(self, size: int) -> Memory:
        """Return a buffer for messages of any move to other ranks."""

    @abstractmethod
    def incoming(self, size: int) -> Memory:
        """Return a buffer for messages from others."""

    @abstractmethod
    def bind_copy(self, name: str, array: DeviceArray, packing: Packing, memory: Memory) -> QueueWork:
        """Bind packing (``pack``) an array into a buffer, or unpacking it."""

    @abstractmethod
    def bind_sum(self, parts: Memory, size: int, result: Memory) -> QueueWork:
        """Bind the sum of a part of this size from each rank, in rank order."""


class StagedMove:
    """Its source is ``fetched``, its messages are ``posted``, and its target is ``delivered``."""

    def __init__(
        self,
        links: StagedLinks,
        phase_name: str,
        move: Redistribution,
        source: DeviceArray,
        target: DeviceArray,
    ) -> None:
        has, gets = require_fitting(links.setting, move, source, target)
        driver, phase = links.setting.driver, links.setting.phases.phase
        self._links, self._driver, self._job = links, driver, links.setting.job
        self._barrier, self._compute = links.setting.barrier, links.setting.streams.compute
        self._ready, self._fetched, self._summed, self._delivered = (
            driver.create_event(timing=False) for _ in range(4)
        )
        self._is_posted = False

        first, ranks, rank = move.stages[0], self._job.size, self._job.rank
        sent = [first.message(ranks, rank, other).within(has) for other in range(ranks)]
        outgoing = Packing.of(source, sent)
        given = self._memory(source, outgoing, links.outgoing)
        fetch = self._bind_copy("pack", source, outgoing, given)
        self._add: QueueWork = _nothing
        self._gather: Callable[[], MPI.Request] | None = None
        if move.sums:
            self._deliver = self._bind_sum(move, target, given, outgoing)
        else:
            received = [first.message(ranks, other, rank).within(gets) for other in range(ranks)]
            incoming = Packing.of(target, received)
            taken = self._memory(target, incoming, links.incoming)
            self._post = self._alltoallv(given, outgoing, taken, incoming.counts, incoming.starts)
            self._deliver = self._bind_copy("unpack", target, incoming, taken)

        # NumPy works at once, so on the CPU the source must be there before.
        self._fetch: QueueWork = fetch if driver.has_kernels else _nothing
        self._pack: QueueWork = _nothing if driver.has_kernels else fetch
        self._down = phase(f"{phase_name}, source", links.stream)
        self._calls = phase("MPI_Ialltoallv, MPI_Iallgatherv" if self._gather else "MPI_Ialltoallv")
        self._up = phase(f"{phase_name}, target", links.stream)

    def _memory(self, array: DeviceArray, packing: Packing, buffer: Callable[[int], Memory]) -> Memory:
        """Return where the messages of an array lie: in a buffer, or in the array itself."""
        in_place = self._links.memory_of(array) if packing.is_array else None
        return in_place or buffer(packing.size)

    def _bind_copy(self, name: str, array: DeviceArray, packing: Packing, memory: Memory) -> QueueWork:
        if packing.size == 0 or (packing.is_array and self._links.memory_of(array)):
            return _nothing
        return self._links.bind_copy(name, array, packing, memory)

    def _bind_sum(
        self, move: Redistribution, target: DeviceArray, given: Memory, outgoing: Packing
    ) -> QueueWork:
        """Bind the messages and the addition of a sum; return the work that delivers it."""
        links, ranks, rank = self._links, self._job.size, self._job.rank
        size = move.stages[0].target_of(ranks, rank).size
        taken = links.incoming(ranks * size)
        starts = [other * size for other in range(ranks)]
        self._post = self._alltoallv(given, outgoing, taken, [size] * ranks, starts)

        rows, columns = target.shape
        whole = Packing.of(target, [Region((0, rows), (0, columns))])
        if len(move.stages) > 1:  # what is gathered takes the place of what was sent
            result = self._memory(target, whole, links.outgoing)
            self._gather = self._allgatherv(move, result)
            start, stop = move.stages[1].source_of(ranks, rank).rows
            self._add = links.bind_sum(taken, size, result.part(start * columns, stop * columns))
        else:  # the sum takes the place of the first part
            result = self._memory(target, whole, links.incoming)
            self._add = links.bind_sum(taken, size, result.part(0, size))
        return self._bind_copy("unpack", target, whole, result)

    def _alltoallv(
        self, given: Memory, outgoing: Packing, taken: Memory, counts: list[int], starts: list[int]
    ) -> Callable[[], MPI.Request]:
        comm, kind = self._links.comm, _MPI_TYPES[self._links.setting.dtype]
        send = [given.for_mpi(), outgoing.counts, outgoing.starts, kind]
        receive = [taken.for_mpi(), counts, starts, kind]
        return lambda: comm.Ialltoallv(send, receive)

    def _allgatherv(self, move: Redistribution, result: Memory) -> Callable[[], MPI.Request]:
        """Each rank's rows of the sum come to all, into their places."""
        comm, kind = self._links.comm, _MPI_TYPES[self._links.setting.dtype]
        parts = [move.stages[1].source_of(self._job.size, rank) for rank in range(self._job.size)]
        starts = [part.rows[0] * move.shape[1] for part in parts]
        message = [result.for_mpi(), [part.size for part in parts], starts, kind]
        return lambda: comm.Iallgatherv(MPI.IN_PLACE, message)

    def start(self) -> None:
        driver, stream = self._driver, self._links.stream
        driver.record(self._ready, self._compute)
        driver.wait(stream, self._ready)
        with self._down:
            self._fetch(stream)
        driver.record(self._fetched, stream)
        self._is_posted = False
        with self._calls:
            self._post_if_fetched()

    def finish(self) -> None:
        self._barrier()
        links, stream = self._links, self._links.stream
        links.is_inside = True
        with self._calls:
            while not self._post_if_fetched():
                links.progress += 1  # this rank's own kernels run
                self._job.pause()
            self._wait_for_mpi()
            self._add(stream)
            if self._gather is not None:
                self._driver.record(self._summed, stream)
                while not self._driver.is_done(self._summed):
                    self._job.pause()
                links.request = self._gather()
                self._wait_for_mpi()
        links.is_inside = False
        with self._up:
            self._deliver(stream)
        self._driver.record(self._delivered, stream)
        self._driver.wait(self._compute, self._delivered)

    def _post_if_fetched(self) -> bool:
        """Try to post the messages; return whether posted."""
        if not self._is_posted and self._driver.is_done(self._fetched):
            self._pack(self._links.stream)
            self._links.request = self._post()
            self._is_posted = True
        return self._is_posted

    def _wait_for_mpi(self) -> None:
        while not self._links.request.Test():
            self._job.pause()
        self._links.progress += 1


def _nothing(stream: StreamHandle) -> None:
    pass
