"""Where a step finds its batch, and who brings it there: what the two placements have in common.

The samples of the next steps lie on the device, one batch behind the other; of which the step is, it reads
there, from a `Place`. So steps differ in nothing, and several can be queued at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from nn import operations
from nn.launches import Place
from nn.operations import Operation
from pyrt.memory import DeviceArray


class Source(Protocol):
    """Where a step finds its batch."""

    @property
    def labels(self) -> DeviceArray:
        """Of the batch's rows, and perhaps more."""

    def scaled(self, X: DeviceArray, scale: float) -> Operation:
        """A step's first operation: X (rows, D) = the batch's images / scale; ``labels`` are there too."""


@dataclass(frozen=True)
class Gathered:
    """A rank's part of each batch, gathered from images (n, D) and labels (n,) int32 on the device."""

    set_images: DeviceArray
    set_labels: DeviceArray
    order: DeviceArray
    """The row of the part's sample i in the batch that begins at ``place`` is order[place + i]."""
    place: Place
    labels: DeviceArray
    """Room for the labels of the part."""

    def scaled(self, X: DeviceArray, scale: float) -> Operation:
        """X = images / scale; ``labels`` get their labels. Of no rows: the place moves on.

        It overtakes the end of the step before, which writes none of what it reads, and overtakes nothing.
        """
        if not X.size:
            return operations.skip_batch(self.place)
        labels = self.labels.rows(0, X.shape[0])
        return operations.gather_batch(
            self.set_images, self.set_labels, self.order, self.place, X, labels, scale, overtakes=True
        )


class Batches(Protocol):
    """The training batches of this rank: ``start``, then for steps that are queued at once ``begin`` of the
    first, their work, ``end`` and ``ahead`` of the last."""

    together: int
    """Only steps between two multiples of this may be queued at once."""

    def source(self, first: int) -> Source:
        """Where steps find their batch, of which this rank's part begins with sample ``first``."""

    def skip(self) -> Operation:
        """What a step does where this rank gets no sample of the batch."""

    def start(self, step: int) -> None:
        """Send what the first step, of this number, needs on its way; let the compute stream wait for it."""

    def begin(self, step: int) -> None:
        """Let the compute stream wait for what a step, and those queued at once with it, need."""

    def end(self, step: int) -> None:
        """All work on the batch of this step, and on those before it, is queued."""

    def ahead(self, step: int) -> None:
        """While this step computes, send what later ones need."""

    def close(self) -> None:
        """No more batches are asked for: nothing is done beside the caller any more."""
