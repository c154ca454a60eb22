"""The training set stays on the host: rows of several steps go up at once, as a chunk of an upload queue.

    helpers   | rows of chunk c+2, c+3, .. |      (nn/input/upload_queue.py draws it)
    upload    | copy c+1 |
    compute   | step 4c | 4c+1 | 4c+2 | 4c+3 |    (with four steps in a chunk)

Chunks run on through all epochs, and around on the device: step s finds its batch at the (s mod n)-th of n
places, all as long as the longest part of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nn.input.prefetch import Orders
from nn.input.schedule import Schedule
from nn.input.source import BatchCursor, Gathered
from nn.input.upload_queue import UploadQueue
from nn.parallel.shard import Shard
from pyrt.arrays import DeviceArray
from pyrt.workers import Helper

CHUNK_BYTES = 20 * 1024 * 1024
"""The most that a chunk of several steps takes: eight of 3000 MNIST images. Smaller ones are handed over more
often; larger ones take more memory, on the host times the helpers and two, on the device times two."""


def steps_in_chunk(batch_bytes: int, batches: int) -> int:
    """Choose how many batches of so many bytes are copied at once: 1, 2, 4, .., of ``batches`` an epoch."""
    most = min(CHUNK_BYTES // batch_bytes, batches)
    return 1 << (max(1, most).bit_length() - 1)


class Streamed:
    """The training batches of this rank, sent through an upload queue a chunk at a time."""

    def __init__(
        self,
        queue: UploadQueue,
        schedule: Schedule,
        shard: Shard,
        rows: int,
        drawing: Sequence[Helper],
    ) -> None:
        """Set up for at most ``rows`` samples of a batch a rank; the queue's chunks hold a multiple of it."""
        self._queue, self._schedule, self._rows = queue, schedule, rows
        self.steps_at_once = queue.rows // rows
        driver = queue.labels.driver
        as_they_lie = DeviceArray.from_host(driver, np.arange(queue.labels.size, dtype=np.int32))
        self.cursor = BatchCursor.first(driver, rows, queue.labels.size)
        labels = DeviceArray.empty(driver, (rows,), np.int32)
        self._source = Gathered(queue.images, queue.labels, as_they_lie, self.cursor, labels, queue.numbers)
        self._mine = _parts(schedule, shard, rows)
        self._orders = Orders(self._draw, schedule.epochs, drawing)
        self._left = np.empty(0, int)
        """Row numbers of the current epoch that are not on their way yet."""
        self._gathered = self._sent = 0
        """Chunks."""

    def source(self, first: int) -> Gathered:
        """Return the queue's slots, which hold this rank's part alone."""
        return self._source

    def start(self, step: int) -> None:
        """Send the first step's chunk on its way, and have the next ones gathered."""
        chunk = step // self.steps_at_once
        first = chunk * self.steps_at_once  # perhaps in the epoch before
        self.cursor.go_to(step)
        self._orders.start(self._schedule.epoch(first))
        self._next(first % self._schedule.batches * self._rows)
        self._gathered = self._sent = chunk
        for _ in self._queue.helpers:
            self._gather()
        self._send()
        self._queue.begin(chunk)

    def begin(self, step: int) -> None:
        """Let the compute stream wait for the chunk that a step is the first of."""
        if step % self.steps_at_once == 0:
            self._queue.begin(step // self.steps_at_once)

    def end(self, step: int) -> None:
        """Mark a chunk as used up after its last step."""
        if (step + 1) % self.steps_at_once == 0:
            self._queue.end(step // self.steps_at_once)

    def prefetch(self, step: int) -> None:
        """While the first steps of a chunk compute: send the next chunk, and have another one gathered."""
        if step // self.steps_at_once == self._sent - 1:
            self._send()

    def close(self) -> None:
        """Stop drawing orders and gathering rows."""
        self._orders.close()
        self._queue.close()

    def _send(self) -> None:
        if self._sent < self._gathered:
            self._queue.send(self._sent)
            self._sent += 1
            self._gather()

    def _gather(self) -> None:
        """Have the next chunk gathered, if there is one."""
        steps = min(self.steps_at_once, self._schedule.steps - self._gathered * self.steps_at_once)
        if steps > 0:
            self._queue.gather(self._gathered, self._next(steps * self._rows))
            self._gathered += 1

    def _next(self, count: int) -> np.ndarray:
        """Take the next row numbers (count,), across the ends of epochs."""
        rows, self._left = self._left[:count], self._left[count:]
        if len(rows) == count:
            return rows
        self._left = self._orders.take()
        return np.concatenate([rows, self._next(count - len(rows))])

    def _draw(self, epoch: int) -> np.ndarray:
        """Draw this rank's rows of an epoch, as many for every step."""
        return np.take(self._schedule.order(epoch), self._mine, mode="clip")


def _parts(schedule: Schedule, shard: Shard, rows: int) -> np.ndarray:
    """Return the places of this rank's part of each batch in an epoch's order, (batches * rows,).

    Each part has ``rows`` places. Those behind a shorter part, perhaps past the order's end, are never used.
    """
    steps = range(schedule.batches)
    firsts = [schedule.first(step) + shard.own_samples(schedule.size(step))[0] for step in steps]
    return np.add.outer(firsts, np.arange(rows)).reshape(-1)
