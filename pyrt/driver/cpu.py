"""The device of a machine without a GPU: host memory, no kernels, every call done when it returns.

Operations run as NumPy on ``host_view``; copies, streams and events keep their meaning, so exchange,
feeding and timing run the same code as on a GPU.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import time
from collections.abc import Callable
from typing import NoReturn

import numpy as np

from pyrt.driver import Shape3, sharing
from pyrt.host_memory import HostMemory
from pyrt.ledger import Ledger

ALIGNMENT = 256


class _Event:
    """A place in the (synchronous) stream of work: the time at which it was passed."""

    __slots__ = ("time",)

    def __init__(self) -> None:
        self.time = 0.0


class CpuDriver:
    """Host memory under the driver protocol."""

    name = "cpu"
    architecture = ""
    has_kernels = False
    multiprocessors = 0
    device_id = "cpu"
    shared_memory = 0
    dlpack_device: tuple[int, int] | None = (1, 0)

    def __init__(self) -> None:
        self.device_name = _processor_name()
        self.ledger = Ledger()
        self._allocations: dict[int, np.ndarray] = {}
        self._exportable: dict[int, sharing.SharedFile] = {}

    def close(self) -> None:
        for pointer in list(self._exportable):
            self._close_file(pointer)
        self._allocations.clear()

    def allocate(self, nbytes: int) -> int:
        block = np.empty(nbytes + ALIGNMENT, np.uint8)
        pointer = -(-block.ctypes.data // ALIGNMENT) * ALIGNMENT
        self._allocations[pointer] = block
        self.ledger.allocated(pointer, nbytes)
        return pointer

    def free(self, pointer: int) -> None:
        del self._allocations[pointer]
        self._close_file(pointer)
        self.ledger.freed(pointer)

    def _close_file(self, pointer: int) -> None:
        if pointer in self._exportable:
            os.close(self._exportable.pop(pointer).descriptor)

    def free_memory(self) -> int:
        return HostMemory.now().free

    def allocate_pinned(self, nbytes: int, write_only: bool = False) -> np.ndarray:
        block = np.empty(nbytes, np.uint8)
        self.ledger.allocated_pinned(nbytes)
        return block

    def pin(self, block: np.ndarray, is_own: bool) -> None:
        if is_own:
            self.ledger.allocated_pinned(block.nbytes)

    def allocate_mapped(self, nbytes: int) -> tuple[np.ndarray, int]:
        block = self.allocate_pinned(nbytes)
        block[:] = 0
        self._allocations[block.ctypes.data] = block
        return block, block.ctypes.data

    def host_view(self, pointer: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        nbytes = int(np.prod(shape)) * dtype.itemsize
        memory = memoryview((ctypes.c_char * nbytes).from_address(pointer))
        return np.frombuffer(memory, dtype).reshape(shape)

    def allocate_exportable(self, nbytes: int) -> int:
        file = sharing.create(nbytes)
        os.ftruncate(file.descriptor, nbytes)
        pointer = self._map(file.descriptor, nbytes)
        self._exportable[pointer] = file
        self.ledger.allocated(pointer, nbytes)
        return pointer

    def export_memory(self, pointer: int) -> bytes:
        if pointer not in self._exportable:
            raise ValueError("only what allocate_exportable gave can be exported")
        return self._exportable[pointer].handle

    def import_memory(self, handle: bytes) -> int:
        descriptor, nbytes = sharing.open_shared(handle)
        try:
            return self._map(descriptor, nbytes)
        finally:
            os.close(descriptor)  # the mapping keeps the memory

    def _map(self, descriptor: int, nbytes: int) -> int:
        """Map a file; a page is a multiple of `ALIGNMENT`."""
        block = np.frombuffer(mmap.mmap(descriptor, nbytes), np.uint8)
        self._allocations[block.ctypes.data] = block
        return block.ctypes.data

    def release_memory(self, pointer: int) -> None:
        del self._allocations[pointer]

    def copy_to_device(self, pointer: int, host: np.ndarray, stream: None) -> None:
        ctypes.memmove(pointer, host.ctypes.data, host.nbytes)

    def copy_to_host(self, host: np.ndarray, pointer: int, stream: None) -> None:
        ctypes.memmove(host.ctypes.data, pointer, host.nbytes)

    def fill(self, pointer: int, byte: int, nbytes: int, stream: None) -> None:
        ctypes.memset(pointer, byte, nbytes)

    def create_stream(self) -> None:
        return None

    def synchronize_stream(self, stream: None) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def create_event(self, timing: bool) -> _Event:
        return _Event()

    def record(self, event: _Event, stream: None) -> None:
        event.time = time.perf_counter()

    def wait(self, stream: None, event: _Event) -> None:
        pass

    def is_done(self, event: _Event) -> bool:
        return True

    def synchronize_event(self, event: _Event) -> None:
        pass

    def elapsed(self, start: _Event, stop: _Event) -> float:
        return stop.time - start.time

    def begin_capture(self, stream: None) -> NoReturn:
        raise RuntimeError("the cpu device has no graphs")

    def end_capture(self, stream: None) -> NoReturn:
        raise RuntimeError("the cpu device has no graphs")

    def record_in_graph(self, event: _Event, stream: None) -> NoReturn:
        raise RuntimeError("the cpu device has no graphs")

    def tensor_map(
        self,
        pointer: int,
        sizes: tuple[int, int, int, int],
        strides: tuple[int, int, int],
        box: tuple[int, int, int, int],
    ) -> bytes:
        raise RuntimeError("the cpu device runs no kernels")

    def window_map(
        self,
        pointer: int,
        sizes: tuple[int, int, int, int],
        strides: tuple[int, int, int],
        corners: tuple[tuple[int, int], tuple[int, int]],
        box: tuple[int, int],
        step: int,
    ) -> bytes:
        raise RuntimeError("the cpu device runs no kernels")

    def is_compiled(self, source: str, cache_dir: str) -> bool:
        raise RuntimeError("the cpu device runs no kernels")

    def compile(self, source: str, cache_dir: str) -> None:
        raise RuntimeError("the cpu device runs no kernels")

    def load_module(self, source: str, cache_dir: str) -> None:
        raise RuntimeError("the cpu device runs no kernels")

    def function(self, module: None, name: str) -> None:
        raise RuntimeError("the cpu device runs no kernels")

    def launcher(
        self, function: None, grid: Shape3, block: Shape3, arguments: bytes, shared: int, overlaps: bool
    ) -> Callable[[None], None]:
        raise RuntimeError("the cpu device runs no kernels")


def _processor_name() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()
