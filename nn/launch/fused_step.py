"""A whole step of a small network, from images to gradients, as one kernel (kernels/nn/fused_step.cu)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nn.input.source import BatchCursor
from nn.launch.shapes import matrix_shape, require_shape
from pyrt.arrays import DeviceArray
from pyrt.kernels import Kernel, Launch, blocks

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels

# As kernels/nn/fused_step.cu and its parts have them.
_UNITS = (32, 64, 128)
_MOST_ROWS, _MOST_CLASSES = 256, 32
_THREADS, _WARPS, _WARP = 256, 8, 32
_GAP, _CHUNK_STEP, _MOST_CHUNK = 4, 8, 128
_CLASSES_AT_ONCE = 10
_TILE_UNITS, _MOST_ACROSS = 32, 32
_SUM_UNITS = 8

_MOST_CHUNKS = 16
"""Sums of a row's unit that a lane reads, one after the other."""

MOST_PRODUCTS = 1 << 25
"""Multiplications of X W1^T; beyond, products on tensor cores, in launches of their own, take less time."""


@dataclass(frozen=True)
class FusedStepShape:
    """Decides how the kernel is launched for a batch of ``rows``."""

    rows: int
    inputs: int
    hidden: int
    classes: int
    units: int
    """The constant UNITS: how many hidden units the kernel is made for."""
    chunk: int
    """Features of a tile, forward."""
    across: int
    """Features of a tile of the weight gradient."""

    @classmethod
    def of(cls, sizes: tuple[int, int, int, int], multiprocessors: int) -> FusedStepShape:
        """Share out the work of so many rows, inputs, hidden units and classes: a tile a multiprocessor."""
        rows, inputs, hidden, classes = sizes
        units = next(most for most in _UNITS if hidden <= most)
        chunks = min(max(1, multiprocessors // blocks(rows, _tile_rows(units))), _MOST_CHUNKS)
        chunk = min(_up(blocks(inputs, chunks), _CHUNK_STEP), _MOST_CHUNK)
        left = max(1, multiprocessors - blocks(hidden, _SUM_UNITS)) // blocks(hidden, _TILE_UNITS)
        across = min(_up(blocks(inputs, max(1, left)), 4), _MOST_ACROSS)
        return cls(rows, inputs, hidden, classes, units, chunk, across)

    @property
    def chunks(self) -> int:
        """Into which the features are cut, forward."""
        return blocks(self.inputs, self.chunk)

    @property
    def tasks(self) -> int:
        """The most blocks that have something to do at once."""
        forward = blocks(self.rows, _tile_rows(self.units)) * self.chunks
        tiles = blocks(self.hidden, _TILE_UNITS) * blocks(self.inputs, self.across)
        return max(forward, tiles + blocks(self.hidden, _SUM_UNITS))

    @property
    def news(self) -> int:
        """Numbers that blocks tell each other: of rows there is room for two launches."""
        of_rows = self.rows * (2 * self.units + self.classes + 1)
        return self.rows * self.units * self.chunks + 2 * _up(of_rows, 4)

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        rows, classes = self.rows, self.classes
        ends = (_up(classes, _CLASSES_AT_ONCE) + 1) * self.units + _WARP
        forward = (_tile_rows(self.units) + self.units) * (self.chunk + _GAP)
        tile = rows * (self.across + _TILE_UNITS) + _WARPS * _TILE_UNITS * _MOST_ACROSS
        sums = _WARPS * (classes + 1) * (_SUM_UNITS + 4)
        factors = _up(rows * (2 * _SUM_UNITS + classes + 1), 4) + 4
        return 4 * (ends + max(forward, tile, factors + sums))


def _tile_rows(units: int) -> int:
    """Return the rows of a tile, forward."""
    return 32 if units == _UNITS[-1] else 16


def _up(size: int, step: int) -> int:
    """Round up to a multiple of ``step``."""
    return -(-size // step) * step


def fused_step_fits(sizes: tuple[int, int, int, int], multiprocessors: int, shared_memory: int) -> bool:
    """Return whether `FusedStep` takes so many rows, inputs, hidden units and classes, and is the faster way.

    ``shared_memory`` is what the device gives a block, in bytes.
    """
    rows, inputs, hidden, classes = sizes
    if not (0 < rows <= _MOST_ROWS and hidden <= _UNITS[-1] and classes <= _MOST_CLASSES):
        return False
    is_small = rows * inputs * hidden <= MOST_PRODUCTS
    return is_small and FusedStepShape.of(sizes, multiprocessors).shared <= shared_memory


@dataclass(frozen=True)
class FusedStep:
    """From a batch's images to all gradients of a network with one hidden layer, and the sum of the losses.

    The batch is images[j] / pixel_scale and labels[j] where j = order[cursor + i]; cursor += rows. images
    (n, inputs), labels (n,) int32, order (any,) int32; W1, dW1 (hidden, inputs), b1, db1 (hidden,), W2, dW2
    (classes, hidden), b2, db2 (classes,), loss_sum (1,); all but the first three float32. ``loss`` is softmax
    or sigmoid, ``activation`` that of the hidden layer. Losses and gradients are times ``scale``. If it
    ``starts_early``, the kernel before must write none of images, labels, order and cursor.
    """

    loss: str
    activation: str
    rows: int
    images: DeviceArray
    labels: DeviceArray
    order: DeviceArray
    cursor: BatchCursor
    pixel_scale: float
    starts_early: bool
    W1: DeviceArray
    b1: DeviceArray
    W2: DeviceArray
    b2: DeviceArray
    dW1: DeviceArray
    db1: DeviceArray
    dW2: DeviceArray
    db2: DeviceArray
    loss_sum: DeviceArray
    scale: float

    @property
    def parameters(self) -> tuple[DeviceArray, ...]:
        return self.W1, self.b1, self.W2, self.b2

    @property
    def results(self) -> tuple[DeviceArray, ...]:
        return self.dW1, self.db1, self.dW2, self.db2, self.loss_sum

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Rows, inputs, hidden units and classes. Raises ValueError where the shapes do not fit."""
        name = "fused_step"
        (hidden, inputs), (classes, _) = matrix_shape(name, W1=self.W1), matrix_shape(name, W2=self.W2)
        count, _ = matrix_shape(name, images=self.images)
        require_shape(name, (count, inputs), images=self.images)
        require_shape(name, (count,), labels=self.labels)
        require_shape(name, (2,), place=self.cursor.state)
        require_shape(name, (hidden, inputs), dW1=self.dW1)
        require_shape(name, (hidden,), b1=self.b1, db1=self.db1)
        require_shape(name, (classes, hidden), W2=self.W2, dW2=self.dW2)
        require_shape(name, (classes,), b2=self.b2, db2=self.db2)
        require_shape(name, (1,), loss=self.loss_sum)
        return self.rows, inputs, hidden, classes

    def on_device(self, kernels: Kernels, multiprocessors: int | None = None) -> Launch:
        """Bind the kernel, for at most so many blocks: all multiprocessors unless given."""
        most = multiprocessors or kernels.driver.multiprocessors
        shape = FusedStepShape.of(self.sizes, most)
        if not fused_step_fits(self.sizes, most, kernels.driver.shared_memory):
            raise ValueError(f"fused_step: {self.sizes} rows, inputs, hidden units and classes are too many")
        cursor, kernel = self.cursor, self._kernel(kernels, shape.units)
        return kernel.bind(
            (min(most, shape.tasks),),
            (_THREADS,),
            *(*self.sizes, shape.chunk, shape.across, self.pixel_scale, self.scale),
            *(self.images, self.labels, self.order),
            *(cursor.state.rows(0, 1), cursor.advance, cursor.places, int(self.starts_early)),
            *self.parameters,
            *self.results,
            DeviceArray.from_host(kernels.driver, np.full(shape.news, -1, np.int32).view(np.float32)),
            DeviceArray.from_host(kernels.driver, np.zeros(2, np.int32)),
            shared=shape.shared,
        )

    def _kernel(self, kernels: Kernels, units: int) -> Kernel:
        return kernels.kernel(
            "nn/fused_step",
            "fused_step",
            PIXEL=np.dtype(self.images.dtype).name,
            HEAD=self.loss,
            ACTIVATION=self.activation,
            UNITS=units,
        )
