"""Buckets in one staging buffer on the host, one after another: the contents of a single message.

Between two buckets of one exchange may lie gradients that other ranks sum, or that nobody sums. They do not
enter the buffer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pyrt.arrays import DeviceArray
from pyrt.driver import StreamHandle
from pyrt.exchange import Bucket


def packed(buckets: Sequence[Bucket]) -> list[slice]:
    """Return the place of each bucket in a buffer that holds all of them without gaps."""
    result, start = [], 0
    for bucket in buckets:
        stop = start + bucket.stop - bucket.start
        result.append(slice(start, stop))
        start = stop
    return result


class Copies:
    """Device arrays and as many host arrays of the same sizes, copied together."""

    def __init__(self) -> None:
        self._pairs: list[tuple[DeviceArray, np.ndarray]] = []

    def add(self, array: DeviceArray, host: np.ndarray) -> None:
        """Add a pair; an empty one copies nothing."""
        if array.size:
            self._pairs.append((array, host))

    def queue_download(self, stream: StreamHandle) -> None:
        for array, host in self._pairs:
            array.queue_download(host, stream)

    def queue_upload(self, stream: StreamHandle) -> None:
        for array, host in self._pairs:
            array.queue_upload(host, stream)
