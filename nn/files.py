"""Files that a run writes: found writable before it starts, then written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from pyrt.errors import UserError


def require_writable(option: str, path: Path) -> None:
    """UserError where ``path`` cannot be written; nothing is left behind, no folder is made."""
    if path.is_dir():
        raise UserError(f"{option} {path}: is a folder: name a file in it")
    if not path.parent.is_dir():
        raise UserError(f"{option} {path}: there is no folder {path.parent}: make it first")
    try:
        if path.exists():
            with open(path, "r+b"):
                pass
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise UserError(
            f"{option} {path}: cannot be written ({error.strerror}): name another place"
        ) from None


def write_whole(option: str, path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write through a temporary file beside ``path`` and rename it: readers see all of it or the old one."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with open(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise UserError(
            f"{option} {path}: cannot be written ({error.strerror}): name another place"
        ) from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
