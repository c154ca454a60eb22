"""Streams and events of the emulated device, and what they are to a capture.

A stream is a thread that works through a queue (pyrt/driver/emulated/workers.py); a capture notes what its
streams are given (pyrt/driver/emulated/graphs.py).
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, Protocol

Work = Callable[[], None]
WorkQueue = queue.SimpleQueue[Work | None]


class Mark:
    """A place in a stream, and when it was passed."""

    def __init__(self) -> None:
        self._passed = threading.Event()
        self.time = 0.0

    def pass_by(self) -> None:
        self.time = time.perf_counter()
        self._passed.set()

    @property
    def passed(self) -> bool:
        return self._passed.is_set()

    def wait(self) -> None:
        self._passed.wait()


_PASSED = Mark()
_PASSED.pass_by()


class Event:
    """The latest place that was marked; at first one that everybody has passed.

    ``place`` is that place where it lies in a capture, so that no stream will ever pass it.
    """

    def __init__(self) -> None:
        self.mark = _PASSED
        self.place: Place | None = None

    def record(self, stream: Stream) -> None:
        self.mark = stream.mark()
        self.place = None

    def wait(self, stream: Stream) -> None:
        """Let the stream wait for the mark that is the latest now."""
        stream.queue(self.mark.wait)


@dataclass(frozen=True)
class Place:
    """Where in a capture an event was recorded."""

    capture: Recording
    event: Event
    """Recorded there in each replay."""
    past: dict[Stream, int]
    """How much work of each stream lies before."""


class Stream:
    """A place to queue work. Its worker ends once this handle is out of use and the work is done.

    While it has a ``capture``, what the driver is asked to do here goes there.
    """

    def __init__(self, work: WorkQueue) -> None:
        self.capture: Recording | None = None
        self._work = work
        weakref.finalize(self, work.put, None)

    def queue(self, work: Work) -> None:
        self._work.put(work)

    def mark(self) -> Mark:
        """Put a new mark behind all that was queued."""
        return mark(self._work)


Call = Callable[[Stream], None]
"""Queues work on the stream that it is given."""


class Recording(Protocol):
    """What takes the place of streams that are captured: see `pyrt.driver.emulated.graphs.Capture`."""

    origin: Stream

    def add(self, stream: Stream, queue: Call) -> None:
        """Note a call that queues work on the stream it is given."""

    def mark(self, stream: Stream) -> Place:
        """Mark this place in the stream."""

    def join(self, stream: Stream, place: Place) -> None:
        """Let a stream wait for a place of this capture; from then on it belongs to it."""

    def fail(self, what: str) -> NoReturn:
        """Raise DeviceError for what must not be done during a capture; no graph will come of it."""

    def end(self, create_stream: Callable[[], Stream]) -> Call:
        """Return a callable that queues the graph on a stream; its other lanes get streams of their own."""


def mark(work: WorkQueue) -> Mark:
    """Put a new mark behind all that was queued."""
    place = Mark()
    work.put(place.pass_by)
    return place
