"""A device that is not there: it hands out addresses and counts bytes; it copies, fills and launches nothing.

All that allocates and binds can be built on it, to see what memory and which kernels it would take.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pyrt.driver import TENSOR_MAP_BYTES, Driver, Shape3
from pyrt.driver.cpu import ALIGNMENT, CpuDriver
from pyrt.ledger import Ledger

_NORESERVE = 0x4000
"""Linux's MAP_NORESERVE, which Python's mmap does not name: no promise that there is memory for all of it."""


@dataclass(frozen=True)
class DeviceProperties:
    """The properties of a device on which the kernels of a run depend."""

    name: str = "cpu"
    architecture: str = ""
    """Empty where NumPy computes."""
    multiprocessors: int = 0
    shared_memory: int = 0

    @classmethod
    def of(cls, driver: Driver) -> DeviceProperties:
        return cls(driver.device_name, driver.architecture, driver.multiprocessors, driver.shared_memory)


class NullDriver(CpuDriver):
    """Addresses under the driver protocol, and a ledger of what was asked for."""

    dlpack_device: tuple[int, int] | None = None

    def __init__(self, device: DeviceProperties, name: str = "null") -> None:
        """``name`` is that of a driver in whose place this one is."""
        self.name, self.device_id = name, "null"
        self.device_name, self.architecture = device.name, device.architecture
        self.has_kernels = bool(device.architecture)
        self.multiprocessors, self.shared_memory = device.multiprocessors, device.shared_memory
        self.ledger = Ledger()
        self.sources: dict[str, None] = {}
        """The sources of the kernels that were loaded, in their order."""
        self._end = ALIGNMENT

    @classmethod
    def like(cls, driver: Driver) -> NullDriver:
        """Make one that stands in for an open driver."""
        return cls(DeviceProperties.of(driver), driver.name)

    def close(self) -> None:
        pass

    def allocate(self, nbytes: int) -> int:
        pointer = self._addresses(nbytes)
        self.ledger.allocated(pointer, nbytes)
        return pointer

    def _addresses(self, nbytes: int) -> int:
        start = self._end
        self._end += -(-max(1, nbytes) // ALIGNMENT) * ALIGNMENT
        return start

    def free(self, pointer: int) -> None:
        self.ledger.freed(pointer)

    def allocate_pinned(self, nbytes: int, write_only: bool = False) -> np.ndarray:
        self.ledger.allocated_pinned(nbytes)
        # The system gives it memory page by page, as it is written; nobody writes much.
        pages = mmap.mmap(-1, max(1, nbytes), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
        return np.frombuffer(pages, np.uint8, nbytes)

    def allocate_mapped(self, nbytes: int) -> tuple[np.ndarray, int]:
        return self.allocate_pinned(nbytes), self._addresses(nbytes)

    def allocate_exportable(self, nbytes: int) -> int:
        return self.allocate(nbytes)

    def export_memory(self, pointer: int) -> bytes:
        return b"null"

    def import_memory(self, handle: bytes) -> int:
        return self._addresses(0)

    def release_memory(self, pointer: int) -> None:
        pass

    def copy_to_device(self, pointer: int, host: np.ndarray, stream: None) -> None:
        pass

    def fill(self, pointer: int, byte: int, nbytes: int, stream: None) -> None:
        pass

    def tensor_map(
        self,
        pointer: int,
        sizes: tuple[int, int, int, int],
        strides: tuple[int, int, int],
        box: tuple[int, int, int, int],
    ) -> bytes:
        return bytes(TENSOR_MAP_BYTES)

    def window_map(
        self,
        pointer: int,
        sizes: tuple[int, int, int, int],
        strides: tuple[int, int, int],
        corners: tuple[tuple[int, int], tuple[int, int]],
        box: tuple[int, int],
        step: int,
    ) -> bytes:
        return bytes(TENSOR_MAP_BYTES)

    def is_compiled(self, source: str, cache_dir: str) -> bool:
        return True

    def compile(self, source: str, cache_dir: str) -> None:
        pass

    def load_module(self, source: str, cache_dir: str) -> None:
        self.sources[source] = None

    def function(self, module: None, name: str) -> None:
        pass

    def launcher(
        self, function: None, grid: Shape3, block: Shape3, arguments: bytes, shared: int, overlaps: bool
    ) -> Callable[[None], None]:
        return _launch_nothing


def _launch_nothing(stream: None) -> None:
    pass
