"""How long a piece of work takes, on every rank at the same time."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import numpy as np

from nn.launches import Kernels
from nn.operations import Operation
from pyrt.driver import Driver, StreamHandle
from pyrt.graphs import capture
from pyrt.job import Job

ROUNDS = 5
"""Repetitions of which the median counts."""

SPAN, SLOW = 1e-3, 20e-3
"""Seconds that a repetition is to last, and of one piece of work that is done once alone."""

Work = Callable[[StreamHandle], object]


class Clock:
    """Times work on a stream of its own, while all ranks do the same."""

    def __init__(self, driver: Driver, job: Job) -> None:
        self._driver, self._job = driver, job
        self.stream = driver.create_stream()
        self._start, self._stop = (driver.create_event(timing=True) for _ in range(2))

    def seconds(self, work: Work) -> float:
        """Of one piece of it."""
        self._job.comm.Barrier()
        self._once(work)
        once = self._once(work)
        if once > SLOW:
            return once
        count = max(1, min(200, round(SPAN / max(once, 1e-9))))
        many = together(self._driver, self.stream, work, count)
        return statistics.median(self._once(many, many) for _ in range(ROUNDS)) / count

    def _once(self, work: Work, behind: Work | None = None) -> float:
        """Queued behind something, so that a device does not wait for the host in between."""
        if behind is not None and self._driver.has_kernels:
            behind(self.stream)
        self._driver.record(self._start, self.stream)
        work(self.stream)
        self._driver.record(self._stop, self.stream)
        self._driver.synchronize_event(self._stop)
        return self._driver.elapsed(self._start, self._stop)


def together(driver: Driver, stream: StreamHandle, work: Work, count: int) -> Work:
    """So many times the work as one piece of it: a graph, on a device that has them."""
    if not driver.has_kernels:
        return repeated(work, count)
    with capture(driver, stream) as graph:
        repeated(work, count)(stream)
    return graph


def repeated(work: Work, count: int) -> Work:
    """So many times the work, one after another."""

    def repeat(stream: StreamHandle) -> None:
        for _ in range(count):
            work(stream)

    return repeat


def bound(operation: Operation, kernels: Kernels | None) -> Work:
    """An operation on the device; without kernels in NumPy."""
    if kernels is not None:
        return operation.on_device(kernels)
    compute = operation.in_numpy()
    return lambda stream: compute()


def medians(job: Job, values: Sequence[float]) -> list[float]:
    """Over all ranks, one by one. Collective."""
    return [float(value) for value in np.median(job.comm.allgather(list(values)), axis=0)]
