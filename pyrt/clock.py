"""How long work takes: by the device's own clock, events around it in its stream; by the host's, for calls
that wait for their end."""

from __future__ import annotations

import time
from collections.abc import Callable

from pyrt.driver import Driver, StreamHandle
from pyrt.graphs import capture

Work = Callable[[StreamHandle], object]
"""Queues something on the stream that it is given."""

WARM_UP = 0.2
"""Seconds of calls before those that count, in which clocks rise and caches fill."""

SPAN, LEAST, MOST = 1.0, 3, 20_000
"""Seconds in which calls are timed, and the least and the most of them."""


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


def seconds_of_calls(call: Callable[[], object]) -> list[float]:
    """Time many calls one after another, each by itself, by the host's clock."""
    clock = time.perf_counter
    seconds = [0.0] * MOST
    end = clock() + WARM_UP
    call()
    while clock() < end:
        call()
    end, count = clock() + SPAN, 0
    while count < MOST and (count < LEAST or clock() < end):
        start = clock()
        call()
        seconds[count] = clock() - start
        count += 1
    return seconds[:count]
