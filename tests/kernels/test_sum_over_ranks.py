"""comm/sum_over_ranks.cu: sums against NumPy's float64, and bit by bit against NumPy in the same order."""

import numpy as np
import pytest

SHAPES = [(1, 1), (2, 1), (2, 255), (3, 256), (4, 257), (5, 1009), (8, 4096), (17, 31), (4, 100_003)]


def in_order(parts):
    """The rows added one by one."""
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total


def bind(library, real, ranks, size, parts, sums, grid=(3,), block=(256,)):
    kernel = library.kernel("comm/sum_over_ranks", "sum_over_ranks", REAL=real)
    return kernel.bind(grid, block, ranks, size, parts, sums)


@pytest.mark.sanitizer
@pytest.mark.parametrize(("ranks", "size"), SHAPES)
def test_sums(library, device, rng, real, dtype, ranks, size):
    parts = rng.normal(0, 1, (ranks, size)).astype(dtype)
    there, first, second = device.array(parts), device.poisoned(size, dtype), device.poisoned(size, dtype)
    device.run(
        bind(library, real, ranks, size, there, first),
        bind(library, real, ranks, size, there, second, (1,), (64,)),
    )
    got = first.to_host()
    exact = parts.astype(np.float64)
    # One rounding for each rank but the first.
    bound = (ranks - 1) * np.finfo(dtype).eps / 2 * np.abs(exact).sum(axis=0)
    assert np.all(np.abs(got - exact.sum(axis=0)) <= bound * 1.01)
    assert got.tobytes() == in_order(parts).tobytes()
    assert got.tobytes() == second.to_host().tobytes()


def test_extremes(library, device, real, dtype):
    """An order of its own would lose the ones, or overflow: huge numbers meet their opposites first."""
    huge = np.finfo(dtype).max
    parts = np.array([[huge, huge, np.inf, 1], [-huge, huge, 1, np.nan], [1, -huge, 1, 1]], dtype)
    sums = device.poisoned(4, dtype)
    device.run(bind(library, real, 3, 4, device.array(parts), sums))
    np.testing.assert_array_equal(sums.to_host(), np.array([1, np.inf, np.inf, np.nan], dtype))


def test_sums_may_lie_in_a_larger_array_and_touch_nothing_beside(library, device, rng, real, dtype):
    parts = rng.normal(0, 1, (3, 10)).astype(dtype)
    flat = device.poisoned(30, dtype)
    device.run(bind(library, real, 3, 10, device.array(parts), flat.rows(7, 17)))
    got = flat.to_host()
    assert got[7:17].tobytes() == in_order(parts).tobytes()
    assert np.all(np.isnan(np.delete(got, np.arange(7, 17))))


def test_no_elements(library, device, real, dtype):
    """A rank whose shard is empty."""
    sums = device.poisoned(1, dtype)
    device.run(bind(library, real, 4, 0, None, sums))
    assert np.isnan(sums.to_host()).all()
