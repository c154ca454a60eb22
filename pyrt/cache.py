"""Where files are kept between runs: the user's cache directory, or ``$PYRT_CACHE_DIR``.

Compiled kernels are code. A folder that somebody else can write in may hold somebody else's code: it is not
used, and what is loaded is this user's own, and nobody else can write it.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from pyrt.errors import UserError

VARIABLE = "PYRT_CACHE_DIR"

_FOR_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def cache_folder(name: str) -> Path:
    """The cache's folder of that name; not made here."""
    root = os.environ.get(VARIABLE) or platformdirs.user_cache_dir("pyrt")
    return Path(root).expanduser() / name


@dataclass(frozen=True)
class KernelFolder:
    """Where compiled kernels are."""

    path: Path
    why_not_kept: str
    """Empty where they are kept; else why the folder goes with the process that found it."""


class _Found:
    """What this process uses."""

    folder: KernelFolder | None = None
    temporary: tempfile.TemporaryDirectory[str] | None = None


def kernel_folder() -> KernelFolder:
    """That of this process: the cache's, else a temporary one. Found once, or told by `use_kernel_folder`.

    Raises UserError where there is neither.
    """
    if _Found.folder is None:
        _Found.folder = _find()
    return _Found.folder


def use_kernel_folder(folder: KernelFolder) -> None:
    """What another rank of this node has found: what one compiles all load."""
    _Found.folder = folder


def _find() -> KernelFolder:
    folder = cache_folder("kernels")
    obstacle = _obstacle(folder)
    if not obstacle:
        return KernelFolder(folder, "")
    try:
        _Found.temporary = tempfile.TemporaryDirectory(prefix="pyrt-kernels-")
    except OSError as error:
        raise UserError(f"{obstacle}; and there is no folder for temporary files: {error}") from None
    return KernelFolder(Path(_Found.temporary.name), f"compiled kernels are not kept: {obstacle}")


def _obstacle(folder: Path) -> str:
    """Why nothing can be kept in a folder of the cache, and what to do; empty where it is there for that."""
    try:
        for place in (folder.parent, folder):
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
            if place.stat().st_uid != os.geteuid():
                return f"{place} belongs to another user: set {VARIABLE} to a folder of your own"
            if not is_own(place):
                return f"others can write in {place}: remove it, or `chmod -R go-w {folder.parent}`"
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return f"{folder} cannot be written ({error.strerror}): set {VARIABLE} to a folder of your own"
    return ""


def is_own(path: Path) -> bool:
    """Whether a file or folder is there, this user's, and nobody else can write it."""
    try:
        found = path.stat()
    except OSError:
        return False
    return found.st_uid == os.geteuid() and not found.st_mode & _FOR_OTHERS


def is_kept(folder: Path) -> bool:
    """Whether `new_folder` has made this folder, its files are still there, and nobody else can have changed
    what is in them.

    Clearing a cache by age leaves folders without files; a loss of power, files without bytes.
    """
    files = list(folder.iterdir()) if is_own(folder) else []
    return bool(files) and all(is_own(file) and file.stat().st_size > 0 for file in files)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A scratch folder to be filled with files, which then gets this name: it appears whole or not at all.

    Of jobs that fill it at once the first one counts. What is there already is replaced where it is not kept.
    Raises UserError where it cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix="compiling-"))
        try:
            yield scratch
            for file in scratch.iterdir():
                file.chmod(0o700)  # whatever the umask is
            if folder.exists() and not is_kept(folder):
                _remove(folder)
            scratch.rename(folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        if not is_kept(folder):  # else another job was faster, with the same result
            raise UserError(
                f"{folder}: cannot be written ({error.strerror}): make room, "
                f"or set {VARIABLE} to another folder"
            ) from None


def _remove(folder: Path) -> None:
    """At once for others, who see all of it or nothing."""
    aside = tempfile.mkdtemp(dir=folder.parent, prefix="removing-")
    folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)
