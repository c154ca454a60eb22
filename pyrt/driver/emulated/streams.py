"""The streams, events and graphs of the emulated device, and the errors of what is queued on them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from random import Random

from pyrt.driver.emulated.graphs import Capture
from pyrt.driver.emulated.handles import Event, Recording, Stream, Work
from pyrt.driver.emulated.runtime import DeviceError
from pyrt.driver.emulated.workers import Uses, Workers


class EmulatedStreams:
    """The calls of the driver for streams, events and graphs.

    ``sanitize`` keeps a note of the memory that queued work uses; ``dice`` lets streams fall behind.
    """

    def __init__(self, sanitize: bool, dice: Random | None) -> None:
        self._sanitize = sanitize
        self._dice = dice
        self._workers = Workers(self._report, dice)
        self._uses = Uses()
        self._captures: set[Recording] = set()
        self._lock = threading.Lock()
        self._error: Exception | None = None

    def create_stream(self) -> Stream:
        return self._workers.create_stream()

    def synchronize_stream(self, stream: Stream) -> None:
        if stream.capture is not None:
            stream.capture.fail("synchronize_stream")
        stream.mark().wait()
        self._raise_error()

    def synchronize(self) -> None:
        self._require_no_capture("synchronize")
        self._workers.wait()
        self._raise_error()

    def create_event(self, timing: bool) -> Event:
        return Event()

    def record(self, event: Event, stream: Stream) -> None:
        if stream.capture is not None:
            event.place = stream.capture.mark(stream)
        else:
            event.record(stream)

    def wait(self, stream: Stream, event: Event) -> None:
        if event.place is not None:
            event.place.capture.join(stream, event.place)
        elif stream.capture is not None:
            stream.capture.fail("a wait for an event that was recorded before it")
        else:
            event.wait(stream)

    def is_done(self, event: Event) -> bool:
        _require_no_place(event)
        return event.mark.passed

    def synchronize_event(self, event: Event) -> None:
        _require_no_place(event)
        event.mark.wait()
        self._raise_error()

    def elapsed(self, start: Event, stop: Event) -> float:
        _require_no_place(start)
        _require_no_place(stop)
        return stop.mark.time - start.mark.time

    # graphs

    def begin_capture(self, stream: Stream) -> None:
        if stream.capture is not None:
            stream.capture.fail("begin_capture")
        self._captures.add(Capture(stream))

    def end_capture(self, stream: Stream) -> Callable[[Stream], None]:
        if stream.capture is None or stream.capture.origin is not stream:
            raise DeviceError("end_capture on a stream on which no capture began")
        self._captures.remove(stream.capture)
        return stream.capture.end(self.create_stream)

    def record_in_graph(self, event: Event, stream: Stream) -> None:
        if stream.capture is None:
            raise DeviceError("record_in_graph on a stream that is not being captured")
        stream.capture.add(stream, event.record)

    # what is queued, and its errors

    def _queue(
        self, stream: Stream, what: str, addresses: Sequence[int], prepare: Callable[[], Work]
    ) -> None:
        """Queue what ``prepare`` makes now, or in a graph at each replay: work with these addresses."""
        if stream.capture is not None:
            stream.capture.add(stream, lambda lane: self._queue(lane, what, addresses, prepare))
            return
        work = prepare()
        stream.queue(self._uses.noting(what, addresses, work) if self._sanitize else work)

    # streams and events

    def _require_no_capture(self, what: str) -> None:
        for capture in self._captures:
            capture.fail(what)

    def _report(self, error: Exception) -> None:
        """Keep an error for the next synchronisation, later ones as its notes; streams' threads call this."""
        with self._lock:
            if self._error is None:
                self._error = error
            else:
                self._error.add_note(str(error))

    def _raise_error(self) -> None:
        with self._lock:
            error, self._error = self._error, None
        if error is not None:
            raise error


def _require_no_place(event: Event) -> None:
    """Raise DeviceError for an event that the host asks for and a capture has."""
    if event.place is not None:
        event.place.capture.fail("the host asks for an event that was recorded")
