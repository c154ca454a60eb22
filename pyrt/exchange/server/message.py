"""A message between a worker and a server: a header and the numbers of a shard, in one page-locked buffer.

Such a buffer may be memory of both ranks: see pyrt/exchange/server/message_memory.py.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from pyrt.driver import Driver

VERSION, WORKER, STEP, CHECKSUM, GRANT, FLAGS, LOSS, WEIGHT, APPLIED = range(9)
"""The fields of a header, 8 bytes each.

``VERSION``: the shard's version that a pull holds, or that the gradients of a push were computed with.
``STEP``: how many steps the worker had made before, since all ranks last met. ``GRANT``: the number of the
step over all workers, which the first server counts. ``LOSS`` has the dtype of the numbers; times ``WEIGHT``
it is the sum of the losses of the worker's samples, whose number is in ``FLAGS`` above `ASKED`. ``APPLIED``:
between head and tail, the version that the update makes."""

MEET: Final = -1
"""The ``GRANT`` of a worker that makes no more steps until all ranks have met."""

ASKED: Final = 1
"""The flag of a worker that was asked to stop."""

HEADER_BYTES = 128


class Tags:
    """The tags of messages: each has its own for each shard, or each shard and worker."""

    def __init__(self, shards: int, workers: int) -> None:
        self._shards, self._workers = shards, workers

    def push(self, shard: int) -> int:
        """Return the tag of a worker's gradients."""
        return shard

    def pull(self, shard: int) -> int:
        """Return the tag of the parameters that answer them."""
        return self._shards + shard

    def copy(self, shard: int, worker: int) -> int:
        """Return the tag of gradients that a head has applied and passes on to its tail."""
        return 2 * self._shards + shard * self._workers + worker

    def copied(self, shard: int, worker: int) -> int:
        """Return the tag of the tail's confirmation that it has applied them too."""
        return (2 + self._workers) * self._shards + shard * self._workers + worker

    @property
    def meet(self) -> int:
        """The tag of the message of a worker that makes no more steps until all ranks have met."""
        return (2 + 2 * self._workers) * self._shards

    def end(self, shard: int) -> int:
        """Return the tag of a head's message to its tail that it has applied all pushes of a leg."""
        return self.meet + 1 + shard


class Message:
    """A message, to be sent and received any number of times."""

    def __init__(
        self, raw: np.ndarray, dtype: np.dtype, is_shared: bool = False, has_checksum: bool = True
    ) -> None:
        """Take a buffer of `HEADER_BYTES` and the bytes of some numbers, a multiple of 8, as uint8.

        If it ``is_shared`` by both ranks nothing need be sent but that it is ready.
        """
        self.raw, self.is_shared, self._has_checksum = raw, is_shared, has_checksum
        self.sent = raw[:0] if is_shared else raw
        """The bytes that MPI carries."""
        self.header = self.raw[:HEADER_BYTES].view(np.int64)
        self.loss = self.raw[8 * LOSS : 8 * LOSS + dtype.itemsize].view(dtype)
        self.numbers = self.raw[HEADER_BYTES:].view(dtype)
        self._words = self.raw[HEADER_BYTES:].view(np.uint64)

    def seal(self) -> None:
        """Put the checksum of the numbers into the header, if there is to be one."""
        if self._has_checksum:
            self.header[CHECKSUM] = self._checksum()

    def require_whole(self, sender: int) -> None:
        """Raise RuntimeError unless the numbers have the checksum of the header."""
        if self._has_checksum and self.header[CHECKSUM] != self._checksum():
            raise RuntimeError(
                f"version {self.header[VERSION]} of a shard came damaged from rank {sender}: its numbers "
                "do not have its checksum"
            )

    def _checksum(self) -> np.int64:
        """Add up the numbers as words of 64 bits, modulo 2^64."""
        return np.add.reduce(self._words).view(np.int64)


def pinned_bytes(driver: Driver, nbytes: int) -> np.ndarray:
    """Make a page-locked buffer (nbytes,) uint8, which begins with zeros where a header may be."""
    block = driver.allocate_pinned(nbytes)
    block[:HEADER_BYTES] = 0
    return block
