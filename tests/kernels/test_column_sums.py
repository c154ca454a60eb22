"""nn/column_sums.cu: column sums against NumPy's float64."""

import numpy as np
import pytest

from nn.launch.column_sums import ColumnSums
from tests import spread

SHAPES = [(1, 1), (2, 1), (750, 1), (3000, 1), (1, 1000), (7, 13), (63, 7), (64, 8), (65, 9), (1009, 3)]
SHAPES += [(257, 10), (750, 512), (3000, 17)]


def check(sums, X):
    """A thread adds every 64th row or fewer, then a tree of at most 9 levels follows."""
    X = X.astype(np.float64)
    roundings = len(X) / 64 + 10
    error = np.abs(sums - X.sum(axis=0))
    assert np.all(error <= roundings * np.finfo(sums.dtype).eps / 2 * np.abs(X).sum(axis=0))


@pytest.mark.parametrize(
    ("dtype", "shape"), spread(["float32", "float64"], SHAPES, by=2), indirect=["dtype"], ids=str
)
def test_column_sums(kernels, device, rng, dtype, shape):
    X = rng.normal(0, 1, shape).astype(dtype)
    X_there = device.array(X)
    first, second = device.poisoned(shape[1], dtype), device.poisoned(shape[1], dtype)
    device.run(*(ColumnSums(X_there, sums).on_device(kernels) for sums in (first, second)))
    check(first.to_host(), X)
    assert first.to_host().tobytes() == second.to_host().tobytes()


@pytest.mark.sanitizer
def test_column_slice(kernels, device, rng, dtype):
    X = rng.normal(0, 1, (77, 30)).astype(dtype)
    sums = device.poisoned(11, dtype)
    device.run(ColumnSums(device.array(X).columns(5, 16), sums).on_device(kernels))
    check(sums.to_host(), X[:, 5:16])


def test_losses_of_a_large_batch(kernels, device, rng, dtype):
    """Numbers of one sign: a relative error, of a few roundings at random."""
    X = rng.uniform(0, 5, (100_003, 1)).astype(dtype)
    sums = device.poisoned(1, dtype)
    device.run(ColumnSums(device.array(X), sums).on_device(kernels))
    np.testing.assert_allclose(sums.to_host(), X.sum(axis=0, dtype=np.float64), rtol=10 * np.finfo(dtype).eps)


@pytest.mark.parametrize("block", [(32, 4), (3, 64), (16, 1), (1, 1024)])
def test_small_grid(library, device, rng, real, dtype, block):
    X = rng.normal(0, 1, (50, 70)).astype(dtype)
    sums = device.poisoned(70, dtype)
    kernel = library.kernel("nn/column_sums", "column_sums", REAL=real)
    device.run(kernel.bind((2,), block, 50, 70, device.array(X), 70, sums))
    # A block of one row adds all 50 rows in one chain.
    assert np.allclose(
        sums.to_host(), X.sum(axis=0, dtype=np.float64), rtol=0, atol=200 * np.finfo(dtype).eps
    )


def test_no_rows(library, device, real, dtype):
    """A rank without samples: zeros."""
    sums = device.poisoned(10, dtype)
    kernel = library.kernel("nn/column_sums", "column_sums", REAL=real)
    device.run(kernel.bind((2,), (8, 64), 0, 10, None, 10, sums))
    assert np.all(sums.to_host() == 0)
