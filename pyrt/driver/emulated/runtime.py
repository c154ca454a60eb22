"""The compiled runtime (runtime.h and the .cpp files) as seen from Python: memory, kernels, launches."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path
from typing import Any

from pyrt.cache import VARIABLE
from pyrt.driver import Shape3
from pyrt.driver.emulated import compile
from pyrt.errors import UserError, out_of_files

SHARED_MEMORY = 227 << 10
"""Bytes of shared memory that a block may have, as on sm_90; ``SharedMemory::MOST`` of runtime.h."""


class DeviceError(RuntimeError):
    """What no program may do with a device: which kernel did it, in which line, block and thread."""


class _Where(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint64), ("block", ctypes.c_uint * 3), ("thread", ctypes.c_uint * 3))


class _Finding(ctypes.Structure):
    """``Finding`` of runtime.h."""

    _fields_ = (
        ("what", ctypes.c_char * 256),
        ("where", _Where),
        ("other_did", ctypes.c_char * 64),
        ("other", _Where),
    )


class Function:
    """A kernel of a loaded library."""

    def __init__(self, library: ctypes.CDLL, name: str) -> None:
        self.name = name
        self.library = library._name
        self.address = ctypes.cast(library[f"emulated_call_{name}"], ctypes.c_void_p)


class Runtime:
    """The library that kernels call, loaded where their libraries find it; once for all drivers."""

    def __init__(self, checked: bool) -> None:
        self._checked = checked
        self._library: Any = _load(compile.runtime_library(), ctypes.RTLD_GLOBAL)
        self._library.emulated_allocate.restype = ctypes.c_void_p
        self._library.emulated_map_file.restype = ctypes.c_void_p
        if checked and not self._library.emulated_enable_checks():
            raise MemoryError("the checks of the emulated device need address space that is not there")

    def load(self, path: Path) -> ctypes.CDLL:
        """Load a library of kernels."""
        return _load(path, ctypes.DEFAULT_MODE)

    def allocate(self, nbytes: int) -> int:
        """Poisoned memory, aligned to pages; MemoryError where there is none."""
        pointer: int | None = self._library.emulated_allocate(ctypes.c_size_t(max(nbytes, 1)))
        if pointer is None:
            raise MemoryError(f"{nbytes} bytes for the emulated device")
        return pointer

    def free(self, pointer: int, nbytes: int) -> None:
        self._library.emulated_free(ctypes.c_void_p(pointer), ctypes.c_size_t(max(nbytes, 1)))

    def move_to_file(self, pointer: int, nbytes: int, file: int) -> None:
        """Move what was allocated, and nobody uses now, into an empty file; MemoryError for want of room."""
        size = ctypes.c_size_t(max(nbytes, 1))
        if not self._library.emulated_move_to_file(ctypes.c_void_p(pointer), size, file):
            raise MemoryError(f"{nbytes} bytes of shared memory for the emulated device")

    def map_file(self, nbytes: int, file: int) -> int:
        """Move an allocation into a file, to be freed like other memory; MemoryError without room."""
        pointer: int | None = self._library.emulated_map_file(ctypes.c_size_t(max(nbytes, 1)), file)
        if pointer is None:
            raise MemoryError(f"{nbytes} bytes for the emulated device")
        return pointer

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy between host and device. Raises DeviceError, if checked, for memory that is not allocated."""
        self._require(target, nbytes)
        self._require(source, nbytes)
        self._library.emulated_copy(ctypes.c_void_p(target), ctypes.c_void_p(source), ctypes.c_size_t(nbytes))

    def fill(self, target: int, byte: int, nbytes: int) -> None:
        """Set device memory. Raises DeviceError, if checked, for memory that is not allocated."""
        self._require(target, nbytes)
        self._library.emulated_fill(ctypes.c_void_p(target), byte, ctypes.c_size_t(nbytes))

    def _require(self, address: int, nbytes: int) -> None:
        if self._checked and not self._library.emulated_permitted(
            ctypes.c_void_p(address), ctypes.c_size_t(nbytes)
        ):
            raise DeviceError(f"a copy or fill of {nbytes} bytes that are not allocated")

    def launch(
        self, function: Function, grid: Shape3, block: Shape3, arguments: bytes, shared: int, seed: int | None
    ) -> None:
        """Run a kernel to its end, its blocks and threads in an order that the seed (32 bits) decides.

        Raises DeviceError where it had to be stopped.
        """
        finding = _Finding()
        stopped = self._library.emulated_launch(
            function.address,
            (ctypes.c_uint * 3)(*grid),
            (ctypes.c_uint * 3)(*block),
            arguments,
            ctypes.c_size_t(shared),
            ctypes.c_int(self._checked),
            ctypes.c_int64(-1 if seed is None else seed),
            ctypes.byref(finding),
        )
        if stopped:
            raise DeviceError(_in_words(function, finding))


def _load(path: Path, mode: int) -> ctypes.CDLL:
    """Load a library that was compiled here. Raises UserError, with the way out, where the system refuses."""
    try:
        return ctypes.CDLL(str(path), mode)
    except OSError as error:
        if os.statvfs(path).f_flag & os.ST_NOEXEC:
            way_out = (
                f"no code runs from that file system (noexec): set {VARIABLE} to a folder of another one"
            )
        else:
            way_out = "name another C++ compiler in $CXX, as g++: gcc leaves out the library of C++"
        raise UserError(out_of_files(error) or f"{error}: {way_out}") from None


def require_valid(function: Function, grid: Shape3, block: Shape3, shared: int) -> None:
    """Raise DeviceError for a launch that sm_90 refuses; the limits but that of memory are every GPU's."""
    threads = block[0] * block[1] * block[2]
    sizes = (*zip(grid, (2**31 - 1, 65535, 65535), strict=True), *zip(block, (1024, 1024, 64), strict=True))
    if threads > 1024 or shared > SHARED_MEMORY or any(not 1 <= size <= most for size, most in sizes):
        raise DeviceError(
            f"{function.name}: grid {grid}, block {block}, {shared} bytes of shared memory: a GPU takes 1 to "
            "(2147483647, 65535, 65535) blocks of 1 to (1024, 1024, 64) threads, 1024 in all, and 227 KiB"
        )


def _in_words(function: Function, finding: _Finding) -> str:
    text = f"{function.name}: {_place(function, finding.where)} {finding.what.decode()}"
    if finding.other_did:
        text += f"; {_place(function, finding.other)} {finding.other_did.decode()}"
    return text


def _place(function: Function, where: _Where) -> str:
    line = f"{_source_line(function.library, where.code)}: " if where.code else ""
    return f"{line}block {tuple(where.block)} thread {tuple(where.thread)}"


def _source_line(library: str, code: int) -> str:
    """``file:line`` of the code at an offset of a kernel's library; where that is ours, of its caller."""
    command = ["addr2line", "-i", "-e", library, hex(code)]
    try:
        lines = subprocess.check_output(command, text=True).splitlines()
    except (OSError, subprocess.CalledProcessError):
        return "unknown line (addr2line is missing)"
    places = [line.split(" (")[0] for line in lines]
    return next((place for place in places if not place.startswith(str(compile.HERE))), "unknown line")
