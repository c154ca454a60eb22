"""bench/sparse.py: each product is checked and timed on the emulated device, PyTorch's beside it."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import pyrt
from bench import sparse, timing
from bench.baselines import torch_sparse
from bench.program import WrongResult
from bench.sparse import Arrays, Layer, copies, rate, rows
from nn.launch.gemm.versions import runs_gemm
from pyrt.clock import StreamClock
from pyrt.driver import Driver
from pyrt.errors import UserError
from pyrt.kernels import KernelLibrary
from tests import few

LAYER = Layer("small", 67, 45, 0.3, 5)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time is of interest here."""
    monkeypatch.setattr(timing, "SPAN", 0.0)
    monkeypatch.setattr(timing, "WARM_UP", 0)
    monkeypatch.setattr(sparse, "ROUNDS", 1)
    monkeypatch.setattr(sparse, "UPDATED", 1 << 12)
    monkeypatch.setattr(sparse, "BEYOND_CACHES", 5000.0)


@pytest.fixture
def clock(driver: Driver) -> StreamClock:
    return StreamClock(driver, driver.create_stream())


MINE = [(1, ["thread", "warp", "vector"]), (33, ["vector", "lanes", "tile"])]


@pytest.mark.long
@pytest.mark.parametrize(("batch", "mine"), few(MINE[:1], of=MINE))
def test_every_way_is_checked_and_timed(
    clock: StreamClock, library: KernelLibrary, batch: int, mine: list[str]
) -> None:
    found = rows(clock, library, Arrays(LAYER, batch), rate(clock, library))
    names = list(mine)
    if batch == 1:
        names += ["shared", *(f"shared, interleaved, {threads} threads" for threads in (256, 512, 1024))]
    dense = [("tiled", "float32"), ("mma", "float32"), ("wgmma", "float32"), ("wgmma", "bf16")]
    if batch <= 32:  # where others are faster in float32
        dense.remove(("wgmma", "float32"))
    runs = [way for way in dense if runs_gemm(way[0], clock.driver.architecture)]
    names += [*(f"dense, {version}, {accuracy}" for version, accuracy in runs), "int8", "binary"]
    assert [row[0] for row in found] == names
    for name, memory, _, one, _, floor, ratio, moved, error in found:
        assert memory > 0 and one > 0 and ratio == pytest.approx(memory / floor), name
        limit = {"dense, wgmma, bf16": 2e-2, "int8": 3e-2, "binary": 2}.get(name, 1e-6)
        assert 0 < error < limit, name
        weights = {"int8": 45 * 67, "binary": 45 * 67 / 8}.get(name, 45 * 67 * 0.3 * 3)
        assert moved > 1e-6 * 0.8 * weights


def test_where_a_cache_holds_all_copies_one_is_timed(
    clock: StreamClock, library: KernelLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert copies(1000) == 5 and copies(1001) == 5 and copies(6000) == 1
    monkeypatch.setattr(sparse, "BEYOND_CACHES", 1e9)
    assert copies(1000) == 1
    monkeypatch.setattr(sparse, "DENSE", ())
    assert all(row[1] is row[6] is None for row in rows(clock, library, Arrays(LAYER, 1), 1.0))


def test_a_wrong_result_is_not_timed(
    clock: StreamClock, library: KernelLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = Arrays.exact
    monkeypatch.setattr(Arrays, "exact", lambda self: exact(self) * (1 + 1e-4))
    with pytest.raises(WrongResult, match=r"^thread: off by 1\.0e-04$"):
        rows(clock, library, Arrays(LAYER, 1), 1.0)


def test_exact_is_the_dense_product() -> None:
    arrays = Arrays(LAYER, 6)
    expected = arrays.X[: sparse.CHECKED] @ arrays.csr.dense().astype(np.float64).T
    np.testing.assert_allclose(arrays.exact(), expected, rtol=1e-12, atol=1e-12)
    assert arrays.csr.weights == pytest.approx(0.3 * 45 * 67, rel=0.1)


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """What the program prints of this layer on the emulated device, beside PyTorch's lines or without."""

    def run(*theirs: dict[str, Any], failure: str = "") -> list[str]:
        def baseline(*words: str, program: str) -> Any:
            assert (words, program) == (("small",), "torch_sparse.py")
            if failure:
                raise UserError(failure)
            return iter(theirs)

        monkeypatch.setattr(sparse, "LAYERS", {"small": LAYER})
        monkeypatch.setattr(sparse, "BATCHES", (1, 5))
        monkeypatch.setattr(sparse, "DENSE", ())
        monkeypatch.setattr(sparse, "baseline", baseline)
        monkeypatch.setattr(sparse, "require_gpu", lambda: 1)
        monkeypatch.setattr(pyrt, "start", partial(pyrt.start, "emulated"))
        assert sparse.main([]) == 0
        return capsys.readouterr().out.splitlines()

    return run


@pytest.mark.long
@pytest.mark.kernels
def test_a_table_for_each_batch_with_pytorch_beside(printed: Any) -> None:
    times = {"memory": 40.0, "memory_spread": "39.0 to 41.0", "one": 8.0, "one_spread": "7.0 to 9.0"}
    lines = printed({"layer": "small", "batch": 5, "way": "cuSPARSE, CSR", **times})
    titles = [line for line in lines if line.startswith("small, ")]
    assert [title.split(";")[0] for title in titles] == [
        f"small, 67 x 45, 30% kept, batch {batch}" for batch in (1, 5)
    ]
    (rival,) = [line for line in lines if line.startswith("cuSPARSE")]
    assert rival.split()[2:] == [*["40.0", "39.0", "to", "41.0", "8.0", "7.0", "to", "9.0"], *"----"]
    assert lines.index(titles[1]) < lines.index(rival)


@pytest.mark.long
@pytest.mark.kernels
def test_without_pytorch_the_reason_is_said(printed: Any) -> None:
    assert printed(failure="PyTorch: needs PyTorch and an NVIDIA GPU")[0].startswith(
        "left out: PyTorch: needs"
    )


def test_a_layer_that_is_not_there_is_named_before_a_gpu_is_looked_for() -> None:
    with pytest.raises(UserError, match=r"no layer is called fc9: there are fc6, fc7, fc8, lenet"):
        sparse.main(["fc9"])


def test_pytorch_that_is_missing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_sparse, "torch", None)
    with pytest.raises(UserError, match=r"^needs PyTorch and an NVIDIA GPU$"):
        torch_sparse.main([])


@pytest.mark.parametrize("batch", [1, 3])
def test_pytorch_computes_the_same_product_in_each_way(batch: int) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    sizes = []
    results = []
    for _, nbytes, products in torch_sparse.ways(LAYER, batch, "cpu"):
        sizes.append(nbytes)
        results += [product().float().reshape(LAYER.units, batch) for product in products]
    assert sizes[1:] == [4 * 45 * 67, 2 * 45 * 67] and sizes[0] == pytest.approx(45 * 67 * 0.3 * 8, rel=0.1)
    assert all(torch.allclose(result, results[0], rtol=0.1, atol=0.1) for result in results)
