"""The seconds of each epoch, between marks in the stream that computes.

The host queues steps well ahead of a GPU, and reads the losses of several epochs at once: its own clock
cannot tell when one of them ended. An event that is recorded behind an epoch's last step can.
"""

from __future__ import annotations

from pyrt.driver import Driver, EventHandle, StreamHandle


class EpochClock:
    """Marks the ends of epochs as they are queued, and tells the seconds of each, in order, later."""

    def __init__(self, driver: Driver, stream: StreamHandle, most: int) -> None:
        """``most``: epochs that are marked and not told yet."""
        self._driver, self._stream = driver, stream
        self._events = [driver.create_event(timing=True) for _ in range(most + 1)]
        self._told = self._marked = 0
        """Places of the latest marks, counted from 0 through the whole run."""

    def start(self) -> None:
        """Let the next epoch begin here: no time before this counts. All that was marked has been told."""
        self._record(self._marked)

    def mark(self) -> None:
        """Mark the end of an epoch behind all that is queued; the next one begins there."""
        self._marked += 1
        self._record(self._marked)

    def seconds(self) -> float:
        """Return the time of the earliest epoch not told yet; waits for its end."""
        begin = self._event(self._told)
        self._told += 1
        end = self._event(self._told)
        self._driver.synchronize_event(end)
        return self._driver.elapsed(begin, end)

    def _record(self, place: int) -> None:
        self._driver.record(self._event(place), self._stream)

    def _event(self, place: int) -> EventHandle:
        return self._events[place % len(self._events)]
