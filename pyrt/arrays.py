"""Arrays in device memory, page-locked host arrays, and flat arenas with named views."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import DTypeLike

from pyrt import interop
from pyrt.driver import Driver, StreamHandle

ALIGNMENT = 256
"""Bytes to which the views of an arena are aligned: a whole number of 16-byte vector loads."""


def aligned(nbytes: int) -> int:
    """Round up to a multiple of `ALIGNMENT`."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """A row-major array of any number of dimensions in device memory, or a view of one.

    ``ld`` is the leading dimension: elements from one row to the next (the length of the last dimension, but
    in a view of some columns of a matrix). The array does not own its memory: the driver frees all at
    ``close``. Nor does it own what it has taken from others (`from_dlpack`): ``owner`` keeps that, as long as
    the array, a view of it or a launch bound to it lives. A graph does not: keep them beside it.
    """

    driver: Driver
    pointer: int
    shape: tuple[int, ...]
    dtype: np.dtype
    ld: int
    owner: object = field(default=None, repr=False)

    @classmethod
    def empty(cls, driver: Driver, shape: tuple[int, ...], dtype: DTypeLike) -> DeviceArray:
        """New memory with unspecified contents."""
        dtype = np.dtype(dtype)
        pointer = driver.allocate(math.prod(shape) * dtype.itemsize)
        return cls(driver, pointer, tuple(shape), dtype, _row_length(shape))

    @classmethod
    def exportable(cls, driver: Driver, shape: tuple[int, ...], dtype: DTypeLike) -> DeviceArray:
        """New memory as of `empty`, which `export` takes on every device."""
        dtype = np.dtype(dtype)
        pointer = driver.allocate_exportable(math.prod(shape) * dtype.itemsize)
        return cls(driver, pointer, tuple(shape), dtype, _row_length(shape))

    @classmethod
    def from_host(cls, driver: Driver, host: np.ndarray) -> DeviceArray:
        """New memory with a copy of ``host``, there when this returns."""
        array = cls.empty(driver, host.shape, host.dtype)
        array.set(host)
        return array

    @classmethod
    def imported(cls, driver: Driver, handle: bytes, shape: tuple[int, ...], dtype: DTypeLike) -> DeviceArray:
        """Return the array of this shape and dtype that another process on this machine has exported.

        Raises UserError where the device cannot reach it. `Driver.release_memory` lets its pointer go.
        """
        return cls(driver, driver.import_memory(handle), tuple(shape), np.dtype(dtype), _row_length(shape))

    @classmethod
    def from_dlpack(cls, driver: Driver, x: Any) -> DeviceArray:
        """Take the memory of an array that has ``__dlpack__`` and lies on this device; no copy.

        As those of CuPy, PyTorch and JAX; on the cpu and the emulated device, which use the host's memory,
        those of NumPy too. What was queued for it on the device is done when this returns. Raises ValueError
        for one that is elsewhere, read-only, or neither in row-major order nor some columns of a matrix.
        """
        return cls(driver, *interop.take_dlpack(driver, x))

    @classmethod
    def from_interface(cls, driver: Driver, x: Any) -> DeviceArray:
        """Take memory as `from_dlpack` does, by ``__cuda_array_interface__`` or ``__array_interface__``."""
        return cls(driver, *interop.take_interface(driver, x))

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """For NumPy, where the memory is the host's; waits for all work queued on the device."""
        return interop.array_interface(self)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """For CuPy, PyTorch, Numba and others, on a GPU; waits for all work queued on the device."""
        return interop.cuda_array_interface(self)

    def __array__(self, *arguments: object, **keywords: object) -> NoReturn:
        """Say why NumPy cannot use the memory: it asks this where there is no ``__array_interface__``."""
        raise TypeError("NumPy cannot use the memory of this device: copy the array with to_host()")

    def __dlpack_device__(self) -> tuple[int, int]:
        return interop.device_of(self.driver)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """Give the memory to ``from_dlpack`` of NumPy, CuPy, PyTorch or JAX; no copy.

        Waits for all work queued on the device, but where ``stream`` is -1. The memory stays the driver's.
        """
        return interop.give_dlpack(self, stream, max_version, dl_device, copy)

    def export(self) -> bytes:
        """Return a handle to import this memory in another process.

        Raises ValueError if it begins inside an allocation.
        """
        return self.driver.export_memory(self.pointer)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @cached_property
    def end(self) -> int:
        """The address behind its last element: of a matrix, that in the last row."""
        rows = self.shape[0] if len(self.shape) == 2 else 1
        elements = (rows - 1) * self.ld + self.shape[-1] if self.size else 0
        return self.pointer + elements * self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        return len(self.shape) != 2 or self.ld == self.shape[1] or self.shape[0] <= 1

    def rows(self, start: int, stop: int) -> DeviceArray:
        """Return a view of ``start`` to ``stop`` along the first dimension: rows, elements, or images."""
        if not self.shape or not 0 <= start <= stop <= self.shape[0]:
            raise IndexError(f"rows {start}:{stop} of an array of shape {self.shape}")
        step = self.ld if len(self.shape) == 2 else math.prod(self.shape[1:])
        return self._view(start * step, (stop - start, *self.shape[1:]), self.ld)

    def columns(self, start: int, stop: int) -> DeviceArray:
        """Return a view of columns ``start`` to ``stop`` of a matrix, with its leading dimension."""
        if len(self.shape) != 2 or not 0 <= start <= stop <= self.shape[1]:
            raise IndexError(f"columns {start}:{stop} of an array of shape {self.shape}")
        return self._view(start, (self.shape[0], stop - start), self.ld)

    def reshape(self, *shape: int) -> DeviceArray:
        """Return a view of a contiguous array under another shape of the same size."""
        if not self.is_contiguous or math.prod(shape) != self.size:
            raise ValueError(f"an array of shape {self.shape} has no view of shape {shape}")
        return self._view(0, shape, _row_length(shape))

    def _view(self, offset: int, shape: tuple[int, ...], ld: int) -> DeviceArray:
        pointer = self.pointer + offset * self.dtype.itemsize
        return DeviceArray(self.driver, pointer, shape, self.dtype, ld, self.owner)

    def set(self, host: np.ndarray) -> None:
        """Copy a host array of the same shape here, and wait until it is there."""
        if host.shape != self.shape or not self.is_contiguous:
            raise ValueError(f"a host array of shape {host.shape} does not fit {self.shape}")
        stream = self.driver.create_stream()
        # The conversion is bound to a name: it must live until the copy is done.
        source = np.ascontiguousarray(host, self.dtype)
        self.driver.copy_to_device(self.pointer, source, stream)
        self.driver.synchronize_stream(stream)

    def to_host(self) -> np.ndarray:
        """Copy a contiguous array to the host, after all work queued on the device."""
        if not self.is_contiguous:
            raise ValueError("a view of some columns is not contiguous: copy the whole array")
        host = np.empty(self.shape, self.dtype)
        self.driver.synchronize()
        stream = self.driver.create_stream()
        self.driver.copy_to_host(host, self.pointer, stream)
        self.driver.synchronize_stream(stream)
        return host

    def host_view(self) -> np.ndarray:
        """Return the memory itself as a NumPy array, on a device whose memory the host can use."""
        if len(self.shape) != 2:
            return self.driver.host_view(self.pointer, self.shape, self.dtype)
        rows, columns = self.shape
        elements = (rows - 1) * self.ld + columns if rows else 0
        flat = self.driver.host_view(self.pointer, (elements,), self.dtype)
        strides = (self.ld * self.dtype.itemsize, self.dtype.itemsize)
        return np.lib.stride_tricks.as_strided(flat, self.shape, strides)

    def queue_upload(self, host: np.ndarray, stream: StreamHandle) -> None:
        """Queue a copy of a host array of the same size and dtype; ``host`` must stay as it is."""
        self.driver.copy_to_device(self.pointer, host, stream)

    def queue_download(self, host: np.ndarray, stream: StreamHandle) -> None:
        """Queue a copy into a host array of the same size and dtype."""
        self.driver.copy_to_host(host, self.pointer, stream)


def _row_length(shape: tuple[int, ...]) -> int:
    """Return the leading dimension of a contiguous array."""
    return shape[-1] if shape else 1


def pinned(driver: Driver, shape: tuple[int, ...], dtype: DTypeLike, write_only: bool = False) -> np.ndarray:
    """Make a page-locked host array: copies from and to it run beside kernels.

    With ``write_only`` the host fills it faster where threads wait for memory, but reads it slowly.
    """
    dtype = np.dtype(dtype)
    block = driver.allocate_pinned(math.prod(shape) * dtype.itemsize, write_only)
    return block.view(dtype).reshape(shape)


class Mapped(NamedTuple):
    """A page-locked host array, as the host sees it and as kernels do."""

    host: np.ndarray
    device: DeviceArray


def mapped(driver: Driver, shape: tuple[int, ...], dtype: DTypeLike) -> Mapped:
    """Make a page-locked host array that kernels read and write where it lies."""
    dtype = np.dtype(dtype)
    block, pointer = driver.allocate_mapped(math.prod(shape) * dtype.itemsize)
    host = block.view(dtype).reshape(shape)
    return Mapped(host, DeviceArray(driver, pointer, tuple(shape), dtype, _row_length(shape)))


Empty = Callable[[tuple[int, ...], DTypeLike], DeviceArray]
"""Makes a new array of a shape and dtype, with unspecified contents."""


class Layout:
    """Where named arrays lie in one flat buffer: offsets and sizes in elements, in the order given.

    Each array begins at a multiple of ``ALIGNMENT`` bytes; what lies between is padding.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], dtype: DTypeLike) -> None:
        self.dtype = np.dtype(dtype)
        self.shapes = dict(shapes)
        self.offsets: dict[str, int] = {}
        end = 0
        for name in self.shapes:
            self.offsets[name] = end
            end += self.nbytes(name) // self.dtype.itemsize
        self.size = end

    def span(self, name: str) -> tuple[int, int]:
        """Start and stop of the named array in the flat buffer, without padding."""
        start = self.offsets[name]
        return start, start + math.prod(self.shapes[name])

    def views(self, flat: np.ndarray) -> dict[str, np.ndarray]:
        """Return views of the named arrays in a flat host buffer."""
        return {name: flat[slice(*self.span(name))].reshape(shape) for name, shape in self.shapes.items()}

    def nbytes(self, name: str) -> int:
        """Return the bytes of the named array and its padding."""
        step = ALIGNMENT // self.dtype.itemsize
        return -(-math.prod(self.shapes[name]) // step) * step * self.dtype.itemsize


class Arena:
    """One flat device buffer of zeros with a named view for every array of a layout."""

    def __init__(self, driver: Driver, layout: Layout) -> None:
        self.layout = layout
        self.flat = DeviceArray.empty(driver, (layout.size,), layout.dtype)
        # Padding takes part in sums over the whole buffer: it must be finite, and the same everywhere.
        stream = driver.create_stream()
        driver.fill(self.flat.pointer, 0, self.flat.nbytes, stream)
        driver.synchronize_stream(stream)

    def __getitem__(self, name: str) -> DeviceArray:
        start, stop = self.layout.span(name)
        return self.flat.rows(start, stop).reshape(*self.layout.shapes[name])

    def set(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Copy a host array into each named view."""
        for name in self.layout.shapes:
            self[name].set(arrays[name])

    def to_host(self) -> dict[str, np.ndarray]:
        """Copies of all named arrays on the host."""
        return {name: self[name].to_host() for name in self.layout.shapes}
