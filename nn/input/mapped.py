"""Arrays that stay in their file: they are mapped, and memory holds no more of them than is in use.

So a data set may be larger than the memory of a node. Each rank maps the file by itself, if it can see it.
"""

import os
from typing import NamedTuple

import numpy as np


class Place(NamedTuple):
    """Where the elements of an array begin in a file; by its length and time of change the file is known."""

    path: str
    offset: int
    length: int
    changed: int


def place_of(array: np.ndarray) -> Place | None:
    """Return where a contiguous array lies, if it is mapped or a part of one that is."""
    owner = array
    while not isinstance(owner, np.memmap):
        if not isinstance(owner.base, np.ndarray):
            return None
        owner = owner.base
    offset = owner.offset + array.ctypes.data - owner.ctypes.data
    path = str(owner.filename)
    found = os.stat(path)
    return Place(path, offset, found.st_size, found.st_mtime_ns)


def map_at(place: Place, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray | None:
    """Map the array at a place of a file; None where the same file is not to be seen."""
    try:
        found = os.stat(place.path)
        if (found.st_size, found.st_mtime_ns) != (place.length, place.changed):
            return None
        return np.memmap(place.path, dtype, "r", place.offset, shape)
    except (OSError, ValueError):
        return None
