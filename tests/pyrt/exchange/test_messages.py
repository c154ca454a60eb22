"""How many messages an exchange sends in a step, of how many bytes, and when."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from pyrt.driver import Driver
from pyrt.driver.cpu import CpuDriver
from pyrt.exchange import Bucket, host
from pyrt.job import Job
from tests.pyrt.exchange.counting import CountingComm
from tests.pyrt.exchange.trainer import (
    BUCKETS,
    Trainer,
    made_gradients,
)
from tests.pyrt.fakes import LateDriver


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
