"""The kernel of a narrow output layer (kernels/narrow_head.cu): whether it fits, its shape, its launches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from nn.shapes import matrix_shape, require_shape
from pyrt.kernels import KernelLibrary, Launch, blocks
from pyrt.memory import DeviceArray

# As narrow_head.cu has them.
NARROW_CLASSES = (10, 32)
_NARROW_SLICES = 4
_NARROW_TERMS = 3
_SUM_PARTIALS_BLOCK = (32, 16)


@dataclass(frozen=True)
class NarrowHeadShape:
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


def narrow_head_shape(rows: int, hidden: int, classes: int, dtype: DTypeLike, grid: int) -> NarrowHeadShape:
    """For ``rows`` x ``hidden`` activations, at most 32 classes, and a grid of so many blocks.

    A block takes the rows that are its own in as few equal parts as registers and shared memory allow.
    """
    share = blocks(rows, grid)
    most = 256 // np.dtype(dtype).itemsize
    return _narrow_head_shape(blocks(share, blocks(share, most)), hidden, classes, dtype)


def _narrow_head_shape(rows: int, hidden: int, classes: int, dtype: DTypeLike) -> NarrowHeadShape:
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
    return NarrowHeadShape(made_for, threads, rows, halvings, numbers * size)


def narrow_head_fits(hidden: int, classes: int, dtype: DTypeLike, shared_memory: int) -> bool:
    """Whether `NarrowHead` can take such layers, whatever the batch, on a device that gives a block
    so many bytes of shared memory: the weights must fit.
    """
    if classes > NARROW_CLASSES[-1]:
        return False
    most = 256 // np.dtype(dtype).itemsize
    return all(
        _narrow_head_shape(rows, hidden, classes, dtype).shared <= shared_memory
        for rows in range(1, most + 1)
    )


def narrow_head_partials(
    rows: int, hidden: int, classes: int, dtype: DTypeLike, multiprocessors: int
) -> tuple[int, int]:
    """The shape of the workspace of `NarrowHead.bind`: its blocks, and what each of them sums up.

    A block for each multiprocessor, but no more than have rows for a warp.
    """
    vector = 16 // np.dtype(dtype).itemsize
    at_once = 3 if classes <= NARROW_CLASSES[0] else 1
    return min(blocks(rows, at_once), multiprocessors), _up(
        (classes + 1) * _up(hidden, vector) + classes + 1, 32
    )


def narrow_head_constants(real: str, head: str, activation: str, classes: int) -> dict[str, str | int]:
    """The constants of narrow_head.cu for so many classes."""
    made_for = next(most for most in NARROW_CLASSES if classes <= most)
    return {"REAL": real, "HEAD": head, "ACTIVATION": activation, "CLASSES": made_for}


def _up(size: int, step: int) -> int:
    """The next multiple of ``step``."""
    return -(-size // step) * step


class NarrowHead:
    """The kernels of narrow_head.cu; ``real`` is their constant REAL."""

    def __init__(self, library: KernelLibrary, real: str) -> None:
        self._library, self._real = library, real

    def bind(
        self,
        kind: str,
        activation: str,
        A: DeviceArray,
        W: DeviceArray,
        b: DeviceArray,
        labels: DeviceArray,
        partials: DeviceArray,
        dW: DeviceArray,
        db: DeviceArray,
        db_hidden: DeviceArray,
        loss: DeviceArray,
        scale: float,
        dZ: DeviceArray | None = None,
        terms: DeviceArray | None = None,
    ) -> tuple[Launch, Launch]:
        """From the last hidden layer to its dZ, the output layer's gradients and the sum of the losses.

        ``kind`` is softmax or sigmoid, ``activation`` that of the hidden layer; A (rows, hidden), W and dW
        (classes, hidden), b and db (classes,), labels (rows,) int32, db_hidden (hidden,), loss (1,). Losses
        and gradients are times ``scale``. dZ (rows, hidden) or, of float32, ``terms``: uint16
        (count * rows, ld), its `count` bf16 terms one behind the other; ld is a multiple of 64, and of the
        columns beyond ``hidden`` the first may be written. ``partials`` is a workspace as
        `narrow_head_partials` has it; its rows are the launch's blocks. See `narrow_head_fits`.
        """
        rows, hidden = matrix_shape("narrow_head", A=A)
        classes, _ = matrix_shape("narrow_head", W=W)
        require_shape("narrow_head", (classes, hidden), W=W, dW=dW)
        require_shape("narrow_head", (classes,), b=b, db=db)
        require_shape("narrow_head", (rows,), labels=labels)
        require_shape("narrow_head", (hidden,), db_hidden=db_hidden)
        require_shape("narrow_head", (1,), loss=loss)
        grid, width = matrix_shape("narrow_head", partials=partials)
        if classes > NARROW_CLASSES[-1]:
            raise ValueError(f"narrow_head: W {W.shape} has more than {NARROW_CLASSES[-1]} classes")
        if width != narrow_head_partials(rows, hidden, classes, A.dtype, grid)[1]:
            raise ValueError(f"narrow_head: partials {partials.shape} are not for W {W.shape}")
        if (dZ is None) == (terms is None):
            raise ValueError(f"narrow_head: A {A.shape} gets either dZ or its terms")
        count, ld = 0, 0
        if dZ is not None:
            require_shape("narrow_head", (rows, hidden), dZ=dZ)
        elif terms is not None:
            height, ld = matrix_shape("narrow_head", terms=terms)
            count = height // rows
            if height % rows or not 1 <= count <= _NARROW_TERMS or ld % 64 or ld < hidden:
                raise ValueError(f"narrow_head: terms {terms.shape} do not hold A {A.shape}")
            if self._real != "float":
                raise ValueError(f"narrow_head: terms {terms.shape} add up to float32 only")
        shape = narrow_head_shape(rows, hidden, classes, A.dtype, grid)
        constants = narrow_head_constants(self._real, kind, activation, classes)
        kernel = self._library.kernel("narrow_head", "narrow_head", **constants)
        sums = self._library.kernel("narrow_head", "sum_partials", **constants)
        across, down = _SUM_PARTIALS_BLOCK
        sums_grid = (blocks(max(hidden, classes + 1), across), classes + 2)
        sizes = (rows, classes, hidden, shape.rows, shape.halvings)
        return (
            kernel.bind(
                (grid,),
                (shape.threads,),
                *sizes,
                scale,
                A,
                W,
                b,
                labels,
                dZ,
                terms,
                count,
                ld,
                partials,
                width,
                shared=shape.shared,
            ),
            sums.bind(
                sums_grid, (across, down), grid, classes, hidden, partials, width, dW, db_hidden, db, loss
            ),
        )
