"""Phases on a clock of the test's: host times that add up, device times from events, balanced NVTX ranges."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pyrt import phases as module
from pyrt.driver.cpu import CpuDriver
from pyrt.phases import Phases, PhaseTimes
from tests.pyrt.fakes import ClockedDriver


class Clock:
    """The host's clock, which moves when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def work(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "perf_counter", clock.perf_counter)
    return clock


@pytest.fixture
def phases(clock: Clock) -> Phases:
    return Phases(started=clock.now)


def by_name(phases: Phases) -> dict[str, PhaseTimes]:
    return {times.name: times for times in phases.times()}


def use_some(phases: Phases, clock: Clock) -> None:
    """Twice 1/2 s in no phase, ``outer`` for 2 + 4 s and ``inner`` in it for 8 s; at the end 16 s in none."""
    for _ in range(2):
        clock.work(0.5)
        with phases.phase("outer"):
            clock.work(2)
            with phases.phase("inner"):
                clock.work(8)
            clock.work(4)
    clock.work(16)


class TestHostTimes:
    def test_every_moment_is_charged_to_the_innermost_phase(self, phases: Phases, clock: Clock) -> None:
        use_some(phases, clock)
        assert [(times.name, times.calls, times.host) for times in phases.times()] == [
            ("other", 1, 17),
            ("outer", 2, 12),
            ("inner", 2, 16),
        ]

    def test_elapsed_has_the_phases_within_it_too(self, phases: Phases, clock: Clock) -> None:
        use_some(phases, clock)
        assert by_name(phases)["outer"].elapsed == 28
        assert by_name(phases)["inner"].elapsed == 16

    def test_they_add_up_to_the_wall_time_even_within_a_phase(self, phases: Phases, clock: Clock) -> None:
        use_some(phases, clock)
        with phases.phase("open"):
            clock.work(32)
            assert sum(times.host for times in phases.times()) == clock.now - 100
            assert by_name(phases)["open"].host == 32

    def test_a_phase_that_is_made_and_never_entered_is_no_row(self, phases: Phases) -> None:
        phases.phase("never")
        assert list(by_name(phases)) == ["other"]

    def test_a_phase_is_made_once(self, phases: Phases) -> None:
        assert phases.phase("same") is phases.phase("same")

    def test_time_before_there_were_phases_is_charged_afterwards(self, phases: Phases, clock: Clock) -> None:
        clock.work(3)
        until = clock.now
        clock.work(1)
        phases.charge("start", until)
        times = by_name(phases)
        start = times["start"]
        assert (start.calls, start.host, start.elapsed, start.device_calls) == (1, 3, 3, 0)
        assert times["other"].host == 1

    def test_time_can_be_charged_to_a_phase_again(self, phases: Phases, clock: Clock) -> None:
        for _ in range(2):
            clock.work(3)
            phases.charge("start", clock.now)
        with phases.phase("start"):
            clock.work(1)
        assert [(times.name, times.calls, times.host) for times in phases.times()] == [
            ("other", 1, 0),
            ("start", 3, 7),
        ]


class TestExceptions:
    def test_an_exception_passes_and_time_goes_on_outside(self, phases: Phases, clock: Clock) -> None:
        with phases.phase("outer"):
            with pytest.raises(ValueError, match="mine"), phases.phase("inner"):
                clock.work(1)
                raise ValueError("mine")
            clock.work(2)
        clock.work(4)
        times = by_name(phases)
        assert [times[name].host for name in ("inner", "outer", "other")] == [1, 2, 4]

    def test_an_exception_is_not_hidden_by_a_device_in_error(self, phases: Phases) -> None:
        driver = ClockedDriver()
        phases.use_device(driver)
        phases.use_profile(lambda: None)
        with pytest.raises(ValueError, match="mine"), phases.phase("work", stream=driver.create_stream()):
            driver.fails = True
            raise ValueError("mine")


class TestDeviceTimes:
    @pytest.fixture
    def device(self, phases: Phases) -> ClockedDriver:
        device = ClockedDriver()
        phases.use_device(device)
        return device

    def enter(self, phases: Phases, device: ClockedDriver, seconds: float) -> None:
        with phases.phase("work", stream=device.create_stream()):
            device.now += seconds
        device.now += 1000  # between two calls; no part of either

    def test_they_are_summed_over_all_calls(self, phases: Phases, device: ClockedDriver) -> None:
        for call in range(50):
            self.enter(phases, device, seconds=call)
        times = by_name(phases)["work"]
        assert (times.calls, times.device_calls) == (50, 50)
        assert times.device == sum(range(50))

    def test_a_device_that_is_behind_is_not_waited_for(self, phases: Phases, device: ClockedDriver) -> None:
        """Of the calls that it never got to, the last 16 are timed in the end, and only they are counted."""
        device.stuck = True
        for call in range(50):
            self.enter(phases, device, seconds=call)
        assert device.waits == 0
        times = by_name(phases)["work"]
        assert (times.calls, times.device_calls, device.waits) == (50, 16, 16)
        assert times.device == sum(range(34, 50))

    def test_entering_a_phase_may_stand_for_several_calls(
        self, phases: Phases, device: ClockedDriver
    ) -> None:
        """Where a pair of events is left out, so are all its calls."""
        for call in range(20):
            phases.phase("work", stream="a stream").weight = 1 + call % 2
            self.enter(phases, device, seconds=1)
        times = by_name(phases)["work"]
        assert (times.calls, times.device_calls, times.device) == (30, 30, 20)
        device.stuck = True
        phases.phase("work").weight = 3
        for _ in range(20):
            self.enter(phases, device, seconds=1)
        times = by_name(phases)["work"]
        assert (times.calls, times.device_calls, times.device) == (90, 78, 36)

    def test_they_can_be_asked_for_twice(self, phases: Phases, device: ClockedDriver) -> None:
        self.enter(phases, device, seconds=5)
        assert by_name(phases)["work"] == by_name(phases)["work"]
        self.enter(phases, device, seconds=2)
        assert by_name(phases)["work"].device == 7

    def test_settled_times_are_kept_and_the_device_is_left_alone(
        self, phases: Phases, device: ClockedDriver
    ) -> None:
        self.enter(phases, device, seconds=5)
        phases.settle()
        device.fails = True
        self.enter(phases, device, seconds=2)
        with phases.phase("new", stream=device.create_stream()):
            pass
        times = by_name(phases)
        assert (times["work"].calls, times["work"].device_calls, times["work"].device) == (2, 1, 5)
        assert times["new"].device_calls == 0

    def test_there_are_none_without_a_stream(self, phases: Phases, device: ClockedDriver) -> None:
        with phases.phase("host only"):
            device.now += 5
        assert by_name(phases)["host only"].device_calls == 0

    def test_there_are_none_where_there_are_no_kernels(self, phases: Phases, cpu: CpuDriver) -> None:
        phases.use_device(cpu)
        with phases.phase("work", stream="a stream"):
            pass
        assert by_name(phases)["work"].device_calls == 0


class TestProfile:
    def test_the_end_of_each_phase_waits_for_the_device(self, phases: Phases) -> None:
        driver = ClockedDriver()
        phases.use_device(driver)
        phases.use_profile(lambda: None)
        with phases.phase("outer"):
            with phases.phase("inner"):
                assert driver.synchronized == 0
            assert driver.synchronized == 1
        assert driver.synchronized == 2

    def test_without_it_nothing_waits(self, phases: Phases) -> None:
        driver = ClockedDriver()
        phases.use_device(driver)
        with phases.phase("work", stream=driver.create_stream()):
            phases.barrier()
        assert driver.synchronized == driver.waits == 0

    def test_the_barrier_is_the_one_that_was_given(self, phases: Phases) -> None:
        calls: list[str] = []
        phases.barrier()
        phases.use_profile(lambda: calls.append("barrier"))
        assert phases.profile
        phases.barrier()
        assert calls == ["barrier"]


class Ranges:
    """Stands for the nvtx package: the domain's ranges that are open, and all that were opened."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.all: list[str] = []

    def get_domain(self, name: None) -> Ranges:
        return self

    def get_event_attributes(self, message: str, color: str) -> SimpleNamespace:
        return SimpleNamespace(message=message)

    def push_range(self, attributes: SimpleNamespace) -> None:
        self.open.append(attributes.message)
        self.all.append(attributes.message)

    def pop_range(self) -> None:
        self.open.pop()


class TestRanges:
    @pytest.fixture
    def ranges(self, monkeypatch: pytest.MonkeyPatch) -> Ranges:
        ranges = Ranges()
        monkeypatch.setattr("pyrt.phases._nvtx", lambda: ranges)
        return ranges

    def test_they_are_nested_as_the_phases_are(self, ranges: Ranges, phases: Phases) -> None:
        with phases.phase("outer"):
            for _ in range(2):
                with phases.phase("inner"):
                    assert ranges.open == ["outer", "inner"]
            assert ranges.open == ["outer"]
        assert ranges.open == []
        assert ranges.all == ["outer", "inner", "inner"]

    def test_an_exception_closes_them(self, ranges: Ranges, phases: Phases) -> None:
        with phases.phase("outer"):
            with pytest.raises(ValueError, match="mine"), phases.phase("inner"):
                raise ValueError("mine")
            assert ranges.open == ["outer"]
