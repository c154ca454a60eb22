"""Files that a run writes: found writable before it starts, then written whole or not at all."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.lib import format as npy

from pyrt.errors import UserError, shown

STDOUT = Path("/dev/stdout")
"""In the place of a file: standard output, which then takes nothing else."""

BEGUN = ".writing-"
"""Before the name of a file that is not whole yet: one that a killed process has left."""

_CHUNK = 1 << 22
"""Bytes that are written at a time, while they are in the caches for the zip's checksum."""


def require_writable(option: str, path: Path) -> None:
    """UserError where ``path`` cannot be written; nothing is left behind, no folder is made."""
    if path == STDOUT:
        return
    with writing(option, path):
        if path.is_dir():
            raise UserError(f"{option} {shown(path)}: is a folder: name a file in it")
        if not path.parent.is_dir():
            raise UserError(f"{option} {shown(path)}: there is no folder {shown(path.parent)}: make it first")
        if path.exists():
            if not path.is_file():  # a pipe or a device would be replaced by a file
                raise UserError(f"{option} {shown(path)}: is no regular file: name another place")
            with open(path, "r+b"):
                pass
        with tempfile.TemporaryFile(dir=path.parent):
            pass


def write_whole(option: str, path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write through a temporary file beside ``path`` and rename it: readers see all of it or the old one.

    To STDOUT as it comes; what fails there is raised as it is, as by print.
    """
    if path == STDOUT:
        with open(os.dup(1), "wb") as file:
            write(file)
        return
    path = Path(os.path.realpath(path))  # through a symbolic link, not in its place
    with writing(option, path):
        prefix = f"{BEGUN}{path.name}"[:40]
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=prefix)
        try:
            with open(handle, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def write_arrays(file: BinaryIO, arrays: Mapping[str, np.ndarray]) -> None:
    """Write these arrays as an .npz, as np.savez does, but without a copy of them.

    np.savez copies 16 MB at a time and holds the interpreter's lock meanwhile, for up to 9 ms: a thread that
    queues steps waits for it. Checksums and writes release the lock.
    """
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            values = np.asarray(array, order="C")
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                npy.write_array_header_1_0(member, npy.header_data_from_array_1_0(values))
                content = values.reshape(-1).view(np.uint8).data
                for start in range(0, len(content), _CHUNK):
                    member.write(content[start : start + _CHUNK])


@contextmanager
def writing(option: str, path: Path) -> Iterator[None]:
    """Turn what fails while ``path`` is written into a UserError that names the option."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{option} {shown(path)}: cannot be written ({error.strerror}): name another place"
        ) from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
