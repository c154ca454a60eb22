"""Where a step finds its batch, and who brings it there: what the two placements have in common.

The samples of the next steps lie on the device, one batch behind the other. A step reads from a `BatchCursor`
which batch it is for. So steps differ in nothing, and several can be queued at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pyrt.arrays import DeviceArray
from pyrt.driver import Driver


@dataclass(frozen=True)
class BatchCursor:
    """Where a batch begins in what lies on the device."""

    state: DeviceArray
    """(2,) int32: that place; blocks that have read it, 0 between two launches."""
    advance: int
    """How far each batch moves it on."""
    places: int
    """It runs from 0 to here, and around."""

    @classmethod
    def first(cls, driver: Driver, advance: int, places: int) -> BatchCursor:
        """Make a cursor at place 0."""
        return cls(DeviceArray.from_host(driver, np.zeros(2, np.int32)), advance, places)

    def go_to(self, batch: int) -> None:
        """Move to the batch of that number, counted from place 0 on."""
        self.state.set(np.array([batch * self.advance % self.places, 0], np.int32))


@dataclass(frozen=True)
class Gathered:
    """A rank's part of each batch, to be gathered from images (n, D) and labels (n,) int32 on the device."""

    images: DeviceArray
    set_labels: DeviceArray
    order: DeviceArray
    """The row of the part's sample i in the batch that begins at the cursor is order[cursor + i]."""
    cursor: BatchCursor
    labels: DeviceArray
    """Room for the labels of the part."""
    numbers: DeviceArray | None = None
    """The part's sample i is row numbers[cursor + i] of the training set, where that is known; int32."""


@dataclass(frozen=True)
class Ready:
    """Device arrays that a step reads: images (at least rows, D), labels (at least rows,) int32."""

    images: DeviceArray
    labels: DeviceArray


Source = Gathered | Ready
"""Where a step finds its batch."""


class Batches(Protocol):
    """The training batches of this rank: ``start``, then for steps that are queued at once ``begin`` of the
    first, their work, ``end`` and ``prefetch`` of the last."""

    steps_at_once: int
    """Only steps between two multiples of this may be queued at once."""
    cursor: BatchCursor

    def source(self, first: int) -> Gathered:
        """Return where steps find their batch; this rank's part begins with sample ``first``."""

    def start(self, step: int) -> None:
        """Send what the first step, of this number, needs on its way; let the compute stream wait for it."""

    def begin(self, step: int) -> None:
        """Let the compute stream wait for what a step, and those queued at once with it, need."""

    def end(self, step: int) -> None:
        """Note that all work on the batch of this step, and on those before it, is queued."""

    def prefetch(self, step: int) -> None:
        """While this step computes, send what later ones need."""

    def close(self) -> None:
        """Stop all work beside the caller: no more batches are asked for."""
