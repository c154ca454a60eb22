"""How times are taken: by the device's clock, at full queues, in turns, medians over many repetitions.

- A repetition is a CUDA graph of many launches: what Python takes for a launch does not count.
- It is queued behind another one of its kind, so that the device never waits for the host in between, and
  finds in its caches what a launch leaves there.
- Competitors take turns in one process: whatever the clocks of the device do, they do to all of them.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyrt.driver import Driver, StreamHandle
from pyrt.graphs import capture

Work = Callable[[StreamHandle], None]
"""Queues something on the stream that it is given."""

ROUNDS = 30
"""Repetitions that count."""

WARM_UP = 3
"""Repetitions before them, in which clocks rise."""

SPAN = 1e-3
"""Seconds that a repetition is to last: long against the steps of 0.5 us of the device's clock."""

SLOW = 50e-3
"""What takes more seconds than this is launched once and never again."""


@dataclass(frozen=True)
class Times:
    """Microseconds of one launch or step: median, least and most over the repetitions."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Times:
        """From the seconds of each repetition."""
        return cls(*(1e6 * pick(seconds) for pick in (statistics.median, min, max)))

    @property
    def spread(self) -> str:
        """Least and most, for a table."""
        return f"{self.least:.1f} to {self.most:.1f}"


class StreamClock:
    """Times work on one stream by two events of the device."""

    def __init__(self, driver: Driver, stream: StreamHandle) -> None:
        self.driver = driver
        self.stream = stream
        self._start, self._stop = (driver.create_event(timing=True) for _ in range(2))

    def seconds(self, work: Work, behind: Work | None = None) -> float:
        """How long the work takes on the device, queued ``behind`` something or started idle."""
        if behind is not None:
            behind(self.stream)
        self.driver.record(self._start, self.stream)
        work(self.stream)
        self.driver.record(self._stop, self.stream)
        self.driver.synchronize_event(self._stop)
        return self.driver.elapsed(self._start, self._stop)

    def measure(self, work: Work) -> Callable[[], float]:
        """A function that takes one repetition: seconds of one piece of this work.

        Work that is SLOW has run once here, and that time is what the function gives.
        """
        once = self.seconds(work)
        if once > SLOW:
            return lambda: once
        few = together(self.driver, self.stream, work, 10)
        count = launches(self.seconds(few, behind=few) / 10)
        many = together(self.driver, self.stream, work, count)
        return lambda: self.seconds(many, behind=many) / count


def launches(seconds: float) -> int:
    """How many launches of so many seconds make a repetition."""
    return max(1, min(200, math.ceil(SPAN / max(seconds, 1e-9))))


def repeat(work: Work, count: int, stream: StreamHandle) -> None:
    """Queue the work ``count`` times."""
    for _ in range(count):
        work(stream)


def together(driver: Driver, stream: StreamHandle, work: Work, count: int) -> Work:
    """``count`` times the work as one piece of work: a graph, on a device that has them."""
    if not driver.has_kernels:
        return lambda stream: repeat(work, count, stream)
    with capture(driver, stream) as graph:
        repeat(work, count, stream)
    return graph


def alternate(measures: Mapping[str, Callable[[], float]], rounds: int = ROUNDS) -> dict[str, Times]:
    """Let the competitors take turns, a repetition each, and give the times of each."""
    seconds: dict[str, list[float]] = {name: [] for name in measures}
    for number in range(WARM_UP + rounds):
        for name, measure in measures.items():
            taken = measure()
            if number >= WARM_UP:
                seconds[name].append(taken)
    return {name: Times.of(taken) for name, taken in seconds.items()}


def wall(work: Callable[[], None], wait: Callable[[], None], pieces: int, rounds: int) -> list[float]:
    """Seconds of one of the ``pieces`` that ``work`` queues, by the host's clock, of each round.

    ``wait`` returns when all is done.
    """
    seconds = []
    for number in range(WARM_UP + rounds):
        started = time.perf_counter()
        work()
        wait()
        if number >= WARM_UP:
            seconds.append((time.perf_counter() - started) / pieces)
    return seconds
