"""bench/timing.py: medians, turns, and repetitions on a device."""

import pytest

from bench import timing
from bench.timing import Times, alternate, repetition
from pyrt.clock import StreamClock


def test_times_are_microseconds():
    times = Times.of([3e-6, 1e-6, 9e-6])
    assert (times.median, times.least, times.most) == pytest.approx((3, 1, 9))
    assert times.spread == "1.0 to 9.0"


def test_competitors_take_turns_and_warm_up():
    order = []

    def competitor(name, warm):
        def measure():
            order.append(name)
            return 1.0 if order.count(name) <= timing.WARM_UP else warm

        return measure

    times = alternate({"A": competitor("A", 2e-6), "B": competitor("B", 5e-6)}, rounds=2)
    assert order == ["A", "B"] * (timing.WARM_UP + 2)
    assert times["A"].most == pytest.approx(2)
    assert times["B"].least == pytest.approx(5)


@pytest.mark.parametrize(("seconds", "count"), [(1.0, 1), (1e-3, 1), (1e-4, 10), (1e-8, 200), (0.0, 200)])
def test_launches_of_a_repetition(seconds, count):
    assert timing.launches(seconds) == count


class FakeDriver:
    """A device whose clock is what its streams were given to do."""

    has_kernels = False

    def __init__(self):
        self.now = 0.0
        self.launches = 0

    def create_event(self, timing):
        return {}

    def record(self, event, stream):
        event["at"] = self.now

    def synchronize_event(self, event):
        pass

    def elapsed(self, start, stop):
        return stop["at"] - start["at"]

    def work(self, seconds):
        def queue(stream):
            self.now += seconds
            self.launches += 1

        return queue


def test_a_repetition_is_many_launches_behind_as_many():
    driver = FakeDriver()
    measure = repetition(StreamClock(driver, None), driver.work(1e-4))
    before = driver.launches
    assert measure() == pytest.approx(1e-4)
    assert driver.launches - before == 20  # a millisecond of them, and the ones in front


def test_slow_work_runs_once():
    driver = FakeDriver()
    measure = repetition(StreamClock(driver, None), driver.work(0.1))
    assert [measure(), measure()] == pytest.approx([0.1, 0.1])
    assert driver.launches == 1


def test_a_device_runs_what_is_timed(driver):
    """Through a graph: the same work as often."""
    stream = driver.create_stream()
    pointer = driver.allocate(1 << 16)
    clock = StreamClock(driver, stream)
    seconds = repetition(clock, lambda stream: driver.fill(pointer, 1, 1 << 16, stream))()
    assert 0 <= seconds < 1
    driver.free(pointer)


def test_wall_counts_pieces_and_leaves_the_warm_up_out(monkeypatch):
    now = [0.0]
    calls = []
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def work():
        calls.append("work")
        now[0] += 100.0 if len(calls) <= 2 * timing.WARM_UP else 4.0

    seconds = timing.wall(work, lambda: calls.append("wait"), pieces=2, rounds=3)
    assert seconds == [2.0] * 3
    assert calls == ["work", "wait"] * (timing.WARM_UP + 3)
