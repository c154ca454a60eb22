"""MPI on device buffers, bucket by bucket, overlapped with the backward pass and with each other.

    compute  | bucket 0 | bucket 1 | bucket 2 |                | update 0 | update 1 | update 2 |
    MPI                 | Ialltoallv 0 | Ialltoallv 1 | Ialltoallv 2
    a stream of its own                | sum 0        | sum 1        | sum 2
    MPI                                        | Iallgatherv 0 | Iallgatherv 1 | Iallgatherv 2

Each rank gets its shard of a bucket from all ranks, adds them up in the order of the ranks, and sends the sum
to all. If the MPI is known to sum on a device (pyrt/mpi_probe/libraries.py), one Iallreduce does all of it.

MPI knows no streams. The host looks at the event behind a bucket's kernels before it lets MPI read, and
queues what reads MPI's results once Test has said that they are there. MPI makes progress when it is called:
at every ``ready``, and without pause in ``finish``.

All ranks must make the same calls in the same order on a communicator, but kernels end in their own time on
each. So within a stage buckets go in their order, whatever event comes first, and the two stages of calls
have a communicator each: which of an Ialltoallv and an Iallgatherv comes first may differ from rank to rank.

Some MPIs hang on device buffers. Where nothing makes progress for `LIMIT` seconds all ranks end, with a line
that says so. Progress is: a kernel's event was passed, a call was made or is over, or kernels of this rank's
own buckets still run. The time a rank spends outside the exchange does not count. A rank that comes to its
exchange more than `LIMIT` seconds after another one has done all it can looks like a hang to that one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from mpi4py import MPI

from pyrt.arrays import DeviceArray
from pyrt.driver import Driver, StreamHandle
from pyrt.errors import UserError
from pyrt.exchange import Bucket, ExchangeContext, QueueWork
from pyrt.exchange.facts import Facts, Traffic
from pyrt.job import AgreedError, Job
from pyrt.job.stall import StallWatch
from pyrt.kernels import REALS, Constants, KernelLibrary, blocks
from pyrt.mpi_probe import probe_cache
from pyrt.mpi_probe.libraries import PROBE, Verdict, has_cuda_support, identify, judge
from pyrt.phases import Phase

LIMIT = 60.0
"""Seconds without progress after which all ranks end; one that is stopped for less is waited for."""

_THREADS = 256
_MPI_TYPES = {np.dtype(np.float32): MPI.FLOAT, np.dtype(np.float64): MPI.DOUBLE}


def kernel_file(dtype: np.dtype) -> tuple[str, Constants]:
    """Name the kernel file and constants of the kernels that add up shards."""
    return "comm/sum_over_ranks", {"REAL": REALS[dtype]}


def verdict(job: Job, driver: Driver) -> Verdict:
    """Decide whether this exchange works here, and how. Collective: the same on every rank.

    Where device memory is the host's own, every MPI takes it.
    """
    if driver.name != "cuda":
        return Verdict("", iallreduce=False, is_proven=True)
    decided = None
    if job.rank == 0:
        library = identify(MPI.Get_library_version())
        decided = judge(library, has_cuda_support(), probe_cache.read(probe_cache.key(job, driver)))
    agreed: Verdict = job.comm.bcast(decided)
    return agreed


def create(setting: ExchangeContext) -> DeviceExchange:
    """Make the exchange by what this MPI can do. Collective.

    Raises UserError, on all ranks, where it cannot work.
    """
    decided = verdict(setting.job, setting.driver)
    if decided.refusal:
        raise AgreedError(f"--exchange device: {decided.refusal}")
    return DeviceExchange(setting, decided.iallreduce)


def shards(size: int, ranks: int) -> tuple[list[int], list[int]]:
    """Divide ``size`` elements among ranks: counts and offsets; some ranks take one more."""
    least, more = divmod(size, ranks)
    counts = [least + (rank < more) for rank in range(ranks)]
    return counts, [rank * least + min(rank, more) for rank in range(ranks)]


class _Piece(Protocol):
    """What one bucket does in one stage."""

    def start(self) -> None:
        """Begin; nobody waits."""

    def is_done(self) -> bool:
        """Return whether it ended."""


class _Queued:
    """Work on a stream, over when the stream has passed it."""

    def __init__(self, driver: Driver, stream: StreamHandle, queue: QueueWork) -> None:
        self._driver, self._stream, self._queue = driver, stream, queue
        self._event = driver.create_event(timing=False)

    def start(self) -> None:
        self._queue(self._stream)
        self._driver.record(self._event, self._stream)

    def is_done(self) -> bool:
        return self._driver.is_done(self._event)


class _Message:
    """A non-blocking call of MPI, over when Test says so."""

    def __init__(self, post: Callable[[], MPI.Request]) -> None:
        self._post = post
        self._request = MPI.REQUEST_NULL

    def start(self) -> None:
        self._request = self._post()

    def is_done(self) -> bool:
        return self._request.Test()


class _Stage:
    """A part of the way of all buckets: they enter it and leave it in order."""

    def __init__(self, pieces: Sequence[_Piece]) -> None:
        self._pieces = pieces
        self.entered = self.left = 0

    def advance(self, arrived: int) -> int:
        """Let in so many buckets, and out those that are through; how many have left."""
        while self.entered < arrived:
            self._pieces[self.entered].start()
            self.entered += 1
        while self.left < self.entered and self._pieces[self.left].is_done():
            self.left += 1
        return self.left

    def reset(self) -> None:
        self.entered = self.left = 0


class DeviceExchange:
    """Buckets go from stage to stage as far as they can at each call, then their updates are queued."""

    name = "device"
    on_device = False

    def __init__(self, setting: ExchangeContext, iallreduce: bool) -> None:
        """Make it, by Iallreduce or by shards. Collective. UserError for buckets that MPI cannot count."""
        for bucket in setting.buckets:
            _require_countable(bucket, setting.job.size)
        self.updates: Sequence[Bucket] = setting.buckets
        self._job, self._phases = setting.job, setting.phases
        self._compute = setting.streams.compute
        self._gathers: MPI.Comm | None = None if iallreduce else setting.job.comm.Dup()
        self._stages = [
            _Stage([_Queued(setting.driver, self._compute, _nothing) for _ in setting.buckets]),
            *(self._by_iallreduce(setting) if iallreduce else self._by_shards(setting)),
        ]
        calls = "MPI_Iallreduce" if iallreduce else "MPI_Ialltoallv, MPI_Iallgatherv"
        self._calls = setting.phases.phase(calls)
        self._step = setting.phases.phase("step", self._compute)
        last = len(setting.buckets) - 1
        self._updates = [
            setting.update.bind(bucket, ends_step=i == last) for i, bucket in enumerate(setting.buckets)
        ]
        self._ready = self._applied = self._steps = self._waits = 0
        self._inside = False
        # Rank 0 speaks, if it can.
        self._watch = StallWatch(self._look, LIMIT * (1.0 if self._job.rank == 0 else 1.25), self._give_up)

    def _by_iallreduce(self, setting: ExchangeContext) -> list[_Stage]:
        comm = setting.job.comm
        kind = _MPI_TYPES[setting.gradients.dtype]

        def sum_of(bucket: Bucket) -> _Message:
            gradients = setting.gradients.rows(*bucket)
            message = [for_mpi(gradients), gradients.size, kind]
            return _Message(lambda: comm.Iallreduce(MPI.IN_PLACE, message))

        return [_Stage([sum_of(bucket) for bucket in setting.buckets])]

    def _by_shards(self, setting: ExchangeContext) -> list[_Stage]:
        stream = setting.driver.create_stream()
        phase = setting.phases.phase("sum over ranks", stream)
        ways = [_Shards(setting, bucket) for bucket in setting.buckets]
        library = KernelLibrary(setting.driver)
        comm, gathers = setting.job.comm, self._gathers
        assert gathers is not None
        return [
            _Stage([way.to_their_ranks(comm) for way in ways]),
            _Stage([_Queued(setting.driver, stream, _within(phase, way.bind_sum(library))) for way in ways]),
            _Stage([way.to_all(gathers) for way in ways]),
        ]

    def ready(self, bucket: int) -> None:
        self._ready += 1
        self._inside = True
        with self._calls:
            self._advance()
        self._inside = False

    def finish(self) -> None:
        self._phases.barrier()
        self._inside = True
        with self._calls:
            while not self._advance():
                self._job.pause()
        self._inside = False
        for stage in self._stages:
            stage.reset()
        self._ready = self._applied = 0
        self._steps += 1

    def close(self) -> None:
        """Nobody is waited for; what MPI has still to do after an exception it does on its own."""
        self._watch.close()
        if self._gathers is not None:
            self._gathers.Free()
            self._gathers = None

    def _advance(self) -> bool:
        """Move each bucket on as far as it goes now; whether all that are ready have been applied."""
        arrived = self._ready
        for stage in self._stages:
            arrived = stage.advance(arrived)
        while self._applied < arrived:
            with self._step:
                self._updates[self._applied](self._compute)
            self._applied += 1
        self._waits += self._stages[0].left < self._ready
        return self._applied == self._ready

    def _look(self) -> object:
        """Return a value that changes with any progress; the watchdog's thread calls it."""
        if not self._inside:
            return None
        return self._steps, self._ready, self._waits, [(stage.entered, stage.left) for stage in self._stages]

    def _give_up(self) -> None:
        self._job.stop(
            f"--exchange device: no progress for {LIMIT:g} s: {self._job.library} may hang on device buffers "
            f"(`{PROBE}` finds out), or a rank has stopped: use --exchange host",
            code=1,
        )


class _Shards:
    """A bucket that is cut into a shard for each rank to add up."""

    def __init__(self, setting: ExchangeContext, bucket: Bucket) -> None:
        driver, job = setting.driver, setting.job
        self._driver, self._ranks = driver, job.size
        self._bucket = setting.gradients.rows(*bucket)
        self._counts, self._starts = shards(self._bucket.size, job.size)
        self._size = self._counts[job.rank]
        start = self._starts[job.rank]
        self._sums = self._bucket.rows(start, start + self._size)
        # MPI writes it, which the checks of the emulated device do not see: for them it is written here.
        zeros = np.zeros((job.size, self._size), self._bucket.dtype)
        self._parts = DeviceArray.from_host(driver, zeros)
        self._kind = _MPI_TYPES[self._bucket.dtype]

    def to_their_ranks(self, comm: MPI.Comm) -> _Message:
        """Bring this rank's shard here from all ranks, a row from each."""
        send = [for_mpi(self._bucket), self._counts, self._starts, self._kind]
        rows = range(self._ranks)
        receive = [
            for_mpi(self._parts),
            [self._size for _ in rows],
            [row * self._size for row in rows],
            self._kind,
        ]
        return _Message(lambda: comm.Ialltoallv(send, receive))

    def to_all(self, comm: MPI.Comm) -> _Message:
        """Bring the sums of all shards to all ranks, into the bucket itself."""
        message = [for_mpi(self._bucket), self._counts, self._starts, self._kind]
        return _Message(lambda: comm.Iallgatherv(MPI.IN_PLACE, message))

    def bind_sum(self, library: KernelLibrary) -> QueueWork:
        """Bind the sum of the rows, in order."""
        if not self._driver.has_kernels:
            return self._sum_in_numpy()
        file, constants = kernel_file(self._bucket.dtype)
        kernel = library.kernel(file, "sum_over_ranks", **constants)
        grid = (blocks(self._size, _THREADS),)
        return kernel.bind(grid, (_THREADS,), self._ranks, self._size, self._parts, self._sums)

    def _sum_in_numpy(self) -> QueueWork:
        sums, (first, *others) = self._sums.host_view(), self._parts.host_view()

        def add(stream: StreamHandle) -> None:
            np.copyto(sums, first)
            for part in others:
                np.add(sums, part, out=sums)

        return add


def for_mpi(array: DeviceArray) -> MPI.buffer:
    """Return the memory as mpi4py takes it: by address, whatever kind of memory it is."""
    return MPI.buffer.fromaddress(array.pointer, array.nbytes)


def _require_countable(bucket: Bucket, ranks: int) -> None:
    """Counts and displacements are C ints, and displacements run up to the end of the last rank's shard."""
    size = bucket.stop - bucket.start
    if size + ranks >= 2**31:
        raise UserError(
            f"--exchange device: {size} gradients leave at once, and MPI counts to 2^31: use --exchange host"
        )


def _within(phase: Phase, queue: QueueWork) -> QueueWork:
    """Return the same work, within that phase."""

    def work(stream: StreamHandle) -> None:
        with phase:
            queue(stream)

    return work


def _nothing(stream: StreamHandle) -> None:
    pass


def _traffic(buckets: Sequence[Bucket], ranks: int, rank: int, itemsize: int) -> Traffic:
    """Each other rank's shard of a bucket to it, and the sums of one's own shard to all."""
    sizes = [bucket.stop - bucket.start for bucket in buckets]
    own = [shards(size, ranks)[0][rank] for size in sizes]
    elements = sum(size - mine + mine * (ranks - 1) for size, mine in zip(sizes, own, strict=True))
    return Traffic(elements, 2 * (ranks - 1) * len(buckets))


FACTS = Facts(
    DeviceExchange.name,
    "MPI on device buffers, in panels that overlap with the backward pass",
    create,
    _traffic,
    rung=4,
    overlaps=True,
)
