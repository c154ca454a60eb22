"""Messages of a move as kernels take them: strips of this rank's array (kernels/strips.cuh)."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from pyrt.driver import Driver
from pyrt.errors import UserError
from pyrt.memory import DeviceArray
from pyrt.regions import Region

FOUR = 4
"""Numbers that travel together: a packed strip is made of whole fours."""

BYTES = 32
"""Of a strip."""

_ALIGNED = 16  # bytes of a vector load


def fours(size: int) -> int:
    """Fours that hold so many numbers."""
    return -(-size // FOUR)


def require_countable(size: int) -> None:
    """Numbers and places of a move are C ints, for kernels and for MPI."""
    if size >= 2**31 - FOUR:
        raise UserError(f"{size} numbers move at once, and C counts to 2^31: use a smaller --batch")


def strip(array: DeviceArray, part: Region, place: int) -> bytes:
    """A part of an array, which is packed from four number ``place`` on."""
    view = array.rows(*part.rows).columns(*part.columns)
    columns = view.size if view.is_contiguous else view.shape[1]
    rows_fit = columns == view.size or (columns % FOUR == 0 and view.ld * view.dtype.itemsize % _ALIGNED == 0)
    is_vector = rows_fit and view.pointer % _ALIGNED == 0
    return struct.pack("Pqiiii", view.pointer, view.ld, view.size, columns, is_vector, place)


def in_device_memory(driver: Driver, strips: Sequence[bytes]) -> DeviceArray:
    """The strips, one behind the other, for a kernel."""
    return DeviceArray.from_host(driver, np.frombuffer(b"".join(strips), np.uint8))
