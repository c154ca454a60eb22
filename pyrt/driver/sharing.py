"""Host memory that several processes use, as that of the cpu and the emulated device: files without a name.

Such a file (``memfd_create``) is memory, and lives as long as somebody has it open or mapped: whatever way a
job ends, nothing of it is left. Another process of the same user opens it under ``/proc/<pid>/fd``.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass

from pyrt.errors import UserError, out_of_files


@dataclass(frozen=True)
class SharedFile:
    """An open file of this process, and what another needs to know to open it."""

    descriptor: int
    handle: bytes


def create(nbytes: int) -> SharedFile:
    """Create an empty file for so many bytes. Its random name tells it from a later one with its number."""
    name = f"pyrt-{secrets.token_hex(8)}"
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    return SharedFile(descriptor, f"{os.getpid()} {descriptor} {nbytes} {name}".encode())


def open_shared(handle: bytes) -> tuple[int, int]:
    """Open another process's file: return its descriptor and the number of bytes in it.

    Raises UserError where it is not there, is not for this user, or belongs to this very process: as on a
    GPU, a process does not import its own memory.
    """
    pid, number, nbytes, name = handle.decode().split()
    path = f"/proc/{pid}/fd/{number}"
    try:
        if int(pid) == os.getpid():
            raise OSError("it belongs to this process")
        if name not in os.readlink(path):
            raise OSError("it is no longer there")
        return os.open(path, os.O_RDWR | os.O_CLOEXEC), int(nbytes)
    except OSError as error:
        raise UserError(
            out_of_files(error)
            or f"memory of process {pid} cannot be used ({error}): ranks that share memory must run on one "
            "machine, as one user, and keep what they export"
        ) from None
