"""What the exchange `device` promises beside right sums (test_exchange.py): order, refusals, no hanging."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyrt import exchange
from pyrt.driver.cpu import CpuDriver
from pyrt.errors import UserError
from pyrt.exchange import Bucket, device
from pyrt.exchange.device import DeviceExchange, create, shards
from pyrt.job import Job
from pyrt.mpi_probe import probe_cache
from pyrt.mpi_probe.libraries import SENDRECV, SHARDS, WORKS, Verdict
from tests import few, mpi
from tests.pyrt.exchange.trainer import BUCKETS, Trainer, check
from tests.pyrt.fakes import LateDriver

JOBS = str(Path(__file__).parents[1] / "scripts" / "device_jobs.py")
OPEN_MPI = "Open MPI v5.0.7, package: Open MPI builder@host Distribution, ident: 5.0.7, Feb 14, 2025"
F4 = np.dtype("f4")


@pytest.mark.parametrize(("size", "ranks"), [(0, 3), (1, 4), (7, 3), (8, 4), (1009, 4), (5, 1)])
def test_shards_cover_a_bucket_in_rank_order(size: int, ranks: int) -> None:
    counts, starts = shards(size, ranks)
    assert [start + count for start, count in zip(starts, counts, strict=True)] == [*starts[1:], size]
    assert starts[0] == 0
    assert max(counts) - min(counts) <= 1


@pytest.mark.parallel(few([3], of=[2, 3, 4]))
def test_one_iallreduce_where_the_mpi_can(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "verdict", lambda job, driver: Verdict("", iallreduce=True, is_proven=True))
    for driver, buckets, dtype in (
        (kind(), buckets, np.dtype(dtype))
        for kind in (CpuDriver, LateDriver)
        for buckets in BUCKETS.values()
        for dtype in ("float32", "float64")
    ):
        check(driver, job, "device", buckets, dtype)


@pytest.mark.parallel(few([3], of=[2, 3]))
def test_ranks_whose_kernels_end_at_other_times_make_the_same_calls(job: Job) -> None:
    """Each rank's events are late by turns of its own; with one communicator calls would be mixed up."""

    class Moody(LateDriver):
        def is_done(self, event: object) -> bool:
            return bool(dice.integers(3) == job.rank) and super().is_done(event)

    dice = np.random.default_rng(job.rank)
    for _ in range(5):
        check(Moody(), job, "device", BUCKETS["many"], F4)


class Call:
    """A request; over when the communicator says so."""

    def __init__(self, comm: DeafComm) -> None:
        self._comm = comm

    def Test(self) -> bool:
        return self._comm.arrives


class DeafComm:
    """Two ranks, one of them this process; no call is over before ``arrives``. It moves nothing."""

    rank, size = 0, 2

    def __init__(self, calls: list[str] | None = None, answer: object = None) -> None:
        self.calls: list[str] = calls if calls is not None else []
        self.arrives = False
        self.freed = False

    def Dup(self) -> DeafComm:
        return DeafComm(self.calls)

    def Free(self) -> None:
        assert not self.freed
        self.freed = True

    def bcast(self, what: object) -> object:
        return what

    def Ialltoallv(self, send: list, receive: list) -> Call:
        self.calls.append(f"all to all, {sum(send[1])}")
        return Call(self)

    def Iallgatherv(self, send: int, receive: list) -> Call:
        self.calls.append(f"all gather, {sum(receive[1])}")
        return Call(self)


THREE = [Bucket(200, 300), Bucket(110, 200), Bucket(0, 110)]


def deaf(driver: CpuDriver) -> tuple[Trainer, DeafComm, DeafComm]:
    """An exchange, and its two communicators."""
    comm = DeafComm()
    trainer = Trainer("device", driver, Job(comm, comm, "an MPI", cores=1.0), THREE, F4)
    assert isinstance(trainer.exchange, DeviceExchange)
    return trainer, comm, trainer.exchange._gathers


def test_buckets_are_exchanged_while_later_ones_are_still_made(cpu: CpuDriver) -> None:
    trainer, comm, gathers = deaf(cpu)
    trainer.exchange.ready(0)
    assert comm.calls == ["all to all, 100"]
    comm.arrives = True
    trainer.exchange.ready(1)
    assert comm.calls == ["all to all, 100", "all to all, 90", "all gather, 100", "all gather, 90"]
    assert trainer.update.seen == []
    gathers.arrives = True
    trainer.exchange.ready(2)
    assert [(start, stop) for start, stop, _ in trainer.update.seen] == THREE
    trainer.exchange.finish()
    trainer.exchange.close()


def test_mpi_is_not_called_before_a_buckets_kernels_have_ended() -> None:
    driver = LateDriver()
    trainer, comm, _ = deaf(driver)
    driver.queue(trainer.streams.compute, lambda: None)
    driver.queue(trainer.streams.compute, lambda: None)
    trainer.exchange.ready(0)
    assert comm.calls == []
    driver.synchronize()
    trainer.exchange.ready(1)
    assert comm.calls[0] == "all to all, 100"
    trainer.exchange.close()


def test_close_waits_for_nobody_and_may_be_called_twice(cpu: CpuDriver) -> None:
    trainer, _, gathers = deaf(cpu)
    trainer.exchange.ready(0)
    trainer.exchange.close()
    trainer.exchange.close()
    assert gathers.freed


class TestNoProgress:
    @pytest.fixture
    def stopped(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
        """With what the job was ended."""
        stopped: list[tuple[str, int]] = []
        monkeypatch.setattr(device, "LIMIT", 0.4)
        monkeypatch.setattr(Job, "stop", lambda job, message, code: stopped.append((message, code)))
        return stopped

    def test_calls_that_never_end_stop_the_job(
        self, cpu: CpuDriver, stopped: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Stopped(Exception):
            pass

        def pause(job: Job) -> None:
            time.sleep(0.001)
            if stopped:
                raise Stopped

        monkeypatch.setattr(Job, "pause", pause)
        trainer, _, _ = deaf(cpu)
        start = time.monotonic()
        for bucket in range(3):
            trainer.exchange.ready(bucket)
        with pytest.raises(Stopped):
            trainer.exchange.finish()
        trainer.exchange.close()
        assert 0.3 < time.monotonic() - start < 10
        ((message, code),) = stopped
        assert code == 1
        assert message.startswith("--exchange device: no progress for 0.4 s: an MPI may hang")
        assert "--exchange host" in message and "\n" not in message

    def test_a_call_that_never_returns_stops_the_job(
        self, cpu: CpuDriver, stopped: list[tuple[str, int]]
    ) -> None:
        trainer, comm, _ = deaf(cpu)

        def hang(send: list, receive: list) -> Call:
            deadline = time.monotonic() + 10
            while not stopped and time.monotonic() < deadline:
                time.sleep(0.01)
            return Call(comm)

        comm.Ialltoallv = hang  # type: ignore[method-assign]
        trainer.exchange.ready(0)
        trainer.exchange.close()
        assert len(stopped) == 1

    def test_what_happens_outside_and_slow_kernels_do_not(self, stopped: list[tuple[str, int]]) -> None:
        driver = LateDriver()
        trainer, comm, gathers = deaf(driver)
        comm.arrives = gathers.arrives = True
        late = time.monotonic() + 1.0
        driver.is_done = lambda event: time.monotonic() > late and LateDriver.is_done(driver, event)  # type: ignore[method-assign]
        for bucket in range(3):
            trainer.exchange.ready(bucket)
        trainer.exchange.finish()  # waits for the kernels
        time.sleep(0.6)
        trainer.exchange.close()
        assert stopped == []

    def test_a_whole_job_ends_with_one_line(self) -> None:
        done = mpi.mpirun(2, sys.executable, JOBS, "deaf")
        assert done.returncode != 0
        ours = [line for line in done.stderr.splitlines() if "device_jobs.py" in line]
        assert len(ours) == 1, done.stderr
        assert "error: --exchange device: no progress for 4 s" in ours[0]
        assert "Traceback" not in done.stderr


class TestRefusals:
    """On a GPU; elsewhere device memory is the host's own."""

    @pytest.fixture
    def made(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Trainer:
        monkeypatch.setenv("PYRT_CACHE_DIR", str(tmp_path))
        monkeypatch.setattr(device.MPI, "Get_library_version", lambda: OPEN_MPI)
        monkeypatch.setattr(CpuDriver, "name", "cuda")
        monkeypatch.setattr(device, "has_cuda_support", lambda: True)
        return self._make()

    def _make(self) -> Trainer:
        comm = DeafComm()
        trainer = Trainer("device", CpuDriver(), Job(comm, comm, "Open MPI v5.0.7", cores=1.0), THREE, F4)
        trainer.exchange.close()
        return trainer

    def test_a_library_that_can_is_not_refused(self, made: Trainer) -> None:
        assert made.exchange.name == "device"
        assert made.exchange._gathers is None  # closed; it had one: no Iallreduce on Open MPI

    def test_a_library_without_cuda(self, made: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(device, "has_cuda_support", lambda: False)
        with pytest.raises(UserError, match=r"^--exchange device: Open MPI 5\.0\.7 is not built for device"):
            self._make()

    def test_what_the_probe_found(self, made: Trainer) -> None:
        key = probe_cache.key(Job(DeafComm(), DeafComm(), "", 1.0), CpuDriver())
        probe_cache.write(key, {SENDRECV: "hangs"})
        with pytest.raises(UserError, match="hangs in Sendrecv on device buffers, as `mpirun"):
            self._make()
        probe_cache.write(key, {SENDRECV: WORKS, SHARDS: WORKS})
        self._make()

    def test_a_bucket_that_mpi_cannot_count(self, cpu: CpuDriver) -> None:
        trainer, comm, _ = deaf(cpu)
        trainer.exchange.close()
        gradients: Any = np.broadcast_to(np.zeros(1, F4), 2**31)  # its size alone counts: 4 bytes of memory
        setting = exchange.ExchangeContext(
            cpu,
            trainer.streams,
            Job(comm, comm, "", 1.0),
            comm,
            None,
            None,
            gradients,
            [Bucket(0, 2**31 - 2)],
            None,
        )
        with pytest.raises(UserError, match="MPI counts to 2\\^31"):
            create(setting)
