"""Statistics of calls: those of NumPy for all calls, from sums and a sample that does not grow."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pyrt.durations import KEPT, Durations, Measured, statistics


def measured(seconds: np.ndarray, calls: int = 1) -> Measured:
    """Make the durations of these measurements, each of so many calls."""
    durations = Durations()
    for one in seconds:
        durations.add(calls * float(one), calls)
    return durations.measured()


@pytest.mark.parametrize("count", [1, 2, 3, 100, KEPT - 1, KEPT])
def test_up_to_so_many_calls_all_of_it_is_exact(count: int) -> None:
    seconds = np.random.default_rng(count).lognormal(-9, 0.5, count)
    found = statistics([measured(seconds)])
    assert found is not None and found.count == count
    assert found.total == pytest.approx(seconds.sum(), rel=1e-12)
    assert found.mean == pytest.approx(seconds.mean(), rel=1e-12)
    assert found.median == np.median(seconds)
    assert found.std == pytest.approx(seconds.std(ddof=1) if count > 1 else 0, rel=1e-9)
    assert (found.min, found.max) == (seconds.min(), seconds.max())


def test_calls_that_take_as_long_have_no_deviation() -> None:
    """However their squares are rounded."""
    found = statistics([measured(np.full(1000, 0.1))])
    assert found is not None and 0 <= found.std < 1e-6 * found.mean


def test_of_more_calls_the_median_is_of_a_sample_that_meets_all_of_them() -> None:
    """Calls that differ in turn: a sample of every second, or third, would miss some. Memory does not grow.

    Of n samples the rank of the median in all calls has a standard deviation of 0.5 / sqrt(n), 0.016 here.
    """
    seconds = np.random.default_rng(3).uniform(1.0, 2.0, 40_000)
    seconds[::2] += 10
    one = measured(seconds)
    assert len(one.kept[0]) == len(one.kept[1]) == KEPT
    found = statistics([one])
    assert found is not None and found.count == len(seconds)
    assert found.mean == pytest.approx(seconds.mean(), rel=1e-12)
    kept = np.array(one.kept[0])
    assert np.isin(kept, seconds).all()
    assert abs((kept > 5).mean() - 0.5) < 5 * 0.016  # as many of each kind
    places = np.searchsorted(np.sort(seconds[1::2]), kept[kept < 5]) / len(seconds) * 2
    assert abs(places.mean() - 0.5) < 5 * 0.29 / math.sqrt(KEPT / 2)  # from start to end alike
    assert abs((seconds < found.median).mean() - 0.5) < 5 * 0.016


def test_early_and_late_calls_are_kept_alike() -> None:
    one = measured(np.arange(20_000.0))
    kept = np.array(one.kept[0]) / 20_000
    assert abs(kept.mean() - 0.5) < 5 * 0.29 / math.sqrt(KEPT)
    assert np.histogram(kept, 4)[0].min() > KEPT / 4 * 0.7


def test_a_measurement_may_stand_for_several_calls() -> None:
    """8 calls in one measurement, and two by themselves, are ten calls."""
    durations = Durations()
    durations.add(8 * 2.0, 8)
    durations.add(5.0)
    durations.add(7.0)
    found = statistics([durations.measured()])
    calls = np.array([2.0] * 8 + [5.0, 7.0])
    assert found is not None
    assert (found.count, found.total, found.median) == (10, 28.0, 2.0)
    assert found.std == pytest.approx(calls.std(ddof=1))


def test_ranks_are_put_together() -> None:
    """Count each call the same, though one rank has many more calls than it keeps."""
    random = np.random.default_rng(5)
    few, many = random.uniform(5, 6, 301), random.uniform(1, 2, 10 * KEPT)
    found = statistics([measured(few), measured(np.empty(0)), measured(many)])
    calls = np.concatenate([few, many])
    assert found is not None and found.count == len(calls)
    assert found.std == pytest.approx(calls.std(ddof=1), rel=1e-9)
    assert found.median == pytest.approx(np.median(calls), rel=0.05)
    two = statistics([measured(few[:100]), measured(few[100:])])
    assert two is not None and two.median == np.median(few)


def test_no_calls_have_no_statistics() -> None:
    assert statistics([]) is None
    assert statistics([Durations().measured()]) is None
