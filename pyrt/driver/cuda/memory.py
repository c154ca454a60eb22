"""The memory of a GPU: its own, page-locked memory of the host, that of other processes; and copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pycuda.driver as cuda
from cuda.bindings import driver as bindings

from pyrt.driver.cuda.calls import call, no_memory
from pyrt.errors import UserError
from pyrt.host_memory import HostMemory
from pyrt.ledger import Ledger


class CudaMemory:
    """The calls of the driver for memory, in the current context."""

    def __init__(self, device_name: str) -> None:
        self.device_name = device_name
        self.ledger = Ledger()
        self._allocations: dict[int, Any] = {}
        self._pinned: list[Any] = []
        self._registered: list[np.ndarray] = []
        self._imported: dict[int, Any] = {}

    def _free_all(self) -> None:
        """Let go of all that is left."""
        for imported in self._imported.values():
            imported.close()
        for allocation in self._allocations.values():
            allocation.free()
        for allocation in self._pinned:
            allocation.free()
        for block in self._registered:
            call(bindings.cuMemHostUnregister, block.ctypes.data)
        self._registered.clear()

    def allocate(self, nbytes: int) -> int:
        try:
            allocation = cuda.mem_alloc(max(nbytes, 1))
        except cuda.MemoryError:
            raise no_memory(f"{self.device_name}: {nbytes / 1e6:.0f} MB of GPU memory asked") from None
        # Held here so that garbage collection never frees memory that a stream may still use.
        self._allocations[int(allocation)] = allocation
        self.ledger.allocated(int(allocation), nbytes)
        return int(allocation)

    def free(self, pointer: int) -> None:
        self._allocations.pop(pointer).free()
        self.ledger.freed(pointer)

    def free_memory(self) -> int:
        free, _ = cuda.mem_get_info()
        return int(free)

    def allocate_pinned(self, nbytes: int, write_only: bool = False) -> np.ndarray:
        flags = cuda.host_alloc_flags.WRITECOMBINED if write_only else 0
        try:
            block = cuda.pagelocked_empty(max(nbytes, 1), np.uint8, mem_flags=flags)
        except cuda.MemoryError:
            free = HostMemory.now().free
            raise UserError(
                f"{nbytes / 1e6:.0f} MB of page-locked host memory asked, {free / 1e6:.0f} MB of host memory "
                "free: use a smaller --batch or --hidden, or fewer ranks a node"
            ) from None
        self._pinned.append(block.base)
        self.ledger.allocated_pinned(nbytes)
        return block[:nbytes]

    def pin(self, block: np.ndarray, is_own: bool) -> None:
        try:
            call(bindings.cuMemHostRegister, block.ctypes.data, block.nbytes, 0)
        except RuntimeError as error:
            raise UserError(
                f"{block.nbytes / 1e6:.0f} MB of host memory could not be page-locked ({error}): use a "
                "smaller --hidden, or fewer ranks a node"
            ) from None
        self._registered.append(block)  # mapped until it is unregistered
        if is_own:
            self.ledger.allocated_pinned(block.nbytes)

    def allocate_mapped(self, nbytes: int) -> tuple[np.ndarray, int]:
        block = self.allocate_pinned(nbytes)
        block[:] = 0
        return block, int(block.ctypes.data)  # unified addressing: one pointer for both

    def host_view(self, pointer: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        raise RuntimeError("GPU memory has no host view: copy it to the host")

    def allocate_exportable(self, nbytes: int) -> int:
        return self.allocate(nbytes)

    def export_memory(self, pointer: int) -> bytes:
        if pointer not in self._allocations:  # CUDA takes any, and gives the start of the allocation
            raise ValueError("only whole allocations can be exported, not views")
        return bytes(cuda.mem_get_ipc_handle(pointer))

    def import_memory(self, handle: bytes) -> int:
        try:
            imported = cuda.IPCMemoryHandle(bytearray(handle))
        except cuda.Error as error:
            raise UserError(
                f"{self.device_name} cannot use memory of another rank ({error}): the ranks must be on one "
                "machine and their GPUs able to reach each other (nvidia-smi topo -p2p rw)"
            ) from None
        # Held here so that garbage collection never closes memory that a stream may still use.
        self._imported[int(imported)] = imported
        return int(imported)

    def release_memory(self, pointer: int) -> None:
        self._imported.pop(pointer).close()

    def copy_to_device(self, pointer: int, host: np.ndarray, stream: cuda.Stream) -> None:
        cuda.memcpy_htod_async(pointer, host, stream)

    def copy_to_host(self, host: np.ndarray, pointer: int, stream: cuda.Stream) -> None:
        cuda.memcpy_dtoh_async(host, pointer, stream)

    def fill(self, pointer: int, byte: int, nbytes: int, stream: cuda.Stream) -> None:
        cuda.memset_d8_async(pointer, byte, nbytes, stream)
