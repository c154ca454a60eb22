"""The exchanges over peer memory: late ranks, numbers that are none, many in a process, what they refuse."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time

import numpy as np
import pytest
from mpi4py import MPI

from pyrt.driver import Driver
from pyrt.driver.cpu import CpuDriver
from pyrt.errors import UserError
from pyrt.exchange import Bucket
from pyrt.exchange.peer import VEC4, Share, shares
from pyrt.job import Job
from tests import LONG, few, spread
from tests.pyrt.exchange.trainer import (
    BUCKETS,
    PARAMETERS,
    PEERS,
    SIZE,
    Rates,
    Trainer,
    check,
    made_gradients,
)

KINDS = pytest.mark.parametrize("kind", ["peer", "peer flags"])


def test_shares_cover_the_buckets_at_multiples_of_four():
    assert shares([Bucket(8, 17), Bucket(3, 8)], 2) == [
        Share(Bucket(8, 17), 2, 0),
        Share(Bucket(3, 8), 1, 2),
    ]
    for buckets, ranks in itertools.product(BUCKETS.values(), (2, 3, 4, 7)):
        first = 0
        for share, bucket in zip(shares(buckets, ranks), buckets, strict=True):
            assert (share.bucket, share.first) == (bucket, first)
            begin = bucket.start // VEC4 * VEC4
            assert begin + ranks * share.vec4s * VEC4 >= bucket.stop
            assert begin + ranks * (share.vec4s - 1) * VEC4 < bucket.stop
            first += share.vec4s


@KINDS
@pytest.mark.parallel(few([3], of=[2, 3, 4]))
def test_sums_and_updates(driver: Driver, job: Job, kind: str) -> None:
    for (case, buckets), dtype in spread(list(BUCKETS.items()), ("float32", "float64"), by=2):
        print(case, dtype)
        check(driver, job, kind, buckets, np.dtype(dtype))


@KINDS
@pytest.mark.parallel([3])
def test_late_ranks_change_no_bit(driver: Driver, job: Job, kind: str) -> None:
    """Let one rank or another sleep before, or behind, what it queues, in each of many steps."""
    dtype, buckets = np.dtype("f4"), BUCKETS["ragged"]
    plain, late = (Trainer(kind, driver, job, buckets, dtype) for _ in range(2))
    choices = random.Random(7)
    for step in range(100 if LONG else 30):
        gradients = made_gradients(step, job.size, dtype)[job.rank] * 1e-3
        expected = plain.step(gradients)
        who, where = choices.randrange(4 * job.size), choices.randrange(2)
        if who == job.rank and where == 0:
            time.sleep(choices.random() * 0.01)
        seen = late.step(gradients)
        if who == job.rank and where == 1:
            time.sleep(choices.random() * 0.01)
        assert seen.tobytes() == expected.tobytes(), step
    plain.exchange.close()
    late.exchange.close()


@pytest.mark.parallel([2])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_numbers_that_are_none_arrive(driver: Driver, job: Job, dtype: str) -> None:
    """One of them looks like a place where nothing has arrived; it is sent as another one."""
    trainer = Trainer("peer", driver, job, [Bucket(0, 16)], np.dtype(dtype))
    gradients = np.zeros(SIZE, dtype)
    gradients[:4] = np.inf, -np.inf, np.nan, 0
    gradients.view(f"u{gradients.itemsize}")[[4, 9, 15]] = 2 ** (8 * gradients.itemsize) - 1
    seen = trainer.step(gradients)
    for place in range(16):
        assert np.isfinite(seen[place]) == (place not in (0, 1, 2, 4, 9, 15)), place
    assert (seen[0], seen[1]) == (-np.inf, np.inf)
    trainer.exchange.close()


@pytest.mark.parametrize("kind", PEERS)
@pytest.mark.parallel([2])
def test_a_step_ends_behind_its_update(
    driver: Driver, job: Job, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of the stream: what ends it sees new parameters, each time."""
    seen = np.zeros(PARAMETERS, "f4")
    monkeypatch.setattr(
        Rates, "bind_end", lambda rates: lambda stream: rates.parameters.queue_download(seen, stream)
    )
    trainer = Trainer(kind, driver, job, BUCKETS["ragged"], np.dtype("f4"))
    for step in range(3):
        before, parameters = (
            seen.tobytes(),
            trainer.step(made_gradients(step, job.size, trainer.dtype)[job.rank]),
        )
        assert before != seen.tobytes() == parameters.tobytes()
    trainer.exchange.close()


@KINDS
@pytest.mark.parallel([2])
def test_a_rank_without_memory_ends_all(
    driver: Driver, job: Job, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one does not wait for its mailbox."""
    if job.rank == 1:

        def allocate(nbytes: int) -> int:
            raise UserError("no memory is left on rank 1")

        monkeypatch.setattr(driver, "allocate_mapped", allocate)
    with pytest.raises(UserError, match="no memory is left on rank 1"):
        Trainer(kind, driver, job, [Bucket(0, 16)], np.dtype("f4"))


@KINDS
@pytest.mark.parallel([2])
def test_nothing_is_left_behind(driver: Driver, job: Job, kind: str) -> None:
    """Exchanges of changing sizes, one after another, and two at once that close in any order."""
    before, turns = 0, 20 if LONG else 8
    for turn in range(turns):
        buckets = [Bucket(0, 4 + 56 * turn)]
        first, second = (Trainer(kind, driver, job, buckets, np.dtype("f4")) for _ in range(2))
        for trainer in (first, second):
            trainer.step(made_gradients(turn, job.size, np.dtype("f4"))[job.rank])
        for trainer in (first, second) if turn % 2 else (second, first):
            trainer.exchange.close()
        for trainer in (first, second):
            driver.free(trainer.gradients.pointer)  # which others may have used
        if turn == turns // 2 - 1:
            before = len(os.listdir("/proc/self/fd"))
    assert len(os.listdir("/proc/self/fd")) == before
    assert "watchdog" not in [thread.name for thread in threading.enumerate()]


@KINDS
@pytest.mark.parallel([2])
def test_a_rank_that_has_given_up_waits_for_nobody(driver: Driver, job: Job, kind: str) -> None:
    """Rank 1 makes no second step, which rank 0's kernel waits for: what the watchdog says ends it."""
    gradients = made_gradients(0, job.size, np.dtype("f4"))[job.rank]
    trainer = Trainer(kind, driver, job, BUCKETS["ragged"], np.dtype("f4"))
    trainer.step(gradients)
    if job.rank == 0:
        seconds = 0.5
        timer = threading.Timer(seconds, trainer.exchange._memory.give_up)
        started = time.monotonic()
        timer.start()
        trainer.step(gradients)
        assert seconds <= time.monotonic() - started < 10
    job.comm.Barrier()
    trainer.exchange.close()


class TouchedComm:
    """MPI's communicator, and the names of all that it was asked for."""

    def __init__(self, comm: MPI.Comm) -> None:
        self._comm = comm
        self.touched: list[str] = []

    def __getattr__(self, name: str) -> object:
        self.touched.append(name)
        return getattr(self._comm, name)


@KINDS
@pytest.mark.parallel([3])
def test_a_step_sends_nothing_through_mpi(driver: Driver, job: Job, kind: str) -> None:
    comm, node = TouchedComm(job.comm), TouchedComm(job.node)
    touched = Job(comm, node, job.library, job.cores)
    trainer = Trainer(kind, driver, touched, BUCKETS["with a loss"], np.dtype("f4"))
    assert "allgather" in node.touched
    comm.touched.clear()
    node.touched.clear()
    for step in range(3):
        trainer.step(made_gradients(step, job.size, trainer.dtype)[job.rank])
        assert comm.touched == node.touched == []
    trainer.exchange.close()


def test_it_needs_kernels_and_one_node(job: Job) -> None:
    class Two:
        rank, size = 0, 2

    class One:
        rank, size = 0, 1

    with pytest.raises(UserError, match="CPU has no kernels: use host or blocking"):
        Trainer("peer", CpuDriver(), Job(Two(), Two(), "no MPI", cores=1.0), [Bucket(0, 4)], np.dtype("f4"))
    with pytest.raises(UserError, match="ranks of one node: use"):
        Trainer("peer", CpuDriver(), Job(Two(), One(), "no MPI", cores=1.0), [Bucket(0, 4)], np.dtype("f4"))
