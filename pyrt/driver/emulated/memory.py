"""The memory of the emulated device: its own, pinned memory, that of other processes; and copies."""

from __future__ import annotations

import ctypes
import os
from random import Random

import numpy as np

from pyrt.driver import sharing
from pyrt.driver.emulated.handles import Stream, Work
from pyrt.driver.emulated.runtime import DeviceError, Runtime
from pyrt.driver.emulated.streams import EmulatedStreams
from pyrt.errors import UserError
from pyrt.host_memory import HostMemory
from pyrt.ledger import Ledger

_SMALL = 1 << 20
"""Bytes that are taken without a look at what is free, which takes a millisecond."""


class EmulatedMemory(EmulatedStreams):
    """The calls of the driver for memory, of which streams may be using some."""

    device_name: str

    def __init__(self, sanitize: bool, dice: Random | None) -> None:
        super().__init__(sanitize, dice)
        self._runtime = Runtime(sanitize)
        self.ledger = Ledger()
        self._sizes: dict[int, int] = {}
        self._exported: dict[int, sharing.SharedFile] = {}
        self._imported: dict[int, int] = {}

    def _free_all(self) -> None:
        """Let go of all that is left."""
        for pointer in list(self._imported):
            self.release_memory(pointer)
        for pointer in list(self._sizes):
            self._free(pointer)

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

    def pin(self, block: np.ndarray, is_own: bool) -> None:
        self._require_no_capture("pin")
        if is_own:
            self.ledger.allocated_pinned(block.nbytes)

    def allocate_mapped(self, nbytes: int) -> tuple[np.ndarray, int]:
        pointer = self._allocate(nbytes)
        self.ledger.allocated_pinned(nbytes)
        self._runtime.fill(pointer, 0, nbytes)
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(pointer)), pointer

    def host_view(self, pointer: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        raise RuntimeError("GPU memory has no host view: copy it to the host")

    # memory of other processes

    def allocate_exportable(self, nbytes: int) -> int:
        return self.allocate(nbytes)

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
