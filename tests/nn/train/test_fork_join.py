"""nn/train/fork_join.py: products whose parts other ranks compute; a training of rank 0 with their help."""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from nn.app.options import Options
from nn.launch.gemm.product import Product
from nn.train.diverged import Diverged
from nn.train.fork_join import RECEIVING, SENDING, SERVING, Fork, Shape, _Forked, serve
from pyrt.arrays import DeviceArray
from pyrt.devices import Device
from pyrt.driver.cpu import CpuDriver
from pyrt.errors import UserError
from pyrt.job import AgreedError, join
from pyrt.phases import Phases
from pyrt.runtime import Runtime
from tests import few
from train import train

SMALL = Options(
    hidden=(7, 2), epochs=2, batch=50, samples=120, lr=0.5, dtype="float64", device="cpu", plan="fork-join"
)


def forked(products: list[Product], phases: Phases) -> object:
    """Rank 0 calls each product twice, the others help; what rank 0 sends in the end."""
    job = join()
    comm = job.comm.Dup()
    if job.rank > 0:
        return serve(comm, Runtime(job, Device(CpuDriver(), ""), phases), None)
    fork = Fork(comm, phases)
    calls = [_Forked(fork, product, None) for product in products]
    for _ in range(2):
        for product, call in zip(products, calls, strict=True):
            product.D.host_view()[:] = np.nan
            call(None)
    fork.end("the end")
    return "the end"


@pytest.mark.parallel(few([3], of=[1, 3, 4]))
def test_parts_of_products_are_the_whole() -> None:
    """In all layouts and ragged sizes, of columns of wider operands; with fewer rows than ranks."""
    cpu = CpuDriver()
    rng, products, expected = np.random.default_rng(7), [], []
    for number, (M, N, K) in enumerate([(7, 5, 3), (2, 3, 11), (1, 1, 1), (13, 4, 6)] * 4):
        ta, tb = bool(number // 4 % 2), bool(number // 8)
        a, b = rng.normal(size=(K, M) if ta else (M, K)), rng.normal(size=(N, K) if tb else (K, N))
        A, B = (DeviceArray.from_host(cpu, np.pad(one, ((0, 0), (1, 2)))) for one in (a, b))
        A, B = A.columns(1, 1 + a.shape[1]), B.columns(1, 1 + b.shape[1])
        products.append(Product(DeviceArray.empty(cpu, (M, N), "f8"), A, B, ta, tb))
        expected.append((a.T if ta else a) @ (b.T if tb else b))
    phases = Phases(time.perf_counter())
    assert forked(products, phases) == "the end"
    calls = {found.name: found.calls for found in phases.times()}
    assert calls[SENDING] == calls[RECEIVING] == 2 * len(products)
    if join().rank > 0:
        assert calls[SERVING] == 2 * len(products)
        return
    for product, truth in zip(products, expected, strict=True):
        # A product of K numbers is wrong by K roundings at most.
        np.testing.assert_allclose(product.D.to_host(), truth, rtol=0, atol=1e-14)


def test_rows_are_shared_evenly() -> None:
    shape = Shape((10, 2, 3), False, True, "float32")
    assert shape.rows(4) == [3, 3, 2, 2]
    assert Shape((1, 2, 3), False, True, "float32").rows(3) == [1, 0, 0]


@pytest.mark.parallel(few([3], of=[2, 3]))
def test_the_network_is_that_of_the_reference(tmp_path: Path) -> None:
    report = train(Options(**{**vars_of(SMALL), "check": True, "profile": join().size == 3}))
    assert report.passed and report.check is not None
    assert report.environment["helpers"] == join().size - 1
    assert f"each product is forked to {join().size - 1} more" in report.environment["plan"]
    assert [epoch.epoch for epoch in report.epochs] == [1, 2]


@pytest.mark.kernels
@pytest.mark.parallel([2])
def test_kernels_compute_the_parts_too() -> None:
    few = {"samples": 20, "batch": 10, "epochs": 1, "device": "emulated", "val_fraction": 0.0, "check": True}
    report = train(Options(**{**vars_of(SMALL), **few}))
    assert report.passed
    if join().rank == 0:
        assert (
            report.phase("products for rank 0").calls == 2 * 8
        )  # three layers, of which the first has no dA


@pytest.mark.parallel([3])
def test_all_ranks_end_with_the_error_of_rank_0() -> None:
    with warnings.catch_warnings(action="error"), pytest.raises(Diverged):  # NumPy warns on no rank
        train(Options(**{**vars_of(SMALL), "lr": 1e300}))
    with pytest.raises(AgreedError, match="no-such-file"):
        train(Options(**{**vars_of(SMALL), "data": "no-such-file.npz"}))


@pytest.mark.parametrize("wrong", [{"exchange": "host"}, {"checkpoint": "folder"}])
def test_what_rank_0_alone_cannot_do_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(UserError, match="--plan fork-join: rank 0 alone trains"):
        Options(plan="fork-join", **wrong)  # type: ignore[arg-type]


def vars_of(options: Options) -> dict[str, object]:
    """The options that were given."""
    return {name: getattr(options, name) for name in options.given}
