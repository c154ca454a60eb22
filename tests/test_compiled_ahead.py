"""A run compiles what its ranks will load, and nothing else, before the first of them loads it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nn.app.options import Options
from pyrt.driver import Driver
from pyrt.job import join
from pyrt.kernels import KernelLibrary
from tests import few
from train import train

SMALL = Options(hidden=(9, 7), batch=20, epochs=1, val_fraction=0.1, share_gpus=True)

CASES: list[dict[str, Any]] = [
    {},
    {"optimiser": "adam", "dtype": "float64", "activation": "relu"},
    {"gemm": "mma", "placement": "stream"},
    {"gemm": "wgmma", "momentum": 0.0},
    {"gemm": "wgmma", "math": "tf32", "head": "sigmoid", "profile": True},
    {"batch": 7, "graph": False},
]
TOGETHER: list[dict[str, Any]] = [
    {"exchange": "host", "optimiser": "adam"},
    {"exchange": "host", "plan": "model"},
    {"exchange": "peer", "plan": "model", "gemm": "wgmma"},
    {"exchange": "peer", "optimiser": "adam"},
    {"exchange": "hierarchical", "ranks_per_node": 2, "dtype": "float64"},
    {"exchange": "peer", "batch": 2, "hidden": (9,)},
    {"exchange": "hogwild", "gemm": "wgmma", "atomic": True},
    {"exchange": "server", "gemm": "wgmma", "optimiser": "adam"},
]


class Notes:
    """What a run compiles ahead, and what it loads from then on; on this rank."""

    def __init__(self, kind: type[Driver], monkeypatch: pytest.MonkeyPatch) -> None:
        self.compiled: set[str] = set()
        self.loaded: set[str] = set()
        compile_sources, load = KernelLibrary.compile_sources, kind.load_module

        def compiles(library: KernelLibrary, sources: Iterable[str]) -> None:
            self.compiled = set(sources)
            compile_sources(library, self.compiled)

        def loads(driver: Driver, source: str, cache_dir: str) -> object:
            self.loaded.add(source)
            return load(driver, source, cache_dir)

        monkeypatch.setattr(KernelLibrary, "compile_sources", compiles)
        monkeypatch.setattr(kind, "load_module", loads)


@pytest.fixture
def data(tmp_path: Path) -> str:
    """A small training set and test set; rank 0 reads its own."""
    dice = np.random.default_rng(0)
    sets = {}
    for name, size in (("train", 60), ("test", 20)):
        sets[f"x_{name}"] = dice.integers(0, 256, (size, 5, 5), np.uint8)
        sets[f"y_{name}"] = np.arange(size, dtype=np.uint8) % 10
    np.savez(tmp_path / "data.npz", **sets)
    return str(tmp_path / "data.npz")


def check(driver: Driver, data: str, case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    job = join()
    options = dataclasses.replace(SMALL, device=driver.name, data=job.comm.bcast(data), **case)
    with monkeypatch.context() as patched:
        notes = Notes(type(driver), patched)
        train(options, job)
    loaded = job.comm.allgather(notes.loaded)
    compiled = job.comm.bcast(notes.compiled)
    assert compiled == set.union(*loaded) != set(), case


@pytest.mark.parametrize("case", CASES, ids=str)
def test_one_rank(driver: Driver, data: str, case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    check(driver, data, case, monkeypatch)


@pytest.mark.long
def test_inference_that_is_timed(
    driver: Driver, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A product of 33 rows takes another kernel than that of the 20 rows that are evaluated."""
    network = {"hidden": (40, 40), "gemm": "wgmma"}
    save = {"device": "cpu", "data": data, "epochs": 0, "save": tmp_path / "w.npz"}
    train(dataclasses.replace(SMALL, **{**network, "gemm": "auto"}, **save))
    case = {**network, "evaluate": True, "init": tmp_path / "w.npz", "latency": 33}
    check(driver, data, case, monkeypatch)


@pytest.mark.parallel([3])
@pytest.mark.parametrize("case", few(TOGETHER[:1], of=TOGETHER), ids=str)
def test_several(driver: Driver, data: str, case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    check(driver, data, case, monkeypatch)
