"""Every exchange gives each rank the sum of all ranks' gradients and the update of NumPy, step after step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from mpi4py import MPI

from pyrt.driver import Driver
from pyrt.driver.cpu import CpuDriver
from pyrt.errors import UserError
from pyrt.exchange import Bucket, NoUpdate, host
from pyrt.exchange.device import verdict
from pyrt.exchange.registry import choices
from pyrt.job import Job
from tests import few, spread
from tests.pyrt.exchange.trainer import (
    BUCKETS,
    EXCHANGES,
    ON_HOST,
    PARAMETERS,
    PEERS,
    PIECES,
    RATE,
    SIZE,
    Trainer,
    check,
    first_parameters,
    made_gradients,
)
from tests.pyrt.fakes import LateDriver


@pytest.fixture(params=PIECES, ids="pieces of {} bytes".format)
def piece_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(host, "PIECE_BYTES", request.param)
    return request.param


def cases(names: Sequence[str]) -> Iterator[tuple[str, Sequence[Bucket], np.dtype]]:
    """(exchange, buckets, dtype); of the dtypes `make test` takes them in turn."""
    for name, (case, buckets), dtype in spread(names, list(BUCKETS.items()), ("float32", "float64"), by=2):
        print(name, case, dtype)
        yield name, buckets, np.dtype(dtype)


@pytest.mark.parallel(few([2], of=[1, 2, 3, 4]))
def test_host_memory(job: Job, piece_bytes: int) -> None:
    """On a device that does everything at once, and on one that does everything late."""
    names = ON_HOST if piece_bytes == PIECES[0] else ["host"]  # which alone has pieces
    for device in (CpuDriver, LateDriver):
        for name, buckets, dtype in cases(names):
            check(device(), job, name, buckets, dtype)


@pytest.mark.long
@pytest.mark.parallel(few([3], of=[1, 3]))
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


@pytest.mark.long
@pytest.mark.parallel(few([3], of=[1, 3]))
def test_sums_without_an_update(cpu: CpuDriver, driver: Driver, job: Job) -> None:
    """By every exchange; over peer memory on a device with kernels, of nodes of two ranks and of one."""
    node = job.comm.Split(job.rank // 2, job.rank)
    for buckets, name in spread(list(BUCKETS.values()), ON_HOST, by=2):
        check_sums(cpu, job, name, buckets, None)
    for buckets, name in spread(list(BUCKETS.values()), PEERS, by=2) if job.size > 1 else ():
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
