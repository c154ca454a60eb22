"""Graphs: work of several launches and copies, captured once and replayed with one call.

A launch costs the host some microseconds, often more than the device needs for it; a replay costs that once
for all it holds. Bind the launches and allocate first, then::

    with capture(driver, streams.compute) as graph:
        first(streams.compute)
        second(streams.compute)
    for _ in range(steps):
        graph(streams.compute)

Nothing runs during the capture. What is captured are the calls with their arguments: each replay reads and
writes the same memory, device and (pinned) host, with what is in it by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from pyrt.driver import Driver, StreamHandle


class Graph:
    """Captured work, to be queued on a stream any number of times, like a `Launch`; one replay at a time."""

    __slots__ = ("call",)

    def __init__(self) -> None:
        self.call: Callable[[StreamHandle], None] = _not_yet

    def __call__(self, stream: StreamHandle) -> None:
        self.call(stream)


def _not_yet(stream: StreamHandle) -> None:
    raise RuntimeError("this graph's capture has not ended well: there is nothing to replay")


@contextmanager
def capture(driver: Driver, stream: StreamHandle) -> Iterator[Graph]:
    """Capture what the stream is given within the block; the graph can be replayed after it.

    Other streams take part from where they wait for an event that was recorded in the block; at its end the
    first stream must have waited for all of them. An event that is to be asked outside, for times, is
    recorded by `Driver.record_in_graph`. See `Driver.begin_capture` for what must not be done meanwhile.

    The stream can be used again where the block raises, too. Raises RuntimeError where no graph comes of it.
    """
    graph = Graph()
    driver.begin_capture(stream)
    try:
        yield graph
    except BaseException:
        with suppress(RuntimeError):  # what went wrong is on its way already
            driver.end_capture(stream)
        raise
    graph.call = driver.end_capture(stream)
