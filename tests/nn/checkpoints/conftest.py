"""Fixtures of tests whose runs keep checkpoints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nn.parallel import buckets
from pyrt.job import join
from tests.nn.checkpoints.runs import Runs


@pytest.fixture
def digits(shared: Path) -> str:
    """50 random images of 3 x 4 pixels in three classes, and 7 to test."""
    rng = np.random.default_rng(0)
    if join().rank == 0:
        sets = {"train": 50, "test": 7}
        images = {f"x_{name}": rng.integers(0, 256, (n, 3, 4)).astype(np.uint8) for name, n in sets.items()}
        labels = {f"y_{name}": np.arange(n) % 3 for name, n in sets.items()}
        np.savez(shared / "digits.npz", **images, **labels)
    join().comm.barrier()
    return str(shared / "digits.npz")


@pytest.fixture
def runs(shared: Path, digits: str, monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.setattr(buckets, "PANEL_BYTES", 200)  # two panels of the first layer
    return Runs(shared, digits, monkeypatch)
