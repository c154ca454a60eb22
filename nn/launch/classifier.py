"""The kernels of a narrow output layer (kernels/nn/fused_classifier.cu, tensor_classifier.cu): launches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import DTypeLike

from nn.launch.gemm.components import Components
from nn.launch.shapes import matrix_shape, require_aligned, require_shape
from nn.launch.tensor_classifier import THREADS, shared_bytes, slice_for
from pyrt.arrays import DeviceArray
from pyrt.kernels import Kernel, Launch, blocks

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels

# As nn/fused_classifier.cu has them.
NARROW_CLASSES = (10, 32)
_NARROW_SLICES = 4
_MOST_COMPONENTS = 3
_SUM_PARTIALS_BLOCK = (32, 16)

_VECTOR = 8
"""bf16 numbers that tensor_classifier.cu copies together."""


@dataclass(frozen=True)
class FusedClassifierShape:
    """How the kernel is launched."""

    classes: int
    """The constant CLASSES: how many classes the kernel is made for."""
    threads: int
    rows: int
    """That a block takes at a time."""
    halvings: int
    """How often the columns are halved, so that each warp has a part of some row."""
    shared: int
    """Bytes of shared memory."""


def fused_classifier_shape(
    rows: int, hidden: int, classes: int, dtype: DTypeLike, grid: int
) -> FusedClassifierShape:
    """Choose the shape for ``rows`` x ``hidden`` activations, at most 32 classes, a grid of so many blocks.

    A block takes its rows in as few equal parts as registers and shared memory allow.
    """
    share = blocks(rows, grid)
    most = 256 // np.dtype(dtype).itemsize
    return _fused_classifier_shape(blocks(share, blocks(share, most)), hidden, classes, dtype)


def _fused_classifier_shape(rows: int, hidden: int, classes: int, dtype: DTypeLike) -> FusedClassifierShape:
    size = np.dtype(dtype).itemsize
    vector = 16 // size
    made_for = next(most for most in NARROW_CLASSES if classes <= most)
    wide = made_for * size
    threads, columns = (512, 2) if wide <= 40 else (256, 1) if wide <= 128 else (128, 1)
    warps, at_once = threads // 32, 32 // made_for

    tasks, steps, halvings = blocks(rows, at_once), blocks(hidden, 32 * vector), 0
    while 2 << halvings <= min(_NARROW_SLICES, steps) and tasks << halvings + 1 <= warps:
        halvings += 1

    logits = rows * made_for << halvings
    threads_meet = blocks(hidden, columns) <= threads // 2
    sums = (made_for + 1) * columns * threads // 2 if threads_meet else 0
    numbers = (
        made_for * _up(hidden, vector) + rows * _up(made_for, vector) + 2 * _up(rows, 2) + max(logits, sums)
    )
    return FusedClassifierShape(made_for, threads, rows, halvings, numbers * size)


def fused_classifier_fits(hidden: int, classes: int, dtype: DTypeLike, shared_memory: int) -> bool:
    """Return whether `FusedClassifier` can take such layers, whatever the batch.

    ``shared_memory`` is what the device gives a block, in bytes: the weights must fit.
    """
    if classes > NARROW_CLASSES[-1]:
        return False
    most = 256 // np.dtype(dtype).itemsize
    return all(
        _fused_classifier_shape(rows, hidden, classes, dtype).shared <= shared_memory
        for rows in range(1, most + 1)
    )


def fused_classifier_partials(
    rows: int, hidden: int, classes: int, dtype: DTypeLike, multiprocessors: int
) -> tuple[int, int]:
    """Return the shape of the workspace of `FusedClassifier`: its blocks, and the sums of each of them.

    It has a block for each multiprocessor, but no more than have rows for a warp.
    """
    vector = 16 // np.dtype(dtype).itemsize
    at_once = 3 if classes <= NARROW_CLASSES[0] else 1
    width = _up((classes + 1) * _up(hidden, vector) + classes + 1, 32)
    return max(1, min(blocks(rows, at_once), multiprocessors)), width


def fused_classifier_constants(real: str, head: str, activation: str, classes: int) -> dict[str, str | int]:
    """Return the constants of nn/fused_classifier.cu for so many classes."""
    made_for = next(most for most in NARROW_CLASSES if classes <= most)
    return {"REAL": real, "HEAD": head, "ACTIVATION": activation, "CLASSES": made_for}


def _up(size: int, step: int) -> int:
    """Round up to a multiple of ``step``."""
    return -(-size // step) * step


def _fit(rows: int, hidden: int, *matrices: Components) -> bool:
    """Return whether matrices (rows, hidden) are one component each, in rows of whole vectors."""
    return all(
        (one.count, one.rows, one.columns) == (1, rows, hidden)
        and one.ld % _VECTOR == 0
        and one.array.pointer % (2 * _VECTOR) == 0
        for one in matrices
    )


@dataclass(frozen=True)
class FusedClassifier:
    """From the last hidden layer's A to its dZ, the output layer's gradients and the sum of the losses.

    ``loss`` is softmax or sigmoid, ``activation`` that of the hidden layer; A (rows, hidden), W and dW
    (classes, hidden), b and db (classes,), labels (rows,) int32, db_hidden (hidden,), loss_sum (1,). Losses
    and gradients are times ``scale``. dZ (rows, hidden) is written as it is or, of float32, as its
    ``components``. If A is ``made`` as one component, tensor cores read that in its place, and dZ is one too.
    """

    loss: str
    activation: str
    A: DeviceArray
    W: DeviceArray
    b: DeviceArray
    labels: DeviceArray
    dZ: DeviceArray
    dW: DeviceArray
    db: DeviceArray
    db_hidden: DeviceArray
    loss_sum: DeviceArray
    scale: float
    components: Components | None = None
    made: Components | None = None

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        return self.A if self.made is None else self.made.numbers, self.W, self.b, self.labels

    @property
    def gradient(self) -> DeviceArray:
        """What it writes in the place of dZ."""
        return self.dZ if self.components is None else self.components.numbers

    @property
    def sums(self) -> tuple[DeviceArray, ...]:
        """What the sums of its blocks come to."""
        return self.dW, self.db, self.db_hidden, self.loss_sum

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Rows, hidden units and classes. Raises ValueError where the shapes do not fit."""
        name = "fused_classifier"
        rows, hidden = matrix_shape(name, A=self.A)
        classes, _ = matrix_shape(name, W=self.W)
        require_shape(name, (classes, hidden), W=self.W, dW=self.dW)
        require_shape(name, (classes,), b=self.b, db=self.db)
        require_shape(name, (rows,), labels=self.labels)
        require_shape(name, (hidden,), db_hidden=self.db_hidden)
        require_shape(name, (1,), loss=self.loss_sum)
        return rows, hidden, classes

    def workspace(self) -> DeviceArray:
        """Make room for what its blocks sum up: see `fused_classifier_partials`."""
        driver, A = self.A.driver, self.A
        shape = fused_classifier_partials(*self.sizes, A.dtype, driver.multiprocessors)
        return DeviceArray.empty(driver, shape, A.dtype)

    def bind_gradient(self, kernels: Kernels, partials: DeviceArray) -> Launch:
        """Bind the kernel to dZ and to the sums of its blocks: as many as partials have rows."""
        if self.made is not None:
            return self._bind_tensor(kernels, partials, self.made)
        rows, hidden, classes = self.sizes
        grid, width = self._blocks(partials)
        dZ, components, count, ld = self._target(rows, hidden, kernels.real)
        shape = fused_classifier_shape(rows, hidden, classes, self.A.dtype, grid)
        inputs, outputs = (self.A, self.W, self.b, self.labels), (dZ, components, count, ld)
        return self._kernel(kernels, "fused_classifier").bind(
            (grid,),
            (shape.threads,),
            *(rows, classes, hidden, shape.rows, shape.halvings),
            self.scale,
            *inputs,
            *outputs,
            partials,
            width,
            shared=shape.shared,
        )

    def _bind_tensor(self, kernels: Kernels, partials: DeviceArray, made: Components) -> Launch:
        """Bind the kernel on tensor cores. Raises ValueError for matrices that are not as it takes them."""
        (rows, hidden, classes), dZ = self.sizes, self.components
        grid, width = self._blocks(partials)
        if dZ is None or not _fit(rows, hidden, made, dZ):
            raise ValueError(f"tensor_classifier: A as {made} and dZ as {dZ} are not one component each")
        require_aligned("tensor_classifier", 8, W=self.W)
        require_aligned("tensor_classifier", 16, partials=partials)
        columns = slice_for(hidden)
        kernel = kernels.kernel(
            "nn/tensor_classifier",
            "tensor_classifier",
            HEAD=self.loss,
            ACTIVATION=self.activation,
            SLICE=columns,
        )
        inputs = self.scale, made.array, made.ld, self.W, self.b, self.labels
        outputs = dZ.array, dZ.ld, partials, width
        sizes = rows, classes, hidden
        return kernel.bind((grid,), (THREADS,), *sizes, *inputs, *outputs, shared=shared_bytes(columns))

    def bind_sums(self, kernels: Kernels, partials: DeviceArray) -> Launch:
        """Bind the kernel that adds up the sums of the blocks."""
        _, hidden, classes = self.sizes
        grid, width = self._blocks(partials)
        across, down = _SUM_PARTIALS_BLOCK
        return self._kernel(kernels, "sum_partials").bind(
            (blocks(max(hidden, classes + 1), across), classes + 2),
            (across, down),
            *(grid, classes, hidden, partials, width),
            *(self.dW, self.db_hidden, self.db, self.loss_sum),
        )

    def _blocks(self, partials: DeviceArray) -> tuple[int, int]:
        """Return how many blocks there are, and the width of their sums."""
        rows, hidden, classes = self.sizes
        if classes > NARROW_CLASSES[-1]:
            raise ValueError(f"fused_classifier: W {self.W.shape} has more than {NARROW_CLASSES[-1]} classes")
        grid, width = matrix_shape("fused_classifier", partials=partials)
        if width != fused_classifier_partials(rows, hidden, classes, self.A.dtype, grid)[1]:
            raise ValueError(f"fused_classifier: partials {partials.shape} are not for W {self.W.shape}")
        return grid, width

    def _kernel(self, kernels: Kernels, name: str) -> Kernel:
        constants = fused_classifier_constants(kernels.real, self.loss, self.activation, self.sizes[2])
        return kernels.library.kernel("nn/fused_classifier", name, **constants)

    def _target(
        self, rows: int, hidden: int, real: str
    ) -> tuple[DeviceArray | None, DeviceArray | None, int, int]:
        """dZ or, in its place, its components, how many there are, and their leading dimension."""
        components = self.components
        if components is None:
            require_shape("fused_classifier", (rows, hidden), dZ=self.dZ)
            return self.dZ, None, 0, 0
        fits = (components.rows, components.columns) == (rows, hidden)
        if not fits or not 1 <= components.count <= _MOST_COMPONENTS:
            raise ValueError(f"fused_classifier: components {components} do not hold A {self.A.shape}")
        if real != "float":
            raise ValueError(f"fused_classifier: components {components} add up to float32 only")
        return None, components.matrix, components.count, components.ld
