"""nn/train/latency.py: numbers of calls against plain arithmetic; which calls are made, on which pixels."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from nn.train import latency
from nn.train.latency import Latency, counts, latency_table, measure


@pytest.mark.parametrize(
    ("most", "numbers"),
    [(1, [1]), (2, [1, 2]), (31, [1, 31]), (32, [1, 32]), (33, [1, 32, 33]), (3000, [1, 32, 3000])],
)
def test_one_image_a_few_and_the_most_are_timed(most: int, numbers: list[int]) -> None:
    assert counts(most) == numbers


def test_the_numbers_are_those_of_plain_arithmetic() -> None:
    seconds = [number * 1e-6 for number in np.random.default_rng(0).permutation(range(1, 1001))]
    found = Latency.of(8, seconds)
    assert (found.images, found.calls) == (8, 1000)
    assert found.median == pytest.approx(500.5e-6) and found.p99 == pytest.approx(990e-6)
    assert found.images_per_second == pytest.approx(8 * 1000 / (500500 * 1e-6))


@pytest.mark.parametrize(("calls", "place"), [(1, 1), (3, 3), (99, 99), (100, 99), (101, 100), (200, 198)])
def test_of_few_calls_p99_is_the_longest(calls: int, place: int) -> None:
    assert Latency.of(1, [float(number) for number in range(calls, 0, -1)]).p99 == place


@pytest.mark.parametrize("images", [1, 3, 5, 9])
def test_a_test_set_is_repeated_where_it_has_too_few_images(
    monkeypatch: pytest.MonkeyPatch, images: int
) -> None:
    monkeypatch.setattr(latency, "seconds_of_calls", lambda call: [call(), 2.0, 3.0])
    made = SimpleNamespace(
        batch=5, pixels=np.zeros((5, 4), np.uint8), bind=lambda count: lambda: float(count)
    )
    given = np.random.default_rng(0).integers(0, 256, (images, 4), np.uint8)
    found = measure(made, given, [1, 5])  # type: ignore[arg-type]
    assert [(one.images, one.calls, one.median) for one in found] == [(1, 3, 2.0), (5, 3, 3.0)]
    np.testing.assert_array_equal(made.pixels, [given[number % images] for number in range(5)])


def test_the_table_is_in_microseconds() -> None:
    rows = [Latency(1, 1000, 13.5e-6, 20.25e-6, 7.0e4), Latency(3000, 90, 1.5e-4, 1.7e-4, 2.0e7)]
    header, _, first, second = latency_table(rows).splitlines()
    assert header.split() == ["images", "at", "a", "time", "median", "us", "p99", "us", "images/s", "calls"]
    assert first.split() == ["1", "13.5", "20.2", "70000", "1000"]
    assert second.split() == ["3000", "150.0", "170.0", "20000000", "90"]
    assert "calls" not in latency_table(rows, 60).splitlines()[0]
