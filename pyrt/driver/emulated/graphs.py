"""Graphs of the emulated device: a capture notes what its streams are given, a replay gives it again.

Each stream of a capture becomes a lane of the graph. A replay has a stream for each lane: that of the launch
for the first one, and streams of the graph's own for the others. Events that were recorded and waited for
within the capture order the lanes, as they would have ordered the streams.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from pyrt.driver.emulated.handles import Call, Event, Place, Stream
from pyrt.driver.emulated.runtime import DeviceError


class Capture:
    """What a stream, and those that join it, are given from now on."""

    def __init__(self, origin: Stream) -> None:
        self.origin = origin
        self._over = ""
        self._calls: list[tuple[Stream, Call]] = []
        self._past: dict[Stream, dict[Stream, int]] = {origin: {}}
        origin.capture = self

    def add(self, stream: Stream, queue: Call) -> None:
        """Note a call that queues work on the stream it is given."""
        self._require_sound()
        self._calls.append((stream, queue))
        past = self._past[stream]
        past[stream] = past.get(stream, 0) + 1

    def mark(self, stream: Stream) -> Place:
        """Mark this place in the stream."""
        self._require_sound()
        event = Event()
        self._calls.append((stream, event.record))
        return Place(self, event, dict(self._past[stream]))

    def join(self, stream: Stream, place: Place) -> None:
        """Let a stream wait for a place of this capture; from then on it belongs to it."""
        self._require_sound()
        if stream.capture is None:
            stream.capture = self
            self._past[stream] = {}
        elif stream.capture is not self:
            what = "a wait for an event of another capture"
            self._spoil(what)
            stream.capture.fail(what)
        self._calls.append((stream, place.event.wait))
        past = self._past[stream]
        for other, count in place.past.items():
            past[other] = max(past.get(other, 0), count)

    def fail(self, what: str) -> NoReturn:
        """Raise DeviceError for what must not be done during a capture; no graph will come of it."""
        self._spoil(what)
        raise DeviceError(f"{what} during a capture")

    def end(self, create_stream: Callable[[], Stream]) -> Call:
        """Return a callable that queues the graph on a stream; its other lanes get streams of their own.

        Raises DeviceError where no graph can be made; the streams are free again in any case.
        """
        past, self._past = self._past, {}
        for stream in past:
            stream.capture = None
        self._require_sound()
        self._over = "it has ended"
        if any(past[self.origin].get(stream, 0) < done.get(stream, 0) for stream, done in past.items()):
            raise DeviceError("the capture ended before its first stream had waited for all that joined it")
        lanes = {stream: lane for lane, stream in enumerate(past)}
        calls = [(lanes[stream], call) for stream, call in self._calls]
        self._calls.clear()  # events that were recorded keep the capture
        return _launcher(calls, [create_stream() for _ in range(len(lanes) - 1)])

    def _spoil(self, what: str) -> None:
        self._over = self._over or f"broken by {what}"

    def _require_sound(self) -> None:
        if self._over:
            raise DeviceError(f"the capture is over: {self._over}")


def _launcher(calls: list[tuple[int, Call]], others: list[Stream]) -> Call:
    last = Event()

    def launch(stream: Stream) -> None:
        if stream.capture is not None:
            stream.capture.fail("the launch of a graph")
        streams = (stream, *others)
        last.wait(stream)  # a graph runs once at a time
        for lane, call in calls:
            call(streams[lane])
        last.record(stream)

    return launch
