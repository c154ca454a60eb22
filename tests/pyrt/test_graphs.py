"""pyrt/graphs.py: recorded work is replayed with its interruptions, and its phases are counted and timed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from pyrt.arrays import DeviceArray
from pyrt.driver import Driver, StreamHandle
from pyrt.graphs import Recorder
from pyrt.kernels import KernelLibrary, Launch
from pyrt.phases import Phases, PhaseTimes
from tests.pyrt.sources import folder_of

KERNELS = """
extern "C" __global__ void scale(float a, float b, float *x) { x[threadIdx.x] = a * x[threadIdx.x] + b; }

extern "C" __global__ void late(int nanoseconds, float *x)
{
    for (const long long start = clock64(); clock64() - start < nanoseconds;)
        ;
    x[threadIdx.x] += 1;
}
"""


class Work:
    """An array, launches that change it, phases and a recorder on one stream."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.library = KernelLibrary(driver, [folder_of("mine", KERNELS)])
        self.stream: StreamHandle = driver.create_stream()
        self.x = DeviceArray.from_host(driver, np.ones(4, "f4"))
        self.phases = Phases(0.0)
        self.phases.use_device(driver)
        self.recorder = Recorder(driver, self.stream, self.phases)

    def scale(self, a: float, b: float) -> Callable[[], None]:
        return partial(self.bind("scale", a, b, self.x), self.stream)

    def bind(self, name: str, *arguments: float | DeviceArray) -> Launch:
        return self.library.kernel("mine", name).bind((1,), (4,), *arguments)

    def under(self, name: str, call: Callable[[], object]) -> None:
        with self.phases.phase(name, self.stream):
            call()

    def seen(self) -> float:
        return float(self.x.to_host()[0])

    def times(self) -> dict[str, PhaseTimes]:
        return {times.name: times for times in self.phases.times()}


@pytest.fixture
def work(driver: Driver) -> Work:
    return Work(driver)


def test_the_host_is_called_between_two_graphs(work: Work) -> None:
    """Each time it sees what lies before it and not what lies behind it."""
    double, more = work.scale(2, 0), work.scale(1, 1)
    seen: list[tuple[str, float]] = []

    def queue() -> None:
        double()
        work.recorder.between(lambda: seen.append(("first", work.seen())))
        work.recorder.at_end(lambda: seen.append(("last", work.seen())))
        more()
        work.recorder.between(lambda: seen.append(("second", work.seen())))
        double()

    replay = work.recorder.record(queue)
    assert work.seen() == 1 and not seen
    replay()
    assert seen == [("first", 2), ("second", 3), ("last", 6)]
    replay()
    assert seen[3:] == [("first", 12), ("second", 13), ("last", 26)]


def test_work_is_launched_with_the_same_calls_and_no_graph(work: Work) -> None:
    """Also after a recording that failed."""
    double, seen = work.scale(2, 0), list[tuple[str, float]]()

    def queue() -> None:
        work.under("double", double)
        work.recorder.between(lambda: seen.append(("between", work.seen())))
        work.recorder.at_end(lambda: seen.append(("last", work.seen())))
        work.under("double", double)

    with pytest.raises(ZeroDivisionError):
        work.recorder.record(lambda: 1 / 0)
    replay = work.recorder.record(queue)
    work.recorder.launch(queue)
    assert seen == [("between", 2), ("last", 4)]
    assert work.times()["double"].calls == 2 and "graph replay" not in work.times()
    replay()
    work.recorder.launch(queue)
    assert seen[2:] == [("between", 8), ("last", 16), ("between", 32), ("last", 64)]


def test_phases_are_counted_as_often_as_they_are_replayed(work: Work) -> None:
    double = work.scale(2, 0)

    def queue() -> None:
        with work.phases.phase("outer"):
            work.under("inner", double)
            work.under("inner", double)

    replay = work.recorder.record(queue)
    assert list(work.times()) == ["other"]
    for _ in range(3):
        replay()
    times = work.times()
    assert work.seen() == 4**3
    assert list(times) == ["other", "graph replay", "outer", "inner"]
    assert [times[name].calls for name in ("graph replay", "outer", "inner")] == [3, 3, 6]
    assert (times["inner"].host, times["inner"].elapsed, times["inner"].device_calls) == (0, 0, 0)
    assert times["graph replay"].host > 0
    work.under("inner", double)
    replay()
    times = work.times()
    assert (times["inner"].calls, times["inner"].device_calls) == (9, 1)
    assert list(times) == ["other", "graph replay", "outer", "inner"]


def test_a_timed_replay_times_its_phases_on_the_device(work: Work) -> None:
    """Also where a phase begins in one graph and ends in another."""
    late, double = partial(work.bind("late", 20_000_000, work.x), work.stream), work.scale(2, 0)

    def queue() -> None:
        with work.phases.phase("outer", work.stream):
            work.under("late", late)
            work.recorder.between(lambda: None)
            work.under("double", double)
        with work.phases.phase("of the host"):
            pass

    replay = work.recorder.record(queue, timed=True)
    for _ in range(3):
        replay()
        work.driver.synchronize()
    times = work.times()
    assert {name: (row.calls, row.device_calls) for name, row in times.items() if row.device_calls} == {
        "outer": (3, 3),
        "late": (3, 3),
        "double": (3, 3),
    }
    assert times["late"].device > 3 * 0.008  # 20 million cycles at less than 2.5 GHz
    assert times["outer"].device > times["late"].device > times["double"].device
    assert {**work.times(), "other": None} == {**times, "other": None}


def test_a_replay_that_is_not_done_is_not_waited_for(work: Work) -> None:
    """Its times are lost to the next, and the calls that were timed are known."""
    late = partial(work.bind("late", 20_000_000, work.x), work.stream)
    replay = work.recorder.record(lambda: work.under("late", late), timed=True)
    for _ in range(3):
        replay()
    times = work.times()["late"]
    assert (times.calls, times.device_calls) == (3, 1)
    assert times.device > 0.008


def test_settled_times_are_kept_and_the_device_is_left_alone(work: Work) -> None:
    double = work.scale(2, 0)
    replay = work.recorder.record(lambda: work.under("double", double), timed=True)
    replay()
    work.phases.settle()
    work.driver.elapsed = None  # type: ignore[method-assign, assignment]
    try:
        times = work.times()["double"]
    finally:
        del work.driver.elapsed
    assert (times.calls, times.device_calls) == (1, 1)


def test_work_that_raises_leaves_stream_and_phases_usable(work: Work) -> None:
    double = work.scale(2, 0)

    def fail() -> None:
        with work.phases.phase("outer", work.stream):
            double()
            work.recorder.between(double)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        work.recorder.record(fail, timed=True)
    assert work.seen() == 1
    work.under("inner", double)
    assert work.seen() == 2
    assert list(work.times()) == ["other", "inner"]
    work.recorder.record(double)()
    assert work.seen() == 4
