"""How the messages of a move lie in a buffer, and what takes them out of an array or puts them into one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pyrt.arrays import DeviceArray
from pyrt.driver import StreamHandle
from pyrt.kernels import REALS, Constants, KernelLibrary, blocks
from pyrt.redistribute.regions import Region
from pyrt.redistribute.slices import VEC4, in_device_memory, packed_slice, require_countable, vec4s

QueueWork = Callable[[StreamHandle], object]

_THREADS = 256
_MOST_BLOCKS = 32  # of a message: copies over the bus need no more


def kernel_file(dtype: np.dtype) -> tuple[str, Constants]:
    """Name the kernel file and constants of packing and unpacking."""
    return "comm/packing", {"REAL": REALS[dtype]}


@dataclass(frozen=True)
class Packing:
    """One message for each rank, or from each, one behind the other."""

    parts: Sequence[Region]
    """Of this rank's array; those that are the same are packed once."""
    counts: list[int]
    """Of each message, in elements."""
    starts: list[int]
    """Where it begins."""
    size: int
    """Of the buffer."""
    is_array: bool
    """The buffer is the array: a copy of it, or even itself, will do."""

    @classmethod
    def of(cls, array: DeviceArray, parts: Sequence[Region]) -> Packing:
        """Lay out these parts of an array as messages."""
        counts, columns = [part.size for part in parts], array.shape[1]
        require_countable(sum(counts) + VEC4 * len(counts))
        if array.is_contiguous and all(part.size == 0 or part.shape[1] == columns for part in parts):
            return cls(parts, counts, [part.rows[0] * columns for part in parts], array.size, is_array=True)
        places: dict[Region, int] = {}
        end = 0
        for part in parts:
            if part not in places:
                places[part] = end
                end += vec4s(part.size)
        starts = [places[part] * VEC4 for part in parts]
        return cls(parts, counts, starts, end * VEC4, is_array=False)

    def apart(self) -> dict[Region, int]:
        """Map each part, once, to its start."""
        return dict(zip(self.parts, self.starts, strict=True))


def bind_kernel(name: str, array: DeviceArray, packing: Packing, packed: DeviceArray) -> QueueWork:
    """Bind the kernel that packs an array into a buffer, or unpacks it."""
    file, constants = kernel_file(array.dtype)
    kernel = KernelLibrary(array.driver).kernel(file, name, **constants)
    apart = packing.apart()
    slices = [packed_slice(array, part, start // VEC4) for part, start in apart.items()]
    longest = max(part.size for part in apart)
    grid = min(_MOST_BLOCKS, blocks(vec4s(longest), _THREADS)), len(slices)
    return kernel.bind(grid, (_THREADS,), in_device_memory(array.driver, slices), packed)


def bind_numpy(name: str, array: DeviceArray, packing: Packing, packed: np.ndarray) -> QueueWork:
    """Bind the same in NumPy, where the host can use the array's memory."""
    whole = array.host_view()
    pairs = []
    for part, start in packing.apart().items():
        in_array = whole[slice(*part.rows), slice(*part.columns)]
        pairs.append((packed[start : start + part.size].reshape(part.shape), in_array))
    if name == "unpack":
        pairs = [(in_array, in_buffer) for in_buffer, in_array in pairs]

    def copy(stream: StreamHandle) -> None:
        for there, here in pairs:
            np.copyto(there, here)

    return copy


def bind_numpy_sum(parts: np.ndarray, total: np.ndarray) -> QueueWork:
    """Bind the sum of parts (ranks, n) in rank order; the total may be the first part."""
    first, second, *others = parts

    def add(stream: StreamHandle) -> None:
        np.add(first, second, out=total)
        for part in others:
            np.add(total, part, out=total)

    return add
