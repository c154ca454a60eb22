"""How long a piece of work takes, on every rank at the same time."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

from pyrt.clock import StreamClock, Work, together
from pyrt.driver import Driver
from pyrt.driver.null import NullDriver
from pyrt.job import Job

ROUNDS = 5
"""Repetitions of which the median counts."""

SPAN, SLOW = 1e-3, 20e-3
"""Seconds that a repetition is to last, and of one piece of work that is done once alone."""


class Clock:
    """Times work on a stream of its own, while all ranks do the same."""

    def __init__(self, driver: Driver, job: Job) -> None:
        self._job, self._clock = job, StreamClock(driver, driver.create_stream())
        self._runs = not isinstance(driver, NullDriver)

    def seconds(self, work: Work, before: Sequence[Work] = ()) -> float:
        """Return the seconds of one piece of work; on the null device one second. ``before`` is done once."""
        if not self._runs:
            return 1.0
        clock = self._clock
        for one in before:
            one(clock.stream)
        self._job.comm.Barrier()
        clock.seconds(work)
        once = clock.seconds(work)
        if once > SLOW:
            return once
        count = max(1, min(200, round(SPAN / max(once, 1e-9))))
        many = together(clock.driver, clock.stream, work, count)
        # Queued behind as many, so that a device does not wait for the host in between.
        behind = many if clock.driver.has_kernels else None
        return statistics.median(clock.seconds(many, behind) for _ in range(ROUNDS)) / count


def medians(job: Job, values: Sequence[float]) -> list[float]:
    """Over all ranks, one by one. Collective."""
    return [float(value) for value in np.median(job.comm.allgather(list(values)), axis=0)]
