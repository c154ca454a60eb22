"""Through pinned host memory: MPI moves packed messages, the host adds up sums.

    compute             | source |  other work                           | target
    a stream of its own          | pack |                     | unpack |
    MPI                                 |  Ialltoallv         |
    a sum to "whole"                    |  Ialltoallv | add | Iallgatherv |

Where messages are whole rows of an array without gaps, packing is a copy, and on the CPU nothing at all;
else a kernel packs, straight into host memory. No device pointer reaches MPI, so this is safe on every MPI.
MPI makes progress when it is called: in ``finish``, and before that where the source is there at once, as on
the CPU.

Sums come as Ialltoallv and are added up here, in the order of the ranks. One Iallreduce would be less to
write, but MPI chooses its order, by the size and the number of ranks, and promises the same bits on all ranks
to nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from mpi4py import MPI

from pyrt.driver import Driver, StreamHandle
from pyrt.memory import DeviceArray, pinned
from pyrt.moves import Move, Setting, require_fitting
from pyrt.moves.packing import Packing, QueueWork, bind_kernel, bind_numpy
from pyrt.moves.strips import FOUR, fours
from pyrt.regions import Region

_MPI_TYPES = {np.dtype(np.float32): MPI.FLOAT, np.dtype(np.float64): MPI.DOUBLE}


class _Buffer:
    """Host memory for the messages of any move: as much as the largest one needs that was bound so far."""

    def __init__(self, driver: Driver, dtype: np.dtype) -> None:
        self._driver, self._dtype = driver, dtype
        self._host = np.empty(0, dtype)
        self.on_device: DeviceArray
        """The same memory, for kernels."""

    def of_size(self, size: int) -> np.ndarray:
        """The first elements of the buffer, for the host."""
        if size > self._host.size:
            self._allocate(size)
        return self._host[:size]

    def _allocate(self, size: int) -> None:
        if not self._driver.has_kernels:
            self._host = pinned(self._driver, (size,), self._dtype)
            return
        block, pointer = self._driver.allocate_mapped(size * self._dtype.itemsize)
        self._host = block.view(self._dtype)
        self.on_device = DeviceArray(self._driver, pointer, (size,), self._dtype, size)


class HostLinks:
    """A communicator and buffers, which all moves share: there is one move at a time."""

    name = "host"
    on_device = False

    def __init__(self, setting: Setting) -> None:
        """Collective."""
        self.setting = setting
        # When a call is made depends on events: calls of others must not come between.
        self.comm: MPI.Comm | None = setting.job.comm.Dup()
        self.stream = setting.driver.create_stream()
        self.outgoing, self.incoming = (_Buffer(setting.driver, setting.dtype) for _ in range(2))
        self.request = MPI.REQUEST_NULL

    def bind(self, phase_name: str, move: Move, source: DeviceArray, target: DeviceArray) -> _HostMove:
        return _HostMove(self, phase_name, move, source, target)

    def close(self) -> None:
        """MPI can neither cancel nor free a collective: after an error one may be left under way."""
        if self.comm is None:
            return
        self.request.Test()
        self.comm.Free()
        self.comm = None


class _HostMove:
    """Its source is ``fetched``, its messages are ``posted``, and its target is ``delivered``."""

    def __init__(
        self, links: HostLinks, phase_name: str, move: Move, source: DeviceArray, target: DeviceArray
    ) -> None:
        has, gets = require_fitting(links.setting, move, source, target)
        driver, phase = links.setting.driver, links.setting.phases.phase
        self._links, self._driver, self._job = links, driver, links.setting.job
        self._phases, self._compute = links.setting.phases, links.setting.streams.compute
        self._ready, self._fetched, self._delivered = (driver.create_event(timing=False) for _ in range(3))
        self._is_posted = False

        first = move.stages[0]
        ranks, rank = self._job.size, self._job.rank
        sent = [first.message(ranks, rank, other).within(has) for other in range(ranks)]
        outgoing = Packing.of(source, sent)
        given = _memory(source, outgoing, links.outgoing)
        fetch = _bind("pack", source, outgoing, given, links.outgoing)
        self._add: Callable[[], None] = _no_sum
        self._gather: Callable[[], MPI.Request] | None = None
        if move.sums:
            deliver = self._bind_sum(move, target, given, outgoing)
        else:
            received = [first.message(ranks, other, rank).within(gets) for other in range(ranks)]
            incoming = Packing.of(target, received)
            taken = _memory(target, incoming, links.incoming)
            self._post = self._alltoallv(given, outgoing, taken, incoming.counts, incoming.starts)
            deliver = _bind("unpack", target, incoming, taken, links.incoming)

        # NumPy works at once, so on the CPU the source must be there before.
        self._fetch: QueueWork = fetch if driver.has_kernels else _nothing
        self._pack: QueueWork = _nothing if driver.has_kernels else fetch
        self._deliver = deliver
        self._down = phase(f"{phase_name} device -> host", links.stream)
        self._calls = phase("MPI_Ialltoallv, MPI_Iallgatherv" if self._gather else "MPI_Ialltoallv")
        self._up = phase(f"{phase_name} host -> device", links.stream)

    def _bind_sum(self, move: Move, target: DeviceArray, given: np.ndarray, outgoing: Packing) -> QueueWork:
        """The messages of a sum, and what adds them up; what delivers the sum."""
        links, ranks, rank = self._links, self._job.size, self._job.rank
        size = move.stages[0].target_of(ranks, rank).size
        step = fours(size) * FOUR
        starts = [other * step for other in range(ranks)]
        taken = links.incoming.of_size(ranks * step)
        self._post = self._alltoallv(given, outgoing, taken, [size] * ranks, starts)
        parts = [taken[start : start + size] for start in starts]

        rows, columns = target.shape
        whole = Packing.of(target, [Region((0, rows), (0, columns))])
        # The gathered sums take the place of what was sent; that of a part, of the first part.
        buffer = links.outgoing if len(move.stages) > 1 else links.incoming
        result = _memory(target, whole, buffer)
        if len(move.stages) > 1:
            self._gather = self._allgatherv(move, result)
            start, stop = move.stages[1].source_of(ranks, rank).rows
            self._add = _bind_add(parts, result[start * columns : stop * columns])
        else:
            self._add = _bind_add(parts, result[:size])
        return _bind("unpack", target, whole, result, buffer)

    def _alltoallv(
        self, given: np.ndarray, outgoing: Packing, taken: np.ndarray, counts: list[int], starts: list[int]
    ) -> Callable[[], MPI.Request]:
        comm, kind = self._links.comm, _MPI_TYPES[given.dtype]
        assert comm is not None
        send = [given, outgoing.counts, outgoing.starts, kind]
        receive = [taken, counts, starts, kind]
        return lambda: comm.Ialltoallv(send, receive)

    def _allgatherv(self, move: Move, result: np.ndarray) -> Callable[[], MPI.Request]:
        """Each rank's rows of the sum come to all, into their places."""
        comm, ranks = self._links.comm, self._job.size
        assert comm is not None
        parts = [move.stages[1].source_of(ranks, rank) for rank in range(ranks)]
        starts = [part.rows[0] * move.shape[1] for part in parts]
        message = [result, [part.size for part in parts], starts, _MPI_TYPES[result.dtype]]
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
        self._phases.barrier()
        with self._calls:
            while not self._post_if_fetched():
                self._job.pause()
            self._wait()
            self._add()
            if self._gather is not None:
                self._links.request = self._gather()
                self._wait()
        stream = self._links.stream
        with self._up:
            self._deliver(stream)
        self._driver.record(self._delivered, stream)
        self._driver.wait(self._compute, self._delivered)

    def _post_if_fetched(self) -> bool:
        """Whether the messages are on their way."""
        if not self._is_posted and self._driver.is_done(self._fetched):
            self._pack(self._links.stream)
            self._links.request = self._post()
            self._is_posted = True
        return self._is_posted

    def _wait(self) -> None:
        while not self._links.request.Test():
            self._job.pause()


def _memory(array: DeviceArray, packing: Packing, buffer: _Buffer) -> np.ndarray:
    """Where the packed array lies on the host: in the buffer, or on the CPU perhaps where it is."""
    if packing.is_array and not array.driver.has_kernels:
        return array.host_view().reshape(-1)
    return buffer.of_size(packing.size)


def _bind(name: str, array: DeviceArray, packing: Packing, memory: np.ndarray, buffer: _Buffer) -> QueueWork:
    """What packs an array into host memory, or unpacks it."""
    if not array.driver.has_kernels:
        return _nothing if packing.is_array else bind_numpy(name, array, packing, memory)
    if not packing.is_array:
        return bind_kernel(name, array, packing, buffer.on_device)
    if packing.size == 0:
        return _nothing
    if name == "pack":
        return lambda stream: array.queue_download(memory, stream)
    return lambda stream: array.queue_upload(memory, stream)


def _bind_add(parts: Sequence[np.ndarray], result: np.ndarray) -> Callable[[], None]:
    """What adds up the ranks' parts, in order."""
    first, second, *others = parts

    def add() -> None:
        np.add(first, second, out=result)
        for part in others:
            np.add(result, part, out=result)

    return add


def _no_sum() -> None:
    pass


def _nothing(stream: StreamHandle) -> None:
    pass
