"""Batches on their way to the device: rows into a pinned buffer, copied up while the batch before computes.

    helpers   | rows of k+2 into pinned slot | ...
    upload    | copy k+1 |                   | copy k+2 |
    compute   |  batch k                     | batch k+1

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
    """Room for one batch of this rank on the host and on the device, and who is done with it."""

    def __init__(self, driver: Driver, rows: int, columns: int, dtype: np.dtype) -> None:
        self.host_images = pinned(driver, (rows, columns), dtype)
        self.host_labels = pinned(driver, (rows,), np.int32)
        self.images = DeviceArray.empty(driver, (rows, columns), dtype)
        self.labels = DeviceArray.empty(driver, (rows,), np.int32)
        self.uploaded = driver.create_event(timing=False)
        self.consumed = driver.create_event(timing=False)
        self.filled = 0
        """Rows of the batch in the host's half."""

    def scaled(self, X: DeviceArray, scale: float) -> Operation:
        """X = images / scale."""
        return operations.scale_pixels(self.images.rows(0, X.shape[0]), X, scale)


class Feed:
    """Two slots that take turns; batch k goes through ``slot(k)``."""

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

        ``copying`` is the phase that copies, and waiting for their rows, are charged to. ``helpers`` share
        the gathering of rows.
        """
        self._driver = driver
        self._streams = streams
        self._images = images
        self._labels = labels
        self._copying = copying
        self._helpers = list(helpers) or [Deferred()]
        self.slots = [Slot(driver, rows, images.shape[1], images.dtype) for _ in range(2)]
        for slot in self.slots:
            driver.record(slot.uploaded, streams.upload)
            driver.record(slot.consumed, streams.compute)

    def slot(self, batch: int) -> Slot:
        """The slot that batch number ``batch`` goes through."""
        return self.slots[batch % len(self.slots)]

    def gather(self, batch: int, rows: np.ndarray) -> None:
        """Start putting these rows (n,) of the data set into the host's half of the slot."""
        slot = self.slot(batch)
        self._driver.synchronize_event(slot.uploaded)  # two batches ago: done long since
        slot.filled = len(rows)
        for part, helper in enumerate(self._helpers):
            start, stop = share(len(rows), len(self._helpers), part)
            helper.start(partial(self._take, slot, rows[start:stop], start, stop))

    def send(self, batch: int) -> None:
        """Queue the copies of a batch whose gathering was started, once its rows and its slot are there."""
        slot, count = self.slot(batch), self.slot(batch).filled
        driver, upload = self._driver, self._streams.upload
        with self._copying:
            for helper in self._helpers:
                helper.wait()
            if count:
                driver.wait(upload, slot.consumed)
                driver.copy_to_device(slot.images.pointer, slot.host_images[:count], upload)
                driver.copy_to_device(slot.labels.pointer, slot.host_labels[:count], upload)
            driver.record(slot.uploaded, upload)

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
        """Nobody writes into the slots any more."""
        for helper in self._helpers:
            helper.close()

    def _take(self, slot: Slot, rows: np.ndarray, start: int, stop: int) -> None:
        # mode: with the default, take() would go through a buffer of its own
        np.take(self._images, rows, axis=0, out=slot.host_images[start:stop], mode="clip")
        np.take(self._labels, rows, out=slot.host_labels[start:stop], mode="clip")


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

    def source(self, step: int, first: int) -> Source:
        """The step's slot, which holds this rank's part alone."""
        return self._feed.slot(step)

    def start(self) -> None:
        """Send the first batch on its way."""
        self._orders.start()
        self._gather(0)
        self._feed.send(0)
        self._gather(1)

    def begin(self, step: int) -> None:
        """Let the compute stream wait for the batch of a step."""
        self._feed.begin(step)

    def end(self, step: int) -> None:
        """All work on the batch of a step is queued."""
        self._feed.end(step)

    def ahead(self, step: int) -> None:
        """While a step computes: send the batch after it, and have the one after that gathered."""
        if step + 1 < self._schedule.steps:
            self._feed.send(step + 1)
            self._gather(step + 2)

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
