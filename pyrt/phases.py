"""Named phases of a run: an NVTX range, the host's own time and the device's time, without waiting.

Host times are self-times: at any moment exactly one phase is charged, the innermost, and what no phase
covers is charged to ``other``. So the host times of a rank add up to its wall time. Device times come
from pairs of events, read when they are long done: entering and leaving a phase never synchronises
(but under ``profile``, where that is the purpose).

While a graph is captured, entering a phase is no work of its own: it is noted, and counted and timed as often
as the graph is replayed (pyrt/graphs.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from time import perf_counter
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from pyrt.driver import Driver, StreamHandle
from pyrt.durations import Durations, Measured

if TYPE_CHECKING:
    from pyrt.timeline import Timeline

_PAIRS = 16
"""Event pairs a phase keeps in flight before it reuses one."""


@dataclass(frozen=True)
class PhaseTimes:
    """What one rank measured of a phase; seconds.

    ``host`` is the host's own time. The times of calls have the phases within it too: ``on_host`` from enter
    to leave, ``on_device`` between two places in a stream. Either may have fewer calls than ``calls``.
    """

    name: str
    calls: int
    host: float
    on_host: Measured
    on_device: Measured

    @property
    def elapsed(self) -> float:
        """The sum of all calls from enter to leave."""
        return self.on_host.total

    @property
    def device(self) -> float:
        """The sum of the calls that were timed on the device."""
        return self.on_device.total

    @property
    def device_calls(self) -> int:
        """The number of calls that were timed on the device."""
        return self.on_device.count


class Notes(Protocol):
    """What becomes of phases that are entered while a graph is captured."""

    def enter(self, phase: Phase) -> None:
        """Note that the phase begins."""

    def leave(self, phase: Phase) -> None:
        """Note its end."""


class Replays(Protocol):
    """Phases that are passed without being entered."""

    def settle(self) -> None:
        """Add all that has not been added yet to the phases' calls and device times; waits for the latter."""


class Phases:
    """The phases of one rank, created once by name and entered any number of times."""

    def __init__(self, started: float) -> None:
        """``started``: the ``time.perf_counter()`` from which the wall time counts."""
        self._phases: dict[str, Phase] = {}
        self._used: list[Phase] = []
        self._mark = started
        self._root = Phase(self, "other", None)
        self._root.calls = 1
        self.use(self._root)
        self._current = self._root
        self._driver: Driver | None = None
        self._notes: Notes | None = None
        self._replays: list[Replays] = []
        self.barrier: Callable[[], None] = _nothing
        """Under ``profile``: the ranks wait here for each other, so that the wait is charged to no phase of
        work; else nothing."""
        self.profile = False
        self.timeline: Timeline | None = None
        """Records each phase when the host leaves it; None: nothing does."""

    def use_device(self, driver: Driver) -> None:
        """Time phases that name a stream on this device, from here on."""
        self._driver = driver

    def use_profile(self, barrier: Callable[[], None]) -> None:
        """Make each phase's own time visible: the device is waited for at the end of each phase, and the
        ranks for each other at ``barrier``."""
        self.profile = True
        self.barrier = barrier

    @property
    def current(self) -> str:
        """The innermost phase at the moment."""
        return self._current.name

    def phase(self, name: str, stream: StreamHandle | None = None) -> Phase:
        """Return the phase of that name; with a stream its device time is measured there."""
        if name not in self._phases:
            timer = None
            if stream is not None and self._driver is not None and self._driver.has_kernels:
                timer = DeviceTimer(self._driver, stream)
            self._phases[name] = Phase(self, name, timer)
        return self._phases[name]

    def charge(self, name: str, until: float) -> None:
        """Charge the time from the last mark until ``until`` (a ``perf_counter``) to a phase, afterwards."""
        phase = self.phase(name)
        self.use(phase)
        phase.calls += 1
        phase.host += until - self._mark
        phase.durations.add(until - self._mark)
        self._mark = until

    def use(self, phase: Phase) -> None:
        """Give the phase its row, behind those that were used before it."""
        if not phase.used:
            phase.used = True
            self._used.append(phase)

    @contextmanager
    def noted(self, notes: Notes) -> Iterator[None]:
        """Within the block phases are not measured: that they are entered and left is told to ``notes``."""
        self._notes = notes
        try:
            yield
        finally:
            self._notes = None

    def add_replays(self, replays: Replays) -> None:
        """Ask these too, whenever times are asked for."""
        self._replays.append(replays)

    def settle(self) -> None:
        """Read the times that the device still holds; from here on phases are timed on the host alone."""
        for replays in self._replays:
            replays.settle()
        for phase in self._phases.values():
            phase.settle()
        self._driver = None

    def times(self) -> list[PhaseTimes]:
        """Times of all phases so far, in the order of their first use."""
        for replays in self._replays:
            replays.settle()
        now = perf_counter()
        self._current.host += now - self._mark
        self._mark = now
        return [phase.times() for phase in self._used]

    def _finish(self) -> None:
        """Wait for the device, as `profile` wants it at the end of a phase."""
        if self._driver is not None:
            self._driver.synchronize()


class Phase:
    """A context manager for one named phase; it may be entered again and again, not within itself.

    Entering and leaving it takes 0.8 us, without a device and NVTX. Both charge the time since the last mark
    to the phase that is current, and make another one current; they call nothing for it, to stay short.
    """

    __slots__ = (
        "_entered",
        "_outer",
        "_phases",
        "_pop",
        "_push",
        "_settled",
        "calls",
        "durations",
        "host",
        "name",
        "timer",
        "used",
        "weight",
    )

    def __init__(self, phases: Phases, name: str, timer: DeviceTimer | None) -> None:
        self.name = name
        self.calls = 0
        self.host = 0.0
        self.durations = Durations()
        """The times of calls on the host, from enter to leave."""
        self.timer = timer
        self.used = False
        self.weight = 1
        """Calls that entering it once stands for, from now on."""
        self._phases = phases
        self._outer: Phase | None = None
        self._entered = 0.0
        self._settled = Durations()
        self._push, self._pop = _nvtx_range(name)

    def __enter__(self) -> Phase:
        phases = self._phases
        if phases._notes is not None:
            phases._notes.enter(self)
            return self
        self._outer = outer = phases._current
        now = perf_counter()
        outer.host += now - phases._mark
        self._entered = phases._mark = now
        phases._current = self
        if not self.used:
            phases.use(self)
        self.calls += self.weight
        if self._push is not None:
            self._push()
        if self.timer is not None:
            self.timer.start(self.weight)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        phases = self._phases
        if phases._notes is not None:
            if kind is None:
                phases._notes.leave(self)
            return
        if kind is None:  # else the device may be in error too: keep the exception that matters
            if self.timer is not None:
                self.timer.stop()
            if phases.profile:
                phases._finish()
        if self._pop is not None:
            self._pop()
        assert self._outer is not None
        left = perf_counter()
        self.host += left - phases._mark
        phases._mark = left
        phases._current = self._outer
        self.durations.add(left - self._entered, self.weight)
        if phases.timeline is not None and phases.timeline.is_on:
            phases.timeline.left(self.name, self._entered, left)

    def settle(self) -> None:
        """Read the device's times and leave it alone from here on."""
        if self.timer is not None:
            self._settled = self.timer.durations()
            self.timer = None

    def times(self) -> PhaseTimes:
        """Return the times measured so far; waits for the phase's events."""
        on_device = self.timer.durations() if self.timer is not None else self._settled
        return PhaseTimes(self.name, self.calls, self.host, self.durations.measured(), on_device.measured())


class DeviceTimer:
    """Time between two places in a stream, summed over calls, from a ring of event pairs.

    Where a pair comes round before the device has passed it, that older call is left out of the sum
    rather than waited for; ``durations`` says how many calls were timed.
    """

    def __init__(self, driver: Driver, stream: StreamHandle) -> None:
        self._driver = driver
        self.stream = stream
        events = [driver.create_event(timing=True) for _ in range(2 * _PAIRS)]
        self._pairs = list(zip(events[::2], events[1::2], strict=True))
        self._recorded = [False] * _PAIRS
        self._weights = [1] * _PAIRS
        self._next = 0
        self._durations = Durations()

    def start(self, weight: int = 1) -> None:
        """Here begin so many calls."""
        if self._recorded[self._next] and self._driver.is_done(self._pairs[self._next][1]):
            self._collect(self._next)
        self._recorded[self._next] = False
        self._weights[self._next] = weight
        self._driver.record(self._pairs[self._next][0], self.stream)

    def stop(self) -> None:
        """Here they end."""
        self._driver.record(self._pairs[self._next][1], self.stream)
        self._recorded[self._next] = True
        self._next = (self._next + 1) % _PAIRS

    def add(self, seconds: float) -> None:
        """Add a call that was timed elsewhere."""
        self._durations.add(seconds)

    def durations(self) -> Durations:
        """Return the times of all calls that were timed; waits for the last ones."""
        for index in range(_PAIRS):
            if self._recorded[index]:
                self._driver.synchronize_event(self._pairs[index][1])
                self._collect(index)
        return self._durations

    def _collect(self, index: int) -> None:
        self._durations.add(self._driver.elapsed(*self._pairs[index]), self._weights[index])
        self._recorded[index] = False


def _nvtx_range(name: str) -> tuple[Callable[[], Any] | None, Callable[[], Any] | None]:
    """Calls that open and close the NVTX range of that name, whose string is registered here, once; without
    NVTX none."""
    nvtx = _nvtx()
    if nvtx is None:
        return None, None
    domain = nvtx.get_domain(None)
    attributes = domain.get_event_attributes(message=name, color="blue")
    return lambda: domain.push_range(attributes), domain.pop_range


@cache
def _nvtx() -> ModuleType | None:
    """Import nvtx, if it is there: not at the top, since it imports NumPy, which must wait for pyrt/job."""
    try:
        return import_module("nvtx")
    except ImportError:  # a machine without the GPU packages
        return None


def _nothing() -> None:
    return None
