"""Messages of a move as kernels take them: slices of this rank's array (kernels/comm/slices.cuh)."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from pyrt.arrays import DeviceArray
from pyrt.driver import Driver
from pyrt.errors import UserError
from pyrt.redistribute.regions import Region

VEC4 = 4
"""Numbers that travel together: a packed slice is made of whole vec4s."""

BYTES = 32
"""Of a packed slice."""

_ALIGNED = 16  # bytes of a vector load


def vec4s(size: int) -> int:
    """Vec4s that hold so many numbers."""
    return -(-size // VEC4)


def require_countable(size: int) -> None:
    """Numbers and places of a move are C ints, for kernels and for MPI."""
    if size >= 2**31 - VEC4:
        raise UserError(f"{size} numbers move at once, and C counts to 2^31: use a smaller --batch")


def packed_slice(array: DeviceArray, part: Region, place: int) -> bytes:
    """Describe a part of an array, packed from vec4 ``place`` on, for a kernel."""
    view = array.rows(*part.rows).columns(*part.columns)
    columns = view.size if view.is_contiguous else view.shape[1]
    rows_fit = columns == view.size or (columns % VEC4 == 0 and view.ld * view.dtype.itemsize % _ALIGNED == 0)
    is_vector = rows_fit and view.pointer % _ALIGNED == 0
    return struct.pack("Pqiiii", view.pointer, view.ld, view.size, columns, is_vector, place)


def in_device_memory(driver: Driver, slices: Sequence[bytes]) -> DeviceArray:
    """Copy the slices to the device for a kernel, back to back."""
    return DeviceArray.from_host(driver, np.frombuffer(b"".join(slices), np.uint8))
