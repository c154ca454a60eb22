"""Fixtures of tests of whole runs."""

import numpy as np
import pytest


@pytest.fixture
def digits(tmp_path):
    """Makes an .npz of random images, of 3 x 4 pixels in three classes by default, perhaps a test set."""

    def make(training=50, test=0, dtype=np.uint8, shape=(3, 4), classes=3):
        rng = np.random.default_rng(0)
        arrays = {}
        for name, count in (("train", training), ("test", test)):
            if count:
                arrays[f"x_{name}"] = rng.integers(0, 256, (count, *shape)).astype(dtype)
                arrays[f"y_{name}"] = np.arange(count) % classes
        np.savez(tmp_path / "digits.npz", **arrays)
        return str(tmp_path / "digits.npz")

    return make
