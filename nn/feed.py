"""Batches on their way to the device: rows into a pinned buffer, copied up while the batch before computes.

    host      | rows of k+1 into pinned slot | ...
    upload                                   | copy k+1 |
    compute   |  batch k                                 | batch k+1

Images stay as the data set has them (uint8: a quarter of the bytes); a kernel scales them.
"""

from __future__ import annotations

import numpy as np

from pyrt.driver import Driver
from pyrt.memory import DeviceArray, pinned
from pyrt.phases import Phase
from pyrt.streams import Streams


class Slot:
    """Room for one batch of this rank on the host and on the device, and who is done with it."""

    def __init__(self, driver: Driver, rows: int, columns: int, dtype: np.dtype) -> None:
        self.host_images = pinned(driver, (rows, columns), dtype)
        self.host_labels = pinned(driver, (rows,), np.int32)
        self.images = DeviceArray.empty(driver, (rows, columns), dtype)
        self.labels = DeviceArray.empty(driver, (rows,), np.int32)
        self.uploaded = driver.create_event(timing=False)
        self.consumed = driver.create_event(timing=False)


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
    ) -> None:
        """``images`` (n, D) and ``labels`` (n,) int32 on the host; at most ``rows`` of them at a time.

        ``copying`` is the phase that ``stage`` is charged to.
        """
        self._driver = driver
        self._streams = streams
        self._images = images
        self._labels = labels
        self._copying = copying
        self.slots = [Slot(driver, rows, images.shape[1], images.dtype) for _ in range(2)]
        for slot in self.slots:
            driver.record(slot.uploaded, streams.upload)
            driver.record(slot.consumed, streams.compute)

    def slot(self, batch: int) -> Slot:
        """The slot that batch number ``batch`` goes through."""
        return self.slots[batch % len(self.slots)]

    def stage(self, batch: int, rows: np.ndarray) -> None:
        """Gather these rows (n,) of the data set and queue their copies, once the slot is free."""
        slot, count = self.slot(batch), len(rows)
        driver, upload = self._driver, self._streams.upload
        with self._copying:
            driver.synchronize_event(slot.uploaded)  # two batches ago: done long since
            if count:
                # mode: with the default, take() would go through a buffer of its own
                np.take(self._images, rows, axis=0, out=slot.host_images[:count], mode="clip")
                np.take(self._labels, rows, out=slot.host_labels[:count], mode="clip")
                driver.wait(upload, slot.consumed)
                driver.copy_to_device(slot.images.pointer, slot.host_images[:count], upload)
                driver.copy_to_device(slot.labels.pointer, slot.host_labels[:count], upload)
            driver.record(slot.uploaded, upload)

    def begin(self, batch: int) -> None:
        """Let the compute stream wait for the batch."""
        self._driver.wait(self._streams.compute, self.slot(batch).uploaded)

    def end(self, batch: int) -> None:
        """All work on the batch's images and labels is queued: the slot is free after it."""
        self._driver.record(self.slot(batch).consumed, self._streams.compute)
