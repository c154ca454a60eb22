"""How long work takes, by the device's own clock: events around it in its stream."""

from __future__ import annotations

from collections.abc import Callable

from pyrt.driver import Driver, StreamHandle
from pyrt.graphs import capture

Work = Callable[[StreamHandle], object]
"""Queues something on the stream that it is given."""


class StreamClock:
    """Times work on one stream by two events of the device."""

    def __init__(self, driver: Driver, stream: StreamHandle) -> None:
        self.driver = driver
        self.stream = stream
        self._start, self._stop = (driver.create_event(timing=True) for _ in range(2))

    def seconds(self, work: Work, behind: Work | None = None) -> float:
        """Time the work on the device, queued ``behind`` something or started idle."""
        if behind is not None:
            behind(self.stream)
        self.driver.record(self._start, self.stream)
        work(self.stream)
        self.driver.record(self._stop, self.stream)
        self.driver.synchronize_event(self._stop)
        return self.driver.elapsed(self._start, self._stop)


def repeated(work: Work, count: int) -> Work:
    """``count`` times the work, one after another."""

    def repeat(stream: StreamHandle) -> None:
        for _ in range(count):
            work(stream)

    return repeat


def together(driver: Driver, stream: StreamHandle, work: Work, count: int) -> Work:
    """``count`` times the work as one piece of work: a graph, on a device that has them."""
    if not driver.has_kernels:
        return repeated(work, count)
    with capture(driver, stream) as graph:
        repeated(work, count)(stream)
    return graph
