"""The losses of the steps on their way to the host, which must not wait for the step it has just queued.

At the end of each step the device puts its loss into a ring. The whole ring is copied to the host every few
steps and read there when the next copy is queued.
"""

from __future__ import annotations

import numpy as np

from nn.launch.update import LossRing
from pyrt.arrays import DeviceArray, pinned
from pyrt.driver import Driver
from pyrt.phases import Phase
from pyrt.streams import Streams

RING = 32
"""Losses that the ring holds: more than steps are queued between two copies, twice."""


class LossLog:
    """The loss of each step, summed over ranks with the gradients, read some steps later.

    Every rank reads the loss of a given step at the same place in the loop, so that all stop together where
    it is not finite (nn/train/diverged.py).
    """

    def __init__(
        self, driver: Driver, streams: Streams, waiting: Phase, loss: DeviceArray, every: int
    ) -> None:
        """``loss`` (1,) is what the exchange sums; the ring is copied once ``every`` steps or more are
        queued. ``waiting`` is the phase that reading is."""
        self._driver, self._stream = driver, streams.compute
        self._waiting = waiting
        self._every = every
        losses = DeviceArray.from_host(driver, np.zeros(RING, loss.dtype))
        self.ring = LossRing(loss, losses, DeviceArray.from_host(driver, np.zeros(1, np.int32)))
        """What a step ends with, once losses are summed."""
        self._host = [pinned(driver, (RING,), loss.dtype) for _ in range(2)]
        self._copied = [driver.create_event(timing=False) for _ in range(2)]
        self._latest = 0
        self._covered = self._read = 0

    def start(self, step: int) -> None:
        """Begin with the loss of this step."""
        self.ring.place.set(np.array([step % RING], np.int32))
        self._covered = self._read = step

    def read(self, stop: int, now: bool) -> list[tuple[int, float]]:
        """Return the losses that arrived since the last call, in order; steps before ``stop`` are queued.

        ``now`` waits for all of them, else nothing is waited for that was queued last.
        """
        if not now and stop - self._covered < self._every:
            return []
        before, self._covered = self._covered, stop
        self._copy()
        readable, copy = (stop, self._latest) if now else (before, 1 - self._latest)
        if readable == self._read:
            return []
        with self._waiting:
            self._driver.synchronize_event(self._copied[copy])
        ring = self._host[copy]
        losses = [(step, float(ring[step % RING])) for step in range(self._read, readable)]
        self._read = readable
        return losses

    def _copy(self) -> None:
        self._latest = 1 - self._latest
        self._driver.copy_to_host(self._host[self._latest], self.ring.losses.pointer, self._stream)
        self._driver.record(self._copied[self._latest], self._stream)
