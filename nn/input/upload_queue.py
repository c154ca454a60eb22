"""Rows on their way to the device: chunks of them into pinned buffers, copied up while another is used.

    helper 0  | rows of chunk c+2            | rows of chunk c+4 ..
    helper 1          | rows of chunk c+3            | ..
    upload    | copy c+1 |         | copy c+2 |
    compute   | work on chunk c    | work on chunk c+1  |

What a chunk costs the host beside its bytes (handing it to a helper and back, copies, events) it costs once,
however many batches are in it. Images stay as the data set has them (uint8: a quarter of the bytes); a kernel
scales them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from nn.input.source import Ready
from pyrt.arrays import DeviceArray, pinned
from pyrt.driver import Driver, EventHandle
from pyrt.phases import Phase
from pyrt.streams import Streams
from pyrt.workers import Deferred, Helper

_SLOTS = 2
"""Chunks on the device: one is used, one is copied there."""


@dataclass(frozen=True, eq=False)
class Slot:
    """Room for one chunk on the device, and who is done with it."""

    arrays: Sequence[DeviceArray]
    """Images, labels, and perhaps numbers."""
    uploaded: EventHandle
    consumed: EventHandle

    @property
    def images(self) -> DeviceArray:
        return self.arrays[0]

    @property
    def labels(self) -> DeviceArray:
        return self.arrays[1]

    @property
    def source(self) -> Ready:
        """Where a step finds the chunk."""
        return Ready(self.images, self.labels)


class StagingBuffer:
    """Room for one chunk on the host, and how much of it is used until it is ``sent``."""

    def __init__(self, driver: Driver, rows: int, samples: Sequence[np.ndarray]) -> None:
        self.arrays = [
            pinned(driver, (rows, *array.shape[1:]), array.dtype, write_only=True) for array in samples
        ]
        self.sent = driver.create_event(timing=False)
        self.rows = 0


class UploadQueue:
    """Slots on the device, one behind the other, that take turns; chunk c goes through ``slot(c)``.

    Each helper gathers a chunk at a time, into a room of its own: one thread alone needs longer for a batch
    than a fast GPU for its step.
    """

    def __init__(
        self,
        driver: Driver,
        streams: Streams,
        copying: Phase,
        samples: Sequence[np.ndarray],
        rows: int,
        helpers: Sequence[Helper] = (),
    ) -> None:
        """``samples`` are images (n, D), labels (n,) int32 and perhaps numbers (n,) int32, on the host.

        Chunks have at most ``rows`` of them. ``copying`` is the phase that copies, and waiting for their
        rows, are charged to.
        """
        self._driver = driver
        self._streams = streams
        self._samples = samples
        self._copying = copying
        self.rows = rows
        self.helpers = list(helpers) or [Deferred()]
        self._arrays = [
            DeviceArray.empty(driver, (_SLOTS * rows, *array.shape[1:]), array.dtype) for array in samples
        ]
        self.slots = [self._slot(start) for start in range(0, _SLOTS * rows, rows)]
        # One for each helper, and two whose copies may still be under way.
        self._staging = [StagingBuffer(driver, rows, samples) for _ in range(len(self.helpers) + 2)]
        for room in self._staging:
            driver.record(room.sent, streams.upload)

    @property
    def images(self) -> DeviceArray:
        return self._arrays[0]

    @property
    def labels(self) -> DeviceArray:
        return self._arrays[1]

    @property
    def numbers(self) -> DeviceArray | None:
        """The numbers of the samples on the device, if they have any."""
        return self._arrays[2] if len(self._arrays) > 2 else None

    def _slot(self, start: int) -> Slot:
        driver, stop = self._driver, start + self.rows
        uploaded, consumed = (driver.create_event(timing=False) for _ in range(2))
        driver.record(uploaded, self._streams.upload)
        driver.record(consumed, self._streams.compute)
        return Slot([array.rows(start, stop) for array in self._arrays], uploaded, consumed)

    def slot(self, chunk: int) -> Slot:
        """Return the slot that chunk number ``chunk`` goes through."""
        return self.slots[chunk % _SLOTS]

    def gather(self, chunk: int, rows: np.ndarray) -> None:
        """Start gathering these rows (n,) of the data set; the chunks before it have been sent, but for the
        last ones, one less than there are helpers."""
        room = self._staging[chunk % len(self._staging)]
        self._driver.synchronize_event(room.sent)  # long since, in all likelihood
        room.rows = len(rows)
        self.helpers[chunk % len(self.helpers)].start(partial(self._take, room, rows))

    def send(self, chunk: int) -> None:
        """Queue the copies of a chunk whose gathering was started, once its rows and its slot are there."""
        slot, room = self.slot(chunk), self._staging[chunk % len(self._staging)]
        driver, upload = self._driver, self._streams.upload
        with self._copying:
            self.helpers[chunk % len(self.helpers)].wait()
            driver.wait(upload, slot.consumed)
            for array, host in zip(slot.arrays, room.arrays, strict=True):
                driver.copy_to_device(array.pointer, host[: room.rows], upload)
            driver.record(slot.uploaded, upload)
            driver.record(room.sent, upload)

    def begin(self, chunk: int) -> None:
        """Let the compute stream wait for the chunk."""
        self._driver.wait(self._streams.compute, self.slot(chunk).uploaded)

    def end(self, chunk: int) -> None:
        """Mark the slot as free after the queued work, which is all work on the chunk's images and labels."""
        self._driver.record(self.slot(chunk).consumed, self._streams.compute)

    def close(self) -> None:
        """Nobody writes into host memory any more."""
        for helper in self.helpers:
            helper.close()

    def _take(self, room: StagingBuffer, rows: np.ndarray) -> None:
        """Gather the rows in one long call and short ones, all without the interpreter lock."""
        for array, host in zip(self._samples, room.arrays, strict=True):
            # mode: with the default, take() would go through a buffer of its own
            np.take(array, rows, axis=0, out=host[: room.rows], mode="clip")
