"""The whole training set on the device: of a batch only the row numbers go up, an epoch's at a time.

    helpers   | orders of epochs e+1, e+2, .. into pinned memory |
    upload                                      | copy e+1 |
    compute   | epoch e: each step gathers its rows        | epoch e+1

Two epochs' orders lie behind each other on the device and take turns, so that the place of a batch in them
runs on from step to step, and around at their end. All batches take the same room, a short last one too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from nn.input.dataset import Samples
from nn.input.prefetch import Orders
from nn.input.schedule import Schedule
from nn.input.source import BatchCursor, Gathered
from pyrt.arrays import DeviceArray, pinned
from pyrt.driver import Driver
from pyrt.phases import Phase
from pyrt.streams import Streams
from pyrt.workers import Helper


class Resident:
    """The training batches of this rank, gathered where they are."""

    def __init__(
        self,
        driver: Driver,
        streams: Streams,
        phase: Callable[..., Phase],
        samples: Samples,
        schedule: Schedule,
        rows: int,
        drawing: Sequence[Helper],
    ) -> None:
        """Upload images (n, D) and labels (n,) int32; at most ``rows`` of a batch are this rank's."""
        self._driver, self._streams, self._schedule = driver, streams, schedule
        self.steps_at_once = schedule.batches
        with phase("copying images host -> device", streams.upload):
            self._images, self._labels = (
                _uploaded(driver, streams, host[: schedule.used]) for host in samples
            )
        self._copying = phase("row order host -> device", streams.upload)
        self.cursor = BatchCursor.first(driver, schedule.batch, _places(schedule))
        self._batch_labels = DeviceArray.empty(driver, (rows,), np.int32)
        self._orders = DeviceArray.empty(driver, (_places(schedule),), np.int32)
        # One for each helper, and one whose copy may still be under way.
        self._host = pinned(driver, (len(drawing) + 1, schedule.samples), np.int32)
        self._uploaded = [driver.create_event(timing=False) for _ in range(2)]
        self._consumed = [driver.create_event(timing=False) for _ in range(2)]
        for uploaded, consumed in zip(self._uploaded, self._consumed, strict=True):
            driver.record(uploaded, streams.upload)
            driver.record(consumed, streams.compute)
        self._drawn = Orders(self._draw, schedule.epochs, drawing)

    def source(self, first: int) -> Gathered:
        """Return the training set and its order; this rank's part begins ``first`` rows into a batch."""
        order = self._orders.rows(first, self._orders.size)
        return Gathered(self._images, self._labels, order, self.cursor, self._batch_labels, order)

    def start(self, step: int) -> None:
        """Send the order of the first step's epoch on its way."""
        epoch = self._schedule.epoch(step)
        self.cursor.go_to(step)
        self._drawn.start(epoch)
        self._send(epoch)
        self._wait_for(epoch)

    def begin(self, step: int) -> None:
        """Let the compute stream wait for the order that a step is the first to need."""
        if self._schedule.first(step) == 0:
            self._wait_for(self._schedule.epoch(step))

    def end(self, step: int) -> None:
        """Record an event after an epoch's last step: all work on its batches is queued."""
        if self._ends_epoch(step):
            self._driver.record(self._consumed[self._schedule.epoch(step) % 2], self._streams.compute)

    def prefetch(self, step: int) -> None:
        """While an epoch's last steps compute: send the next one's order."""
        if self._ends_epoch(step) and step + 1 < self._schedule.steps:
            self._send(self._schedule.epoch(step) + 1)

    def close(self) -> None:
        """Stop drawing the orders of epochs."""
        self._drawn.close()

    def _ends_epoch(self, step: int) -> bool:
        return (step + 1) % self._schedule.batches == 0

    def _wait_for(self, epoch: int) -> None:
        self._driver.wait(self._streams.compute, self._uploaded[epoch % 2])

    def _send(self, epoch: int) -> None:
        driver, upload, half = self._driver, self._streams.upload, epoch % 2
        first = half * _places(self._schedule) // 2
        with self._copying:
            driver.synchronize_event(self._uploaded[1 - half])  # take() has another order drawn in its place
            order = self._drawn.take()
            driver.wait(upload, self._consumed[half])
            self._orders.rows(first, first + len(order)).queue_upload(order, upload)
            driver.record(self._uploaded[half], upload)

    def _draw(self, epoch: int) -> np.ndarray:
        rows = self._host[epoch % len(self._host)]
        np.copyto(rows, self._schedule.order(epoch), casting="unsafe")
        return rows


def _places(schedule: Schedule) -> int:
    """Return the place in the orders of two epochs."""
    return 2 * schedule.batches * schedule.batch


def _uploaded(driver: Driver, streams: Streams, host: np.ndarray) -> DeviceArray:
    array = DeviceArray.empty(driver, host.shape, host.dtype)
    array.queue_upload(np.ascontiguousarray(host), streams.upload)
    driver.synchronize_stream(streams.upload)
    return array
