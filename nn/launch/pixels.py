"""Images to the input of the network: pixels scaled, a batch gathered (kernels/nn/pixels.cu, batch.cu)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from nn.input.source import BatchCursor
from nn.launch.gemm.components import Components, split
from nn.launch.shapes import Block, Grid, matrix_shape, plane_shape, require_shape
from nn.launch.work import Compute, Work
from pyrt.arrays import DeviceArray
from pyrt.kernels import Kernel, Launch, blocks

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels


class Pixels(Work):
    """X = images / scale; X (rows, columns), or one component of it, which gets the pixels themselves."""

    kind = "pixels"
    images: DeviceArray
    X: DeviceArray
    scale: float
    components: Components | None

    @property
    def is_exact(self) -> bool:
        """Whether bf16 holds every pixel."""
        return self.images.dtype == np.uint8

    @property
    def output(self) -> DeviceArray:
        """What it writes: X, or the component in its place."""
        return self.X if self.components is None else self.components.numbers

    @property
    def flops(self) -> int:
        return self.X.size

    def _target(self, kernel: str) -> tuple[DeviceArray, int, int, int]:
        """Memory, leading dimension, rows and columns of what it writes."""
        into = self.components
        if into is None:
            rows, columns = matrix_shape(kernel, X=self.X)
            return self.X, self.X.ld, rows, columns
        if into.count != 1:
            raise ValueError(f"{kernel}: a pixel is one component, not {into.count}")
        return into.array, into.ld, into.rows, into.columns

    def _kernel(self, kernels: Kernels, file: str, name: str) -> Kernel:
        number = kernels.real if self.components is None else "bfloat16"
        pixel = np.dtype(self.images.dtype).name
        return kernels.kernel(file, name, PIXEL=pixel, NUMBER=number)

    def _shape(self, rows: int, columns: int) -> tuple[Grid, Block]:
        """Grid and block: a thread takes 8 x 4 pixels that become components, or one."""
        return plane_shape(rows, blocks(columns, 1 if self.components is None else 32))

    def _scaled(self, pixels: np.ndarray) -> None:
        """Write the input of the network for these pixels, in NumPy."""
        if self.components is not None:
            self.output.host_view()[:] = split(pixels.astype(np.float32), 1)[0]
            return
        x = self.X.host_view()
        # The dtype of the division is named: uint8 pixels would be divided in float64 or float16.
        np.divide(pixels, x.dtype.type(self.scale), out=x, dtype=x.dtype)


@dataclass(frozen=True)
class ScalePixels(Pixels):
    """X = the first images / scale."""

    images: DeviceArray
    X: DeviceArray
    scale: float
    components: Components | None = None

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        return (self.images,)

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return (self.output,)

    def on_device(self, kernels: Kernels) -> Launch:
        out, ld, rows, columns = self._target("scale_pixels")
        available, width = matrix_shape("scale_pixels", images=self.images)
        if width != columns or available < rows:
            raise ValueError(f"scale_pixels: images {self.images.shape} do not fill X {(rows, columns)}")
        kernel = self._kernel(kernels, "nn/pixels", "scale_pixels")
        return kernel.bind(*self._shape(rows, columns), rows, columns, self.scale, self.images, out, ld)

    def in_numpy(self) -> Compute:
        return partial(self._scaled, self.images.host_view()[: self.X.shape[0]])


@dataclass(frozen=True)
class GatherBatch(Pixels):
    """X[i] = images[j] / scale, batch_labels[i] = labels[j] where j = order[cursor + i]; cursor += rows.

    images (n, columns), labels (n,) int32, order (any,) int32, batch_labels (rows,) int32. The order
    must hold row numbers below n where it is read. If it ``starts_early``, the kernel before must write
    nothing that this one reads.
    """

    images: DeviceArray
    labels: DeviceArray
    order: DeviceArray
    cursor: BatchCursor
    X: DeviceArray
    batch_labels: DeviceArray
    scale: float
    starts_early: bool = False
    components: Components | None = None

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        # As many rows of the set as are read, whichever they are.
        rows = self.X.shape[0]
        parts = (
            replace(array, shape=(rows, *array.shape[1:])) for array in (self.images, self.labels, self.order)
        )
        return *parts, self.cursor.state

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return self.output, self.batch_labels, self.cursor.state

    def on_device(self, kernels: Kernels) -> Launch:
        out, ld, rows, columns = self._checked("gather_batch")
        sources, results = (self.images, self.labels, self.order), (out, ld, self.batch_labels)
        kernel = self._kernel(kernels, "nn/pixels", "gather_batch")
        sizes = (rows, columns, self.scale)
        return kernel.bind(
            *self._shape(rows, columns), *sizes, *sources, *self._moving, *results, int(self.starts_early)
        )

    def _checked(self, kernel: str) -> tuple[DeviceArray, int, int, int]:
        """Return what `_target` does. Raises ValueError for arrays of other shapes."""
        out, ld, rows, columns = self._target(kernel)
        count, width = matrix_shape(kernel, images=self.images)
        if width != columns:
            raise ValueError(f"{kernel}: images {self.images.shape} do not fill X {(rows, columns)}")
        require_shape(kernel, (count,), labels=self.labels)
        require_shape(kernel, (rows,), batch_labels=self.batch_labels)
        require_shape(kernel, (2,), place=self.cursor.state)
        return out, ld, rows, columns

    @property
    def _moving(self) -> tuple[DeviceArray, DeviceArray, int, int]:
        """The cursor as kernels take it."""
        state, cursor = self.cursor.state, self.cursor
        return state.rows(0, 1), state.rows(1, 2), cursor.advance, cursor.places

    def in_numpy(self) -> Compute:
        arrays = (self.images, self.labels, self.order, self.batch_labels)
        images, labels, order, batch_labels = (array.host_view() for array in arrays)
        first, rows = self.cursor.state.host_view(), self.X.shape[0]
        move_on = SkipBatch(self.cursor).in_numpy()

        def compute() -> None:
            mine = order[first[0] : first[0] + rows]
            self._scaled(images[mine])
            batch_labels[:] = labels[mine]
            move_on()

        return compute


@dataclass(frozen=True)
class SkipBatch(Work):
    """The cursor moves on, for a rank that gets no sample of a batch."""

    cursor: BatchCursor

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        return (self.cursor.state,)

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return (self.cursor.state,)

    @property
    def flops(self) -> int:
        return 0

    def on_device(self, kernels: Kernels) -> Launch:
        kernel, cursor = kernels.kernel("nn/batch", "skip_batch"), self.cursor
        return kernel.bind((1,), (1,), cursor.state, cursor.advance, cursor.places)

    def in_numpy(self) -> Compute:
        now, cursor = self.cursor.state.host_view(), self.cursor

        def compute() -> None:
            now[0] = (int(now[0]) + cursor.advance) % cursor.places

        return compute
