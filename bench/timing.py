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

from pyrt.clock import StreamClock, Work, together

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
        """Make it from the seconds of each repetition."""
        return cls(*(1e6 * pick(seconds) for pick in (statistics.median, min, max)))

    @property
    def spread(self) -> str:
        """Least and most, for a table."""
        return f"{self.least:.1f} to {self.most:.1f}"


def repetition(clock: StreamClock, work: Work) -> Callable[[], float]:
    """Make a function that takes one repetition: seconds of one piece of this work.

    SLOW work runs once here, and the function returns that time.
    """
    once = clock.seconds(work)
    if once > SLOW:
        return lambda: once
    few = together(clock.driver, clock.stream, work, 10)
    count = launches(clock.seconds(few, behind=few) / 10)
    many = together(clock.driver, clock.stream, work, count)
    return lambda: clock.seconds(many, behind=many) / count


def launches(seconds: float) -> int:
    """Return how many launches of so many seconds make a repetition."""
    return max(1, min(200, math.ceil(SPAN / max(seconds, 1e-9))))


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
