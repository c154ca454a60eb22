"""The emulated device: the very same ``.cu`` kernels compiled for the CPU, behind the driver protocol.

For tests, and for writing kernels where there is no GPU. Device memory is host memory that nobody above the
driver can look into, unless pyrt/interop.py gives it away; streams are threads; kernels run on all cores.
docs/explain/emulated.md says what it promises.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Callable, Sequence
from random import Random

import numpy as np

from pyrt.driver import TENSOR_MAP_BYTES, Shape3
from pyrt.driver.emulated import compile, sharing
from pyrt.driver.emulated.graphs import Capture
from pyrt.driver.emulated.handles import Event, Recording, Stream, Work
from pyrt.driver.emulated.runtime import SHARED_MEMORY, DeviceError, Function, Runtime, require_valid
from pyrt.driver.emulated.streams import Uses, Workers
from pyrt.errors import UserError
from pyrt.host_memory import HostMemory
from pyrt.ledger import Ledger

__all__ = ["DeviceError", "EmulatedDriver", "compile"]

SANITIZE_VARIABLE = "PYRT_SANITIZE"
"""Set to something but 0, it turns the checks on."""


_SMALL = 1 << 20
"""Bytes that are taken without a look at what is free, which takes a millisecond."""


class EmulatedDriver:
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
        self._sanitize = sanitize or os.environ.get(SANITIZE_VARIABLE, "") not in ("", "0")
        self._runtime = Runtime(self._sanitize)
        self.multiprocessors = _cores()
        self.device_id = f"process {os.getpid()}"
        self.device_name = f"{self.multiprocessors} cores{', with checks' if self._sanitize else ''}"
        self.ledger = Ledger()
        self._sizes: dict[int, int] = {}
        self._exported: dict[int, sharing.SharedFile] = {}
        self._imported: dict[int, int] = {}
        self._dice = Random(order_seed) if order_seed is not None else None
        self._workers = Workers(self._report, self._dice)
        self._uses = Uses()
        self._captures: set[Recording] = set()
        self._lock = threading.Lock()
        self._error: Exception | None = None

    def close(self) -> None:
        self._captures.clear()
        self._workers.wait()
        for pointer in list(self._imported):
            self.release_memory(pointer)
        for pointer in list(self._sizes):
            self._free(pointer)
        self._raise_error()

    # memory

    def allocate(self, nbytes: int) -> int:
        pointer = self._allocate(nbytes)
        self.ledger.allocated(pointer, nbytes)
        return pointer

    def _allocate(self, nbytes: int) -> int:
        self._require_no_capture("allocate")
        if nbytes > _SMALL:
            self._require_free(nbytes)
        pointer = self._runtime.allocate(nbytes)
        self._sizes[pointer] = nbytes
        return pointer

    def _require_free(self, nbytes: int) -> None:
        """UserError where the system would end this process rather than give it so much."""
        memory = HostMemory.now()
        if nbytes > memory.free:
            raise UserError(
                f"{self.device_name}: {nbytes / 1e6:.0f} MB of GPU memory asked, {memory.free / 1e6:.0f} of "
                f"{memory.total / 1e6:.0f} MB free: use a smaller --batch or --hidden"
            )

    def free(self, pointer: int) -> None:
        self._free(pointer)
        self.ledger.freed(pointer)

    def _free(self, pointer: int) -> None:
        self._require_no_capture("free")
        self._give_back(pointer, self._sizes.pop(pointer), "freed")
        if pointer in self._exported:
            os.close(self._exported.pop(pointer).descriptor)

    def _give_back(self, pointer: int, nbytes: int, how: str) -> None:
        for what in self._uses.of(pointer, nbytes):
            self._report(DeviceError(f"{nbytes} bytes of memory were {how} while {what} still uses them"))
        self._runtime.free(pointer, nbytes)

    def free_memory(self) -> int:
        return HostMemory.now().free

    def allocate_pinned(self, nbytes: int, write_only: bool = False) -> np.ndarray:
        self._require_no_capture("allocate_pinned")
        block = np.empty(nbytes, np.uint8)
        self.ledger.allocated_pinned(nbytes)
        return block

    def allocate_mapped(self, nbytes: int) -> tuple[np.ndarray, int]:
        pointer = self._allocate(nbytes)
        self.ledger.allocated_pinned(nbytes)
        self._runtime.fill(pointer, 0, nbytes)
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(pointer)), pointer

    def host_view(self, pointer: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        raise RuntimeError("GPU memory has no host view: copy it to the host")

    # memory of other processes

    def export_memory(self, pointer: int) -> bytes:
        if pointer not in self._sizes:
            raise ValueError("only whole allocations can be exported, not views")
        if pointer not in self._exported:
            self._require_no_capture("export_memory")
            self._workers.wait()  # for those that write it: it moves
            file = sharing.create(self._sizes[pointer])
            self._exported[pointer] = file
            self._runtime.move_to_file(pointer, self._sizes[pointer], file.descriptor)
        return self._exported[pointer].handle

    def import_memory(self, handle: bytes) -> int:
        self._require_no_capture("import_memory")
        descriptor, nbytes = sharing.open_shared(handle)
        try:
            pointer = self._runtime.map_file(nbytes, descriptor)
        finally:
            os.close(descriptor)  # the mapping keeps the memory
        self._imported[pointer] = nbytes
        return pointer

    def release_memory(self, pointer: int) -> None:
        self._require_no_capture("release_memory")
        self._give_back(pointer, self._imported.pop(pointer), "released")

    # copies; what is queued holds the host array until it is done

    def copy_to_device(self, pointer: int, host: np.ndarray, stream: Stream) -> None:
        def prepare() -> Work:
            promised = host.tobytes() if self._sanitize else None

            def copy() -> None:
                if promised is not None and host.tobytes() != promised:
                    raise DeviceError(
                        f"a host array of shape {host.shape} changed after copy_to_device, or the launch of "
                        "its graph, and before the stream's copy"
                    )
                self._runtime.copy(pointer, host.ctypes.data, host.nbytes)

            return copy

        self._queue(stream, "a copy to the device", [pointer], prepare)

    def copy_to_host(self, host: np.ndarray, pointer: int, stream: Stream) -> None:
        def copy() -> None:
            self._runtime.copy(host.ctypes.data, pointer, host.nbytes)

        self._queue(stream, "a copy to the host", [pointer], lambda: copy)

    def fill(self, pointer: int, byte: int, nbytes: int, stream: Stream) -> None:
        def set_bytes() -> None:
            self._runtime.fill(pointer, byte, nbytes)

        self._queue(stream, "a fill", [pointer], lambda: set_bytes)

    def _queue(
        self, stream: Stream, what: str, addresses: Sequence[int], prepare: Callable[[], Work]
    ) -> None:
        """Queue what ``prepare`` makes now, or in a graph at each replay: work with these addresses."""
        if stream.capture is not None:
            stream.capture.add(stream, lambda lane: self._queue(lane, what, addresses, prepare))
            return
        work = prepare()
        stream.queue(self._uses.noting(what, addresses, work) if self._sanitize else work)

    # streams and events

    def create_stream(self) -> Stream:
        return self._workers.create_stream()

    def synchronize_stream(self, stream: Stream) -> None:
        if stream.capture is not None:
            stream.capture.fail("synchronize_stream")
        stream.mark().wait()
        self._raise_error()

    def synchronize(self) -> None:
        self._require_no_capture("synchronize")
        self._workers.wait()
        self._raise_error()

    def create_event(self, timing: bool) -> Event:
        return Event()

    def record(self, event: Event, stream: Stream) -> None:
        if stream.capture is not None:
            event.place = stream.capture.mark(stream)
        else:
            event.record(stream)

    def wait(self, stream: Stream, event: Event) -> None:
        if event.place is not None:
            event.place.capture.join(stream, event.place)
        elif stream.capture is not None:
            stream.capture.fail("a wait for an event that was recorded before it")
        else:
            event.wait(stream)

    def is_done(self, event: Event) -> bool:
        _require_no_place(event)
        return event.mark.passed

    def synchronize_event(self, event: Event) -> None:
        _require_no_place(event)
        event.mark.wait()
        self._raise_error()

    def elapsed(self, start: Event, stop: Event) -> float:
        _require_no_place(start)
        _require_no_place(stop)
        return stop.mark.time - start.mark.time

    def _report(self, error: Exception) -> None:
        """Keep an error for the next synchronisation, later ones as its notes; streams' threads call this."""
        with self._lock:
            if self._error is None:
                self._error = error
            else:
                self._error.add_note(str(error))

    def _raise_error(self) -> None:
        with self._lock:
            error, self._error = self._error, None
        if error is not None:
            raise error

    # graphs

    def begin_capture(self, stream: Stream) -> None:
        if stream.capture is not None:
            stream.capture.fail("begin_capture")
        self._captures.add(Capture(stream))

    def end_capture(self, stream: Stream) -> Callable[[Stream], None]:
        if stream.capture is None or stream.capture.origin is not stream:
            raise DeviceError("end_capture on a stream on which no capture began")
        self._captures.remove(stream.capture)
        return stream.capture.end(self.create_stream)

    def record_in_graph(self, event: Event, stream: Stream) -> None:
        if stream.capture is None:
            raise DeviceError("record_in_graph on a stream that is not being captured")
        stream.capture.add(stream, event.record)

    def _require_no_capture(self, what: str) -> None:
        for capture in self._captures:
            capture.fail(what)

    # kernels

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


def _require_no_place(event: Event) -> None:
    """Raise DeviceError for an event that the host asks for and a capture has."""
    if event.place is not None:
        event.place.capture.fail("the host asks for an event that was recorded")


def _cores() -> int:
    return len(os.sched_getaffinity(0))
