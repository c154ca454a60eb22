"""The emulated device: the very same ``.cu`` kernels compiled for the CPU, behind the driver protocol.

For tests, and for writing kernels where there is no GPU. Device memory is host memory that nobody above the
driver can look into; streams are threads; kernels run on all cores. docs/emulated.md says what it promises.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pyrt.driver import Shape3
from pyrt.driver.emulated import compile
from pyrt.driver.emulated.runtime import DeviceError, Function, Runtime
from pyrt.driver.emulated.streams import Event, Stream, Workers
from pyrt.errors import UserError

__all__ = ["DeviceError", "EmulatedDriver"]

ALIGNMENT = 256
POISON = 0xFF
"""The byte that fresh memory is full of: NaN in every floating point type."""


class EmulatedDriver:
    """Host memory, threads and a C++ compiler in the place of a GPU. Raises UserError without a compiler."""

    name = "emulated"
    architecture = "emulated"
    has_kernels = True

    def __init__(self) -> None:
        self._runtime = Runtime()
        self.device_name = f"{_cores()} cores"
        self._allocations: dict[int, np.ndarray] = {}
        self._workers = Workers(self._report)
        self._lock = threading.Lock()
        self._error: Exception | None = None

    def close(self) -> None:
        self._workers.wait()
        self._allocations.clear()

    # memory

    def allocate(self, nbytes: int) -> int:
        free, total = _memory()
        if nbytes > free:
            raise UserError(
                f"{self.device_name}: {nbytes / 1e6:.0f} MB of GPU memory asked, {free / 1e6:.0f} of "
                f"{total / 1e6:.0f} MB free: use a smaller --batch or --hidden"
            )
        block = np.full(nbytes + ALIGNMENT, POISON, np.uint8)
        pointer = -(-block.ctypes.data // ALIGNMENT) * ALIGNMENT
        self._allocations[pointer] = block
        return pointer

    def free(self, pointer: int) -> None:
        del self._allocations[pointer]

    def allocate_pinned(self, nbytes: int) -> np.ndarray:
        return np.empty(nbytes, np.uint8)

    def host_view(self, pointer: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        raise RuntimeError("GPU memory has no host view: copy it to the host")

    # copies; a worker holds the host array until it is done with it

    def copy_to_device(self, pointer: int, host: np.ndarray, stream: Stream) -> None:
        stream.queue(lambda: _move(pointer, host.ctypes.data, host.nbytes))

    def copy_to_host(self, host: np.ndarray, pointer: int, stream: Stream) -> None:
        stream.queue(lambda: _move(host.ctypes.data, pointer, host.nbytes))

    def fill(self, pointer: int, byte: int, nbytes: int, stream: Stream) -> None:
        stream.queue(lambda: _fill(pointer, byte, nbytes))

    # streams and events

    def create_stream(self) -> Stream:
        return self._workers.create_stream()

    def synchronize_stream(self, stream: Stream) -> None:
        stream.mark().wait()
        self._raise_error()

    def synchronize(self) -> None:
        self._workers.wait()
        self._raise_error()

    def create_event(self, timing: bool) -> Event:
        return Event()

    def record(self, event: Event, stream: Stream) -> None:
        event.mark = stream.mark()

    def wait(self, stream: Stream, event: Event) -> None:
        stream.queue(event.mark.wait)

    def is_done(self, event: Event) -> bool:
        return event.mark.passed

    def synchronize_event(self, event: Event) -> None:
        event.mark.wait()
        self._raise_error()

    def elapsed(self, start: Event, stop: Event) -> float:
        return stop.mark.time - start.mark.time

    def _report(self, error: Exception) -> None:
        """Keep the first error for the next synchronisation; called by the streams' threads."""
        with self._lock:
            self._error = self._error or error

    def _raise_error(self) -> None:
        with self._lock:
            error, self._error = self._error, None
        if error is not None:
            raise error

    # kernels

    def compile(self, source: str, cache_dir: str) -> None:
        compile.kernel_library(source, cache_dir)

    def load_module(self, source: str, cache_dir: str) -> ctypes.CDLL:
        return self._runtime.load(compile.kernel_library(source, cache_dir))

    def function(self, module: ctypes.CDLL, name: str) -> Function:
        return Function(module, name)

    def launcher(
        self, function: Function, grid: Shape3, block: Shape3, arguments: bytes, shared: int
    ) -> Callable[[Stream], None]:
        def launch(stream: Stream) -> None:
            stream.queue(lambda: self._runtime.launch(function, grid, block, arguments, shared))

        return launch


def _move(target: int, source: int, nbytes: int) -> None:
    _LIBC.memcpy(ctypes.c_void_p(target), ctypes.c_void_p(source), ctypes.c_size_t(nbytes))


def _fill(target: int, byte: int, nbytes: int) -> None:
    _LIBC.memset(ctypes.c_void_p(target), byte, ctypes.c_size_t(nbytes))


# Unlike ctypes.memmove these let the interpreter go on.
_LIBC = ctypes.CDLL(None)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _memory() -> tuple[int, int]:
    """Bytes of memory that this machine can still give, and that it has."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free, total = (int(lines[name].split()[0]) * 1024 for name in ("MemAvailable", "MemTotal"))
    return free, total
