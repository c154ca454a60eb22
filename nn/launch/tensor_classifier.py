"""The kernel of a narrow output layer on tensor cores (kernels/nn/tensor_classifier.cu): fit and shape."""

from __future__ import annotations

MOST_CLASSES = 16

_SLICES = (32, 64, 128)
"""Columns of a warp, as the kernel has them."""

_WARPS, _ROWS, _STAGES, _LOGITS = 16, 16, 2, 24
THREADS = 32 * _WARPS

_LEAST_HIDDEN = 256
"""Hidden units from which at least half of the warps have columns."""


def slice_for(hidden: int) -> int:
    """Return the columns of a warp, of so many hidden units."""
    return next(width for width in _SLICES if hidden <= _WARPS * width)


def shared_bytes(width: int) -> int:
    """Count the shared memory of a block whose warps have so many columns: the struct Shared."""
    pitch = _WARPS * width + 16
    numbers = (MOST_CLASSES + _STAGES * _ROWS) * pitch
    return 2 * numbers + 4 * _ROWS * (_WARPS * _LOGITS + MOST_CLASSES + 4)


def tensor_classifier_fits(hidden: int, classes: int, shared_memory: int) -> bool:
    """Return whether the kernel takes such layers; ``shared_memory`` is a block's, in bytes."""
    fits = _LEAST_HIDDEN <= hidden <= _WARPS * _SLICES[-1] and hidden % 2 == 0 and classes <= MOST_CLASSES
    return fits and shared_bytes(slice_for(hidden)) <= shared_memory
