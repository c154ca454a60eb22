"""Batches on their way to the device: rows into a pinned buffer, copied up while the batch before computes.

    helpers   | rows of k+2, k+3, .. | rows of k+3, k+4, .. |
    upload    | copy k+1 |           | copy k+2 |
    compute   | batch k              | batch k+1            |

Images stay as the data set has them (uint8: a quarter of the bytes); a kernel scales them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import numpy as np

from nn import operations
from nn.ahead import Deferred, Helper, Orders
from nn.batches import Schedule
from nn.operations import Operation
from nn.plan import share
from pyrt.driver import Driver
from pyrt.job import Job
from pyrt.memory import DeviceArray, pinned
from pyrt.phases import Phase
from pyrt.streams import Streams


class Source(Protocol):
    """Where a step finds its batch."""

    @property
    def labels(self) -> DeviceArray:
        """Of the batch's rows, and perhaps more."""

    def scaled(self, X: DeviceArray, scale: float) -> Operation:
        """A step's first operation: X (rows, D) = the batch's images / scale; ``labels`` are there too."""


class Slot:
    """Room for one batch of this rank on the device, and who is done with it."""

    def __init__(self, driver: Driver, rows: int, columns: int, dtype: np.dtype) -> None:
        self.images = DeviceArray.empty(driver, (rows, columns), dtype)
        self.labels = DeviceArray.empty(driver, (rows,), np.int32)
        self.uploaded = driver.create_event(timing=False)
        self.consumed = driver.create_event(timing=False)

    def scaled(self, X: DeviceArray, scale: float) -> Operation:
        """X = images / scale."""
        return operations.scale_pixels(self.images.rows(0, X.shape[0]), X, scale)


class Room:
    """Room for one batch of this rank on the host, and how much of it is used until it is ``sent``."""

    def __init__(self, driver: Driver, rows: int, columns: int, dtype: np.dtype) -> None:
        self.images = pinned(driver, (rows, columns), dtype)
        self.labels = pinned(driver, (rows,), np.int32)
        self.sent = driver.create_event(timing=False)
        self.rows = 0


class Feed:
    """Two slots on the device that take turns; batch k goes through ``slot(k)``.

    Each helper gathers a batch at a time, into a room of its own; so one more batch than there are helpers
    can be on its way: gathering takes longer than its step on a fast GPU.
    """

    def __init__(
        self,
        driver: Driver,
        streams: Streams,
        copying: Phase,
        images: np.ndarray,
        labels: np.ndarray,
        rows: int,
        helpers: Sequence[Helper] = (),
    ) -> None:
        """``images`` (n, D) and ``labels`` (n,) int32 on the host; at most ``rows`` of them at a time.

        ``copying`` is the phase that copies, and waiting for their rows, are charged to.
        """
        self._driver = driver
        self._streams = streams
        self._images = images
        self._labels = labels
        self._copying = copying
        self.helpers = list(helpers) or [Deferred()]
        self.slots = [Slot(driver, rows, images.shape[1], images.dtype) for _ in range(2)]
        # One for each helper, and two whose copies may still be under way.
        self._rooms = [
            Room(driver, rows, images.shape[1], images.dtype) for _ in range(len(self.helpers) + 2)
        ]
        for slot in self.slots:
            driver.record(slot.uploaded, streams.upload)
            driver.record(slot.consumed, streams.compute)
        for room in self._rooms:
            driver.record(room.sent, streams.upload)

    def slot(self, batch: int) -> Slot:
        """The slot that batch number ``batch`` goes through."""
        return self.slots[batch % len(self.slots)]

    def gather(self, batch: int, rows: np.ndarray) -> None:
        """Start gathering these rows (n,) of the data set; the batches before it have been sent, but for
        the last ones, one less than there are helpers."""
        room = self._rooms[batch % len(self._rooms)]
        self._driver.synchronize_event(room.sent)  # long since, in all likelihood
        room.rows = len(rows)
        self.helpers[batch % len(self.helpers)].start(partial(self._take, room, rows))

    def send(self, batch: int) -> None:
        """Queue the copies of a batch whose gathering was started, once its rows and its slot are there."""
        slot, room = self.slot(batch), self._rooms[batch % len(self._rooms)]
        driver, upload, count = self._driver, self._streams.upload, room.rows
        with self._copying:
            self.helpers[batch % len(self.helpers)].wait()
            if count:
                driver.wait(upload, slot.consumed)
                driver.copy_to_device(slot.images.pointer, room.images[:count], upload)
                driver.copy_to_device(slot.labels.pointer, room.labels[:count], upload)
            driver.record(slot.uploaded, upload)
            driver.record(room.sent, upload)

    def stage(self, batch: int, rows: np.ndarray) -> None:
        """Gather these rows (n,) and queue their copies."""
        self.gather(batch, rows)
        self.send(batch)

    def begin(self, batch: int) -> None:
        """Let the compute stream wait for the batch."""
        self._driver.wait(self._streams.compute, self.slot(batch).uploaded)

    def end(self, batch: int) -> None:
        """All work on the batch's images and labels is queued: the slot is free after it."""
        self._driver.record(self.slot(batch).consumed, self._streams.compute)

    def close(self) -> None:
        """Nobody writes into host memory any more."""
        for helper in self.helpers:
            helper.close()

    def _take(self, room: Room, rows: np.ndarray) -> None:
        # mode: with the default, take() would go through a buffer of its own
        np.take(self._images, rows, axis=0, out=room.images[: len(rows)], mode="clip")
        np.take(self._labels, rows, out=room.labels[: len(rows)], mode="clip")


class Batches(Protocol):
    """The training batches of this rank: ``start``, then for each step ``begin``, its work, ``end``, and
    ``ahead``."""

    slots: int
    """Steps whose numbers differ by this find their batch in the same place."""

    def source(self, step: int, first: int) -> Source:
        """Where this step finds its batch, of which this rank's part begins with row ``first``."""

    def start(self) -> None:
        """Send what the first step needs on its way."""

    def begin(self, step: int) -> None:
        """Let the compute stream wait for what a step needs."""

    def end(self, step: int) -> None:
        """All work on the batch of this step, and on those before it, is queued."""

    def ahead(self, step: int) -> None:
        """While this step computes, send what the next one needs."""

    def close(self) -> None:
        """No more batches are asked for: nothing is done beside the caller any more."""


class Streamed:
    """The training batches of this rank, each sent through a feed when its turn comes."""

    def __init__(self, feed: Feed, schedule: Schedule, job: Job, drawing: Helper) -> None:
        self._feed, self._schedule, self._job = feed, schedule, job
        self._orders = Orders(schedule.order, schedule.epochs, drawing)
        self._order = np.empty(0, int)
        self.slots = len(feed.slots)
        self._ahead = len(feed.helpers) + 1

    def source(self, step: int, first: int) -> Source:
        """The step's slot, which holds this rank's part alone."""
        return self._feed.slot(step)

    def start(self) -> None:
        """Send the first batch on its way."""
        self._orders.start()
        self._gather(0)
        self._feed.send(0)
        for step in range(1, self._ahead):
            self._gather(step)

    def begin(self, step: int) -> None:
        """Let the compute stream wait for the batch of a step."""
        self._feed.begin(step)

    def end(self, step: int) -> None:
        """All work on the batch of a step is queued."""
        self._feed.end(step)

    def ahead(self, step: int) -> None:
        """While a step computes: send the batch after it, and have another one gathered."""
        if step + 1 < self._schedule.steps:
            self._feed.send(step + 1)
            self._gather(step + self._ahead)

    def close(self) -> None:
        """No more batches are asked for."""
        self._orders.close()
        self._feed.close()

    def _gather(self, step: int) -> None:
        schedule, job = self._schedule, self._job
        if step >= schedule.steps:
            return
        first = schedule.first(step)
        if first == 0:
            self._order = self._orders.take()
        start, stop = share(schedule.size(step), job.size, job.rank)
        self._feed.gather(step, self._order[first + start : first + stop])
