"""Grids of common shapes, and the checks of arrays against the shapes that a launch asks for."""

from __future__ import annotations

from pyrt.arrays import DeviceArray
from pyrt.kernels import blocks

Grid = tuple[int, ...]
Block = tuple[int, ...]

_PLANE_BLOCK = (32, 8)
_LINE_BLOCK = (256,)
_MAX_LINE_BLOCKS = 4096  # more than any GPU runs at once; the kernels stride over what is left
MAX_GRID_Y = 65535


def plane_shape(rows: int, columns: int) -> tuple[Grid, Block]:
    """Grid and block of a kernel with a thread for each element of a matrix."""
    across, down = _PLANE_BLOCK
    return (blocks(rows, down), min(blocks(columns, across), MAX_GRID_Y)), _PLANE_BLOCK


def line_shape(size: int) -> tuple[Grid, Block]:
    """Grid and block of a kernel with a thread for each element of a flat array."""
    return (min(blocks(size, _LINE_BLOCK[0]), _MAX_LINE_BLOCKS),), _LINE_BLOCK


def matrix_shape(kernel: str, **arrays: DeviceArray) -> tuple[int, int]:
    """Return the shape of the one array given. Raises ValueError unless it is a matrix without gaps."""
    ((name, array),) = arrays.items()
    if len(array.shape) != 2 or not array.is_contiguous:
        raise ValueError(f"{kernel}: {name} of shape {array.shape} is not a contiguous matrix")
    rows, columns = array.shape
    return rows, columns


def require_shape(kernel: str, shape: tuple[int, ...], **arrays: DeviceArray) -> None:
    """ValueError unless each array has this shape and no gaps."""
    for name, array in arrays.items():
        if array.shape != shape or not array.is_contiguous:
            raise ValueError(f"{kernel}: {name} of shape {array.shape} is not a contiguous {shape}")


def require_aligned(kernel: str, nbytes: int, **arrays: DeviceArray) -> None:
    """ValueError unless each array begins at a multiple of so many bytes."""
    for name, array in arrays.items():
        if array.pointer % nbytes:
            raise ValueError(f"{kernel}: {name} at {array.pointer:#x} is not at a multiple of {nbytes} bytes")


def launches(rows: int) -> list[tuple[int, int]]:
    """Return start and stop of the rows of each launch, where a grid has a block down for each row."""
    return [(start, min(start + MAX_GRID_Y, rows)) for start in range(0, rows, MAX_GRID_Y)]
