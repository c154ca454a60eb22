"""Statistics of the calls of a phase: count, total, mean, median, standard deviation, shortest and longest.

They are kept while a run goes on, in memory that does not grow: sums over all calls, and up to `KEPT` calls
for the median. Of more calls a uniform random sample is kept (algorithm L of Li, 1994): a choice of every
n-th call could miss short batches, which come at regular distances.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

KEPT = 1024
"""The number of durations kept for the median, which is exact up to so many calls."""


@dataclass(frozen=True)
class Statistics:
    """Statistics of some calls; seconds but for ``count``. ``std`` is of a sample (n - 1), 0 of one call."""

    count: int
    total: float
    mean: float
    median: float
    std: float
    min: float
    max: float


@dataclass(frozen=True)
class Measured:
    """One rank's measurements of some calls; `statistics` joins those of several ranks."""

    count: int
    total: float
    squares: float
    """The sum of the squares of all calls."""
    min: float
    max: float
    kept: tuple[array[float], array[int]]
    """The seconds of each call kept, and the number of calls that each stands for."""


class Durations:
    """The durations of the calls of one phase. A measurement may stand for several calls of equal length."""

    __slots__ = (
        *("_calls", "_dice", "_next", "_seconds", "_seen", "_width"),
        *("count", "max", "min", "squares", "total"),
    )

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.squares = 0.0
        self.min, self.max = math.inf, 0.0
        self._seconds, self._calls = array("d", bytes(8 * KEPT)), array("q", bytes(8 * KEPT))
        self._seen = 0
        self._next = 0
        """The number of the next measurement that is kept."""
        self._width = 1.0
        self._dice = Random(0)

    def add(self, seconds: float, calls: int = 1) -> None:
        """Add a measurement of so many calls."""
        each = seconds / calls
        self.count += calls
        self.total += seconds
        self.squares += seconds * each
        if each < self.min:
            self.min = each
        if each > self.max:
            self.max = each
        if self._seen == self._next:
            self._keep(each, calls)
        self._seen += 1

    def _keep(self, each: float, calls: int) -> None:
        """Keep this measurement, in the place of a random one if there are `KEPT`; draw which one is next."""
        place = self._seen if self._seen < KEPT else self._dice.randrange(KEPT)
        self._seconds[place], self._calls[place] = each, calls
        self._next += 1
        if self._next >= KEPT:
            self._width *= math.exp(math.log(1 - self._dice.random()) / KEPT)
            self._next += int(math.log(1 - self._dice.random()) / math.log1p(-self._width))

    def measured(self) -> Measured:
        """Return what was measured so far."""
        filled = min(self._seen, KEPT)
        kept = self._seconds[:filled], self._calls[:filled]
        return Measured(self.count, self.total, self.squares, self.min, self.max, kept)


def statistics(ranks: Sequence[Measured]) -> Statistics | None:
    """Compute the statistics of all calls of one rank or of several together; None if there was no call."""
    ranks = [measured for measured in ranks if measured.count]
    if not ranks:
        return None
    count, total = sum(one.count for one in ranks), math.fsum(one.total for one in ranks)
    mean = total / count
    # Rounding may leave less than nothing where all calls took about as long.
    apart = max(0.0, math.fsum(one.squares for one in ranks) - total * mean)
    return Statistics(
        count,
        total,
        mean,
        _median(ranks),
        math.sqrt(apart / (count - 1)) if count > 1 else 0.0,
        min(one.min for one in ranks),
        max(one.max for one in ranks),
    )


def _median(ranks: Sequence[Measured]) -> float:
    """Return the median of what was kept, each as often as it stands for calls of its rank."""
    weighted = sorted(
        (seconds, calls * one.count / sum(one.kept[1]))
        for one in ranks
        for seconds, calls in zip(*one.kept, strict=True)
    )
    half, passed = sum(weight for _, weight in weighted) / 2, 0.0
    for place, (seconds, weight) in enumerate(weighted):
        passed += weight
        if math.isclose(passed, half, rel_tol=1e-9) and place + 1 < len(weighted):
            return (seconds + weighted[place + 1][0]) / 2
        if passed > half:
            return seconds
    return weighted[-1][0]
