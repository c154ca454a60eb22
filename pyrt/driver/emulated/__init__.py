"""The emulated device: the very same ``.cu`` kernels compiled for the CPU, behind the driver protocol.

For tests, and for writing kernels where there is no GPU. Device memory is host memory that nobody above the
driver can look into, unless pyrt/interop.py gives it away; streams are threads; kernels run on all cores.
docs/explain/emulated.md says what it promises.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable
from random import Random

from pyrt.driver import TENSOR_MAP_BYTES, Shape3
from pyrt.driver.emulated import compile
from pyrt.driver.emulated.handles import Stream, Work
from pyrt.driver.emulated.memory import EmulatedMemory
from pyrt.driver.emulated.runtime import SHARED_MEMORY, DeviceError, Function, require_valid

__all__ = ["DeviceError", "EmulatedDriver", "compile"]

SANITIZE_VARIABLE = "PYRT_SANITIZE"
"""Set to something but 0, it turns the checks on."""


class EmulatedDriver(EmulatedMemory):
    """Host memory, threads and a C++ compiler in the place of a GPU.

    ``sanitize`` turns the checks on, and so does ``$PYRT_SANITIZE`` set to something but 0: what they
    find is raised as DeviceError at the next synchronisation. ``order_seed`` shuffles the order in which
    threads, blocks and streams run. Raises UserError without a compiler.
    """

    name = "emulated"
    architecture = "emulated"
    has_kernels = True
    shared_memory = SHARED_MEMORY
    dlpack_device: tuple[int, int] | None = (1, 0)

    def __init__(self, sanitize: bool = False, order_seed: int | None = None) -> None:
        sanitize = sanitize or os.environ.get(SANITIZE_VARIABLE, "") not in ("", "0")
        super().__init__(sanitize, Random(order_seed) if order_seed is not None else None)
        self.multiprocessors = _cores()
        self.device_id = f"process {os.getpid()}"
        self.device_name = f"{self.multiprocessors} cores{', with checks' if sanitize else ''}"

    def close(self) -> None:
        self._captures.clear()
        self._workers.wait()
        self._free_all()
        self._raise_error()

    def tensor_map(
        self,
        pointer: int,
        sizes: tuple[int, int, int, int],
        strides: tuple[int, int, int],
        box: tuple[int, int, int, int],
    ) -> bytes:
        # As TensorMap of kernels/gemm/tma.cuh.
        return struct.pack("P4q3q4ii", pointer, *sizes, *strides, *box, 2).ljust(TENSOR_MAP_BYTES, b"\0")

    def window_map(
        self,
        pointer: int,
        sizes: tuple[int, int, int, int],
        strides: tuple[int, int, int],
        corners: tuple[tuple[int, int], tuple[int, int]],
        box: tuple[int, int],
        step: int,
    ) -> bytes:
        # As WindowMap of kernels/gemm/tma.cuh.
        first, last = corners
        packed = struct.pack("P4q3q8i", pointer, *sizes, *strides, *first, *last, step, *box, 2)
        return packed.ljust(TENSOR_MAP_BYTES, b"\0")

    def is_compiled(self, source: str, cache_dir: str) -> bool:
        return compile.is_compiled(source, cache_dir, self._sanitize)

    def compile(self, source: str, cache_dir: str) -> None:
        compile.kernel_library(source, cache_dir, self._sanitize)

    def load_module(self, source: str, cache_dir: str) -> ctypes.CDLL:
        self._require_no_capture("load_module")
        return self._runtime.load(compile.kernel_library(source, cache_dir, self._sanitize))

    def function(self, module: ctypes.CDLL, name: str) -> Function:
        return Function(module, name)

    def launcher(
        self, function: Function, grid: Shape3, block: Shape3, arguments: bytes, shared: int, overlaps: bool
    ) -> Callable[[Stream], None]:
        # A pointer lies at a multiple of its size; numbers that look like one point to no allocation.
        count = len(arguments) // 8
        addresses = struct.unpack_from(f"{count}Q", arguments)

        def prepare() -> Work:
            seed = self._dice.getrandbits(32) if self._dice is not None else None

            def run() -> None:
                self._runtime.launch(function, grid, block, arguments, shared, seed)

            return run

        def launch(stream: Stream) -> None:
            require_valid(function, grid, block, shared)
            self._queue(stream, f"the kernel {function.name}", addresses, prepare)

        return launch


def _cores() -> int:
    return len(os.sched_getaffinity(0))
