"""Every exchange gives each rank the sum of all ranks' gradients and the update of NumPy, step after step."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from nn.launch.kernels import Kernels
from nn.launch.update import Segment, UpdateArrays
from nn.launch.update import Update as UpdateWork
from nn.optimisers import Sgd
from pyrt import exchange
from pyrt.arrays import DeviceArray
from pyrt.driver import Driver, StreamHandle
from pyrt.driver.cpu import CpuDriver
from pyrt.errors import UserError
from pyrt.exchange import Bucket, ExchangeContext, NoUpdate, PackedUpdate, QueueWork, Update, host
from pyrt.exchange.device import verdict
from pyrt.exchange.peer import Peers
from pyrt.exchange.peer_flags import PeerFlagsExchange
from pyrt.exchange.registry import choices
from pyrt.job import Job
from pyrt.kernels import KernelLibrary
from pyrt.phases import Phases
from pyrt.streams import Streams
from tests import few
from tests.pyrt.fakes import LateDriver

RATE = 0.5
STEPS = 3
EXCHANGES = [*choices(), "local"]
SIZE = 1200
PARAMETERS = 1136
"""Gradients behind these are of no parameter, as the loss of a step."""
# The order in which a backward pass fills buckets is not that of memory. What lies between is padding.
BUCKETS = {
    "one bucket": [Bucket(0, 64)],
    "one element": [Bucket(5, 6)],
    "ragged": [Bucket(1100, 1101), Bucket(256, 1037), Bucket(7, 256), Bucket(0, 7)],
    "many": [Bucket(start, start + 13) for start in range(611, 0, -13)],
    "with a loss": [Bucket(600, 1137), Bucket(0, 600)],
    "with more than a piece behind": [Bucket(0, 1200)],
}
PEERS = ("peer", "hierarchical", "peer flags")
"""They need kernels, and leave no sums of gradients."""
ON_HOST = [name for name in choices() if name not in PEERS]
PIECES = (host.PIECE_BYTES, 256)


class Rates:
    """The update p -= RATE g as a kernel, or where there are no kernels in NumPy."""

    def __init__(self, driver: Driver, parameters: DeviceArray, gradients: DeviceArray) -> None:
        self.driver, self.parameters, self.gradients = driver, parameters, gradients
        self.seen: list[tuple[int, int, np.ndarray]] = []
        """Buckets in the order of their updates, with the gradients that were applied (without kernels)."""
        self.steps = 0
        """That have ended."""
        self.refreshed: list[np.ndarray] = []
        """Parameters that others have written, as they were then."""

    def bind(self, *buckets: Bucket, ends_step: bool = False) -> QueueWork:
        calls = [self._bind(start, min(stop, PARAMETERS)) for start, stop in buckets if start < PARAMETERS]
        if ends_step:
            calls.append(lambda stream: queue(self.driver, stream, self._end))
        return lambda stream: [call(stream) for call in calls]

    def refresh(self) -> QueueWork:
        seen = np.empty(PARAMETERS, self.parameters.dtype)

        def queue_refresh(stream: StreamHandle) -> None:
            self.parameters.queue_download(seen, stream)
            if self.driver.has_kernels:  # which notes nothing in the order of a stream
                self.driver.synchronize_stream(stream)
            queue(self.driver, stream, lambda: self.refreshed.append(seen.copy()))

        return queue_refresh

    def for_peers(self, peers: Peers) -> PackedUpdate:
        segments = [self._segment(*bucket) for bucket in peers.buckets]
        return self._arrays.for_peers(self._kernels, segments, None)

    def bind_end(self) -> QueueWork:
        return lambda stream: self._end()

    @property
    def _kernels(self) -> Kernels:
        return Kernels(KernelLibrary(self.driver), self.gradients.dtype)

    @property
    def _arrays(self) -> UpdateArrays:
        return UpdateArrays(Sgd(RATE, 0.0, 0.0), self.parameters, self.gradients, {}, None)

    def _segment(self, start: int, stop: int) -> Segment:
        return Segment(start, max(0, min(stop, PARAMETERS) - start), 0)

    def _end(self) -> None:
        self.steps += 1

    def _bind(self, start: int, stop: int) -> QueueWork:
        if self.driver.has_kernels:
            return UpdateWork(self._arrays, [self._segment(start, stop)]).on_device(self._kernels)
        parameters, gradients = self.parameters.rows(start, stop), self.gradients.rows(start, stop)

        def update() -> None:
            self.seen.append((start, stop, gradients.host_view().copy()))
            parameters.host_view()[:] -= gradients.dtype.type(RATE) * gradients.host_view()

        return lambda stream: queue(self.driver, stream, update)


def queue(driver: Driver, stream: StreamHandle, work: Callable[[], None]) -> None:
    if isinstance(driver, LateDriver):
        driver.queue(stream, work)
    else:
        work()


class Trainer:
    """One rank's flat buffers, and what one exchange makes of them."""

    def __init__(
        self,
        name: str,
        driver: Driver,
        job: Job,
        buckets: Sequence[Bucket],
        dtype: np.dtype,
        node: MPI.Comm | None = None,
        update: Update | None = None,
    ) -> None:
        self.driver, self.buckets, self.dtype = driver, buckets, dtype
        self.streams = Streams(driver)
        self.gradients = DeviceArray.from_host(driver, np.full(SIZE, 1e6, dtype))
        self.parameters = DeviceArray.from_host(driver, first_parameters(dtype))
        self.update = Rates(driver, self.parameters, self.gradients)
        phases = Phases(time.perf_counter())
        phases.use_device(driver)
        setting = ExchangeContext(
            driver,
            self.streams,
            job,
            node or job.node,
            phases,
            self.parameters,
            self.gradients,
            buckets,
            update or self.update,
        )
        no_choice = name == PeerFlagsExchange.name
        self.exchange = PeerFlagsExchange(setting) if no_choice else exchange.create(name, setting)

    def step(self, gradients: np.ndarray) -> np.ndarray:
        """The parameters that work queued after one step on this rank's gradients sees."""
        compute = self.streams.compute
        for index, (start, stop) in enumerate(self.buckets):
            self.gradients.rows(start, stop).queue_upload(gradients[start:stop], compute)
            self.exchange.ready(index)
        self.exchange.finish()
        seen = np.empty(PARAMETERS, self.dtype)
        self.parameters.queue_download(seen, compute)
        self.driver.synchronize_stream(compute)
        return seen


def first_parameters(dtype: np.dtype) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(PARAMETERS).astype(dtype)


def made_gradients(step: int, ranks: int, dtype: np.dtype) -> np.ndarray:
    """Gradients (ranks, SIZE) of a step."""
    return np.random.default_rng([step, ranks]).standard_normal((ranks, SIZE)).astype(dtype)


def check(
    driver: Driver,
    job: Job,
    name: str,
    buckets: Sequence[Bucket],
    dtype: np.dtype,
    node: MPI.Comm | None = None,
) -> None:
    """Some steps of two exchanges of that name agree with NumPy, with each other, and on all ranks."""
    covered = np.concatenate([np.arange(*bucket) for bucket in buckets])
    inside = covered[covered < PARAMETERS]
    takes_over = name == "root" and job.rank > 0
    keeps_sums = not takes_over and (job.size == 1 or name not in PEERS)
    summed = covered if keeps_sums else covered[covered >= PARAMETERS]
    trainer, again = (Trainer(name, driver, job, buckets, dtype, node) for _ in range(2))
    expected = first_parameters(dtype).astype(np.float64)
    close = {"rtol": 0, "atol": 20 * job.size * STEPS * np.finfo(dtype).eps}

    check_what_it_updates(trainer, job, covered)
    for step in range(STEPS):
        gradients = made_gradients(step, job.size, dtype)
        total = gradients.astype(np.float64).sum(axis=0)
        expected[inside] -= RATE * total[inside]

        parameters = trainer.step(gradients[job.rank])
        np.testing.assert_allclose(parameters, expected, **close)
        np.testing.assert_allclose(trainer.gradients.to_host()[summed], total[summed], **close)

        if not driver.has_kernels:
            own = [place for bucket in trainer.exchange.updates for place in range(*bucket)]
            assert [place for place in own if place < PARAMETERS] == list([] if takes_over else inside)
            check_what_was_applied(trainer.update, total, [] if takes_over else inside, close)

        assert trainer.update.steps == step + 1
        bits = parameters.tobytes()
        assert again.step(gradients[job.rank]).tobytes() == bits, "not the same bits twice"
        assert job.comm.bcast(bits) == bits, "not the same parameters on every rank"
        assert [seen.tobytes() for seen in trainer.update.refreshed] == [bits] * takes_over
        trainer.update.refreshed.clear()

    for each in (trainer, again, trainer):
        each.exchange.close()


def check_what_it_updates(trainer: Trainer, job: Job, covered: np.ndarray) -> None:
    """Each rank all that is in a bucket, or a part of it: each place is of as many ranks, of one at least."""
    mine = np.zeros(SIZE, int)
    for start, stop in trainer.exchange.updates:
        mine[start:stop] += 1
    everywhere = np.zeros(SIZE, int)
    everywhere[covered] = 1
    ranks = job.comm.allreduce(mine)
    assert np.array_equal(ranks, max(1, ranks.max()) * everywhere)
    assert mine.max() <= 1


def check_what_was_applied(
    update: Rates, total: np.ndarray, inside: Sequence[int] | np.ndarray, close: dict[str, float]
) -> None:
    """To each parameter ``inside`` its gradient of ``total``, once, in this order."""
    for start, stop, applied in update.seen:
        np.testing.assert_allclose(applied, total[start:stop], **close)
    places = [place for start, stop, _ in update.seen for place in range(start, stop)]
    assert places == list(inside)
    update.seen.clear()


@pytest.fixture(params=PIECES, ids="pieces of {} bytes".format)
def piece_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(host, "PIECE_BYTES", request.param)
    return request.param


def cases(names: Sequence[str]) -> Iterator[tuple[str, Sequence[Bucket], np.dtype]]:
    """(exchange, buckets, dtype)"""
    for name, (case, buckets), dtype in itertools.product(names, BUCKETS.items(), ("float32", "float64")):
        print(name, case, dtype)
        yield name, buckets, np.dtype(dtype)


@pytest.mark.parallel(few([1, 3], of=[1, 2, 3, 4]))
def test_host_memory(job: Job, piece_bytes: int) -> None:
    """On a device that does everything at once, and on one that does everything late."""
    names = ON_HOST if piece_bytes == PIECES[0] else ["host"]  # which alone has pieces
    for device in (CpuDriver, LateDriver):
        for name, buckets, dtype in cases(names):
            check(device(), job, name, buckets, dtype)


@pytest.mark.parallel([1, 3])
def test_ranks_that_share_a_device(driver: Driver, job: Job) -> None:
    """Those over peer memory: test_peer.py, test_hierarchical.py."""
    works = verdict(job, driver).is_proven  # elsewhere it is refused: tests/pyrt/exchange/test_device.py
    names = [name for name in ON_HOST if name != "device" or works]
    for name, buckets, dtype in cases(names if job.size > 1 else ["local"]):
        check(driver, job, name, buckets, dtype)


@pytest.mark.parallel([2])
def test_small_pieces_on_a_device(driver: Driver, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "PIECE_BYTES", 256)
    for case in ("ragged", "with a loss"):
        check(driver, job, "host", BUCKETS[case], np.dtype("f4"))


def check_sums(driver: Driver, job: Job, name: str, buckets: Sequence[Bucket], node: MPI.Comm | None) -> None:
    """Check that without an update all ranks have all sums, and keep what is in no bucket, and parameters."""
    dtype = np.dtype("f8")
    trainer = Trainer(name, driver, job, buckets, dtype, node, NoUpdate())
    expected = np.full(SIZE, 1e6)
    for step in range(2):
        gradients = made_gradients(step, job.size, dtype)
        for bucket in buckets:
            expected[slice(*bucket)] = gradients[:, slice(*bucket)].sum(axis=0)
        parameters = trainer.step(gradients[job.rank])
        np.testing.assert_allclose(trainer.gradients.to_host(), expected, rtol=1e-13, atol=1e-13)
        np.testing.assert_array_equal(parameters, first_parameters(dtype))
    trainer.exchange.close()


@pytest.mark.parallel([1, 3])
def test_sums_without_an_update(cpu: CpuDriver, driver: Driver, job: Job) -> None:
    """By every exchange; over peer memory on a device with kernels, of nodes of two ranks and of one."""
    node = job.comm.Split(job.rank // 2, job.rank)
    for buckets in BUCKETS.values():
        for name in ON_HOST:
            check_sums(cpu, job, name, buckets, None)
        for name in PEERS if job.size > 1 else ():
            check_sums(driver, job, name, buckets, node if name == "hierarchical" else None)
    node.Free()


@pytest.mark.parametrize("buckets", [[], [Bucket(0, 3), Bucket(3, 3)], [Bucket(0, SIZE + 1)]], ids=str)
def test_buckets_that_hold_no_gradients_are_refused(
    cpu: CpuDriver, job: Job, buckets: Sequence[Bucket]
) -> None:
    with pytest.raises(ValueError, match="bucket"):
        Trainer("host", cpu, job, buckets, np.dtype("f4"))


def test_numbers_that_no_exchange_sums_are_refused(cpu: CpuDriver, job: Job) -> None:
    for name in choices():
        with pytest.raises(UserError, match="sums float32 and float64, not int32"):
            Trainer(name, cpu, job, BUCKETS["ragged"], np.dtype("i4"))


class CountingComm:
    """MPI's communicator, and notes of the gradients and parameters that go through it."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.rank, self.size = comm.rank, comm.size
        self.notes: list[tuple[str, int, int]] = []
        """Calls, with the bytes that this rank gives the others and those that it takes from them; a sum of n
        numbers counts n each."""

    def Gather(self, mine: np.ndarray, gathered: np.ndarray | None, root: int) -> None:
        self.notes.append(
            ("Gather", mine.nbytes, 0) if gathered is None else ("Gather", 0, gathered[1:].nbytes)
        )
        self._comm.Gather(mine, gathered, root)

    def Bcast(self, array: np.ndarray, root: int) -> None:
        given = array.nbytes if self.rank == root else 0
        self.notes.append(("Bcast", given, array.nbytes - given))
        self._comm.Bcast(array, root)

    def Allreduce(self, mine: object, summed: np.ndarray) -> None:
        self.notes.append(("Allreduce", summed.nbytes, summed.nbytes))
        self._comm.Allreduce(mine, summed)

    def Iallreduce(self, mine: np.ndarray, summed: np.ndarray) -> Any:
        self.notes.append(("Iallreduce", mine.nbytes, summed.nbytes))
        return self._comm.Iallreduce(mine, summed)

    def Dup(self) -> CountingComm:
        """A communicator whose calls are noted here, too."""
        copy = CountingComm(self._comm.Dup())
        copy.notes = self.notes
        return copy

    def Free(self) -> None:
        self._comm.Free()

    def Ialltoallv(self, given: list[Any], taken: list[Any]) -> Any:
        self.notes.append(("Ialltoallv", self._to_others(given), self._to_others(taken)))
        return self._comm.Ialltoallv(given, taken)

    def Iallgatherv(self, given: object, taken: list[Any]) -> Any:
        """In place: what this rank gives is its part of what it takes, and goes to each of the others."""
        assert given is MPI.IN_PLACE
        _, counts, _, kind = taken
        mine = counts[self.rank] * kind.Get_size() * (self.size - 1)
        self.notes.append(("Iallgatherv", mine, self._to_others(taken)))
        return self._comm.Iallgatherv(given, taken)

    def _to_others(self, message: list[Any]) -> int:
        """Bytes of a message of a part for each rank, but for this one's own."""
        _, counts, _, kind = message
        return (sum(counts) - counts[self.rank]) * kind.Get_size()


@pytest.mark.parallel([2, 3, 4])
def test_messages_of_a_step(cpu: CpuDriver, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many, and of how many bytes: 1137 float64 in two buckets, with pieces of about 1024 bytes."""
    monkeypatch.setattr(host, "PIECE_BYTES", 1024)
    n, others = 1137 * 8, job.size - 1
    first, second = [136 * 8, 136 * 8, 136 * 8, 129 * 8], [120 * 8] * 5
    root = (
        [("Gather", 0, n * others), ("Bcast", n, 0)] if job.rank == 0 else [("Gather", n, 0), ("Bcast", 0, n)]
    )
    expected = {
        "root": root,
        "blocking": [("Allreduce", n, n)],
        "host": [("Iallreduce", size, size) for size in first + second],
    }
    for name in expected:
        comm = CountingComm(job.comm)
        trainer = Trainer(
            name, cpu, Job(comm, comm, job.library, job.cores), BUCKETS["with a loss"], np.dtype("f8")
        )
        for step in range(2):
            trainer.step(made_gradients(step, job.size, trainer.dtype)[job.rank])
            assert comm.notes == expected[name], name
            comm.notes.clear()
        trainer.exchange.close()


@pytest.mark.parallel([4])
def test_messages_of_a_step_on_device_buffers(cpu: CpuDriver, job: Job) -> None:
    """537 and 600 float64: a rank's shard of a bucket comes from each of the others, and goes to each."""
    comm = CountingComm(job.comm)
    trainer = Trainer(
        "device", cpu, Job(comm, comm, job.library, job.cores), BUCKETS["with a loss"], np.dtype("f8")
    )
    others = job.size - 1
    expected = []
    for size in (537, 600):
        shard = size // job.size + (job.rank < size % job.size)
        away, here = (size - shard) * 8, others * shard * 8
        expected += [("Ialltoallv", away, here), ("Iallgatherv", here, away)]
    for step in range(2):
        trainer.step(made_gradients(step, job.size, trainer.dtype)[job.rank])
        assert sorted(comm.notes) == sorted(expected)
        comm.notes.clear()
    trainer.exchange.close()


@pytest.mark.parametrize("itemsize", [4, 8])
@pytest.mark.parametrize("size", [1, 3, 4, 5, 63, 64, 96, 97, 1000, 1023])
def test_pieces(monkeypatch: pytest.MonkeyPatch, itemsize: int, size: int) -> None:
    """They are the bucket, begin at whole vectors from its start, and are of about the size that is asked."""
    monkeypatch.setattr(host, "PIECE_BYTES", 256)
    found = host.pieces(Bucket(7, 7 + size), itemsize)
    assert [place for piece in found for place in range(*piece)] == list(range(7, 7 + size))
    assert all((start - 7) % 4 == 0 and start < stop for start, stop in found)
    sizes = [(stop - start) * itemsize for start, stop in found]
    assert max(sizes) <= 1.5 * 256 and (len(found) == 1 or sizes[0] > 0.6 * 256)


class SlowComm:
    """Two ranks with the same gradients, one of them this process; sums arrive when ``arrives`` is set."""

    rank, size = 0, 2

    def __init__(self) -> None:
        self.posted: list[int] = []
        self.arrives = False

    def Iallreduce(self, mine: np.ndarray, summed: np.ndarray) -> SlowComm:
        self.posted.append(mine.size)
        np.multiply(mine, self.size, out=summed)
        return self

    def Test(self) -> bool:
        return self.arrives


def with_slow_ranks(driver: Driver, buckets: Sequence[Bucket]) -> tuple[SlowComm, Trainer]:
    comm = SlowComm()
    return comm, Trainer("host", driver, Job(comm, comm, "no MPI", cores=1.0), buckets, np.dtype("f8"))


def test_host_sums_and_updates_while_later_buckets_are_still_made(
    cpu: CpuDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "PIECE_BYTES", 400)
    comm, trainer = with_slow_ranks(cpu, [Bucket(200, 300), Bucket(100, 200), Bucket(0, 100)])
    trainer.exchange.ready(0)
    trainer.exchange.ready(1)
    assert comm.posted == [52, 48, 52, 48]
    assert trainer.update.seen == []
    comm.arrives = True
    trainer.exchange.ready(2)
    assert [(start, stop) for start, stop, _ in trainer.update.seen] == [
        (200, 252), (252, 300), (100, 152), (152, 200), (0, 52), (52, 100)
    ]  # fmt: skip
    assert trainer.update.steps == 1


def test_a_piece_is_applied_while_later_ones_of_its_bucket_still_come_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The device does a piece of work each time it is asked how far it is; sums take no time."""
    monkeypatch.setattr(host, "PIECE_BYTES", 400)
    comm, trainer = with_slow_ranks(LateDriver(), [Bucket(0, 150)])
    comm.arrives = True
    posted_before = []
    apply = trainer.exchange._apply
    monkeypatch.setattr(
        trainer.exchange, "_apply", lambda piece: (posted_before.append(len(comm.posted)), apply(piece))
    )
    trainer.exchange.ready(0)
    trainer.exchange.finish()
    assert posted_before == [1, 2, 3]


def test_closing_waits_for_no_sum_that_an_error_has_left_behind(cpu: CpuDriver) -> None:
    comm, trainer = with_slow_ranks(cpu, [Bucket(100, 200), Bucket(0, 100)])
    trainer.exchange.ready(0)
    assert len(comm.posted) == 1
    trainer.exchange.close()
    trainer.exchange.close()
    assert trainer.update.seen == []


@pytest.mark.parallel([2])
def test_local_updates_each_rank_with_its_own_gradients(cpu: CpuDriver, job: Job) -> None:
    trainer = Trainer("local", cpu, job, BUCKETS["with a loss"], np.dtype("f8"))
    gradients = made_gradients(0, job.size, trainer.dtype)[job.rank]
    expected = first_parameters(trainer.dtype) - RATE * gradients[:PARAMETERS]
    np.testing.assert_array_equal(trainer.step(gradients), expected)
    assert trainer.update.steps == 1


def test_one_rank_needs_no_exchange(cpu: CpuDriver, job: Job) -> None:
    names = {Trainer(name, cpu, job, BUCKETS["ragged"], np.dtype("f4")).exchange.name for name in EXCHANGES}
    assert names == {"local"}
