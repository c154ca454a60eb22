"""pyrt/clock.py: which calls are timed by the host's clock, and for how long."""

from __future__ import annotations

import pytest

from pyrt import clock


class Clock:
    """Stands still but for what calls take."""

    def __init__(self) -> None:
        self.now, self.calls = 100.0, 0

    def perf_counter(self) -> float:
        return self.now

    def call(self, seconds: float) -> None:
        self.calls += 1
        self.now += seconds * self.calls


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(clock, "time", fake)
    return fake


def test_calls_are_timed_for_a_second_after_a_warm_up(time: Clock) -> None:
    """The k-th call takes k ms: 20 warm up, for 210 ms, and 29 more take 1015 ms."""
    seconds = clock.seconds_of_calls(lambda: time.call(1e-3))
    assert time.calls == 49
    assert seconds == pytest.approx([number * 1e-3 for number in range(21, 50)])


def test_of_slow_calls_a_few_are_timed(time: Clock) -> None:
    assert clock.seconds_of_calls(lambda: time.call(60.0)) == pytest.approx([120.0, 180.0, 240.0])


def test_of_fast_calls_not_all_are(time: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "MOST", 7)
    assert len(clock.seconds_of_calls(lambda: time.call(1e-9 if time.calls else 1.0))) == 7
