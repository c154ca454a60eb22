"""A training batch gathered, and each of its images mirrored and moved at random (kernels/nn/augment.cu)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from nn.input.augment import Augmenter
from nn.launch.pixels import GatherBatch, SkipBatch
from nn.launch.shapes import Block, Grid, plane_shape, require_shape
from nn.launch.work import Compute
from nn.model.dropout import halves
from pyrt.arrays import DeviceArray
from pyrt.kernels import Launch, blocks

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels


@dataclass(frozen=True)
class Augmented:
    """How the images of training batches are changed, and in which step."""

    augmenter: Augmenter
    step: DeviceArray
    """(1,) int32: how many steps came before."""


@dataclass(frozen=True)
class GatherAugmented(GatherBatch):
    """As GatherBatch; X[i] is changed as row numbers[cursor + i] of the training set is in the step's epoch.

    numbers (any,) int32. It counts the step.
    """

    augmented: Augmented = field(kw_only=True)
    numbers: DeviceArray = field(kw_only=True)

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        return *super().reads, replace(self.numbers, shape=self.X.shape[:1]), self.augmented.step

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return *super().writes, self.augmented.step

    def on_device(self, kernels: Kernels) -> Launch:
        out, ld, rows, columns = self._checked("gather_augmented")
        how = self.augmented.augmenter
        if columns != how.pixels:
            raise ValueError(f"gather_augmented: X {(rows, columns)} has no images of {how.pixels} pixels")
        require_shape("gather_augmented", (1,), step=self.augmented.step)
        kernel = self._kernel(kernels, "nn/augment", "gather_augmented")
        changes = (*halves(how.seed), int(how.augmentation.flip), how.augmentation.shift)
        return kernel.bind(
            *self._shape(rows, columns),
            *(rows, how.height, how.width, how.channels, self.scale),
            *(self.images, self.labels, self.order, self.numbers),
            *(*self._moving, self.augmented.step, how.batches, *changes),
            *(out, ld, self.batch_labels, int(self.starts_early)),
        )

    def _shape(self, rows: int, columns: int) -> tuple[Grid, Block]:
        """Grid and block: a thread takes 8 pixels, or 8 x 4, of a row whose change it draws once."""
        return plane_shape(rows, blocks(columns, 8 if self.components is None else 32))

    def in_numpy(self) -> Compute:
        arrays = (self.images, self.labels, self.order, self.numbers, self.batch_labels, self.augmented.step)
        images, labels, order, numbers, batch_labels, step = (array.host_view() for array in arrays)
        place, rows, how = self.cursor.state.host_view(), self.X.shape[0], self.augmented.augmenter
        move_on = SkipBatch(self.cursor).in_numpy()

        def compute() -> None:
            mine = slice(place[0], place[0] + rows)
            epoch = int(step[0]) // how.batches
            self._scaled(how.augmented(images[order[mine]], numbers[mine], epoch))
            batch_labels[:] = labels[order[mine]]
            move_on()
            np.add(step, 1, out=step)

        return compute
