"""The compiled runtime (runtime.cpp) as seen from Python: load it, load kernels, launch them."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from pyrt.driver import Shape3
from pyrt.driver.emulated import compile


class DeviceError(RuntimeError):
    """A kernel did what no kernel may do: which one, where, and what."""


class _Finding(ctypes.Structure):
    """``Finding`` of runtime.h."""

    _fields_ = (
        ("what", ctypes.c_char * 256),
        ("code", ctypes.c_void_p),
        ("block", ctypes.c_uint * 3),
        ("thread", ctypes.c_uint * 3),
    )


class Function:
    """A kernel of a loaded library."""

    def __init__(self, library: ctypes.CDLL, name: str) -> None:
        self.name = name
        self.address = ctypes.cast(library[f"emulated_call_{name}"], ctypes.c_void_p)


class Runtime:
    """The library that kernels call, loaded where their libraries find it."""

    def __init__(self) -> None:
        self._library: Any = ctypes.CDLL(str(compile.runtime_library()), ctypes.RTLD_GLOBAL)

    def load(self, path: Path) -> ctypes.CDLL:
        """A library of kernels."""
        return ctypes.CDLL(str(path))

    def launch(self, function: Function, grid: Shape3, block: Shape3, arguments: bytes, shared: int) -> None:
        """Run a kernel to its end. Raises DeviceError where it had to be stopped."""
        finding = _Finding()
        stopped = self._library.emulated_launch(
            function.address,
            (ctypes.c_uint * 3)(*grid),
            (ctypes.c_uint * 3)(*block),
            arguments,
            ctypes.c_size_t(shared),
            ctypes.byref(finding),
        )
        if stopped:
            block_index, thread_index = tuple(finding.block), tuple(finding.thread)
            raise DeviceError(
                f"{function.name}: block {block_index}, thread {thread_index} {finding.what.decode()}"
            )
