"""Draws the orders of later epochs while those of earlier ones are used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from pyrt.workers import Helper


class Orders:
    """The rows of one epoch after the other, drawn while those of epochs before are used.

    Each helper draws an epoch: to draw one can take longer than a fast GPU needs for it.
    """

    def __init__(self, draw: Callable[[int], np.ndarray], epochs: int, helpers: Sequence[Helper]) -> None:
        """``draw`` gives the order of an epoch; it is called once for each, by one of the helpers."""
        self._draw, self._epochs, self._helpers = draw, epochs, helpers
        self._drawn = [np.empty(0, int) for _ in helpers]
        self._taken = 0

    def start(self, epoch: int) -> None:
        """Have orders drawn, of this epoch first; called once, before the first ``take``."""
        self._taken = epoch
        for ahead in range(len(self._helpers)):
            self._start(epoch + ahead)

    def take(self) -> np.ndarray:
        """Return the order of the next epoch; the first is that of ``start``."""
        epoch, ahead = self._taken, len(self._helpers)
        self._helpers[epoch % ahead].wait()
        order = self._drawn[epoch % ahead]
        self._taken += 1
        self._start(epoch + ahead)
        return order

    def close(self) -> None:
        """Draw no more orders."""
        for helper in self._helpers:
            helper.close()

    def _start(self, epoch: int) -> None:
        if epoch < self._epochs:
            self._helpers[epoch % len(self._helpers)].start(partial(self._next, epoch))

    def _next(self, epoch: int) -> None:
        self._drawn[epoch % len(self._helpers)] = self._draw(epoch)
