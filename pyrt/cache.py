"""Where files are kept between runs: the user's cache directory, or ``$PYRT_CACHE_DIR``.

Compiled kernels are code. A folder that somebody else can write in may hold somebody else's code: it is not
used, and what is loaded is this user's own, and nobody else can write it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from pyrt.errors import UserError, out_of_files

VARIABLE = "PYRT_CACHE_DIR"

_SUMS = "sha256"
"""The file in a folder of compiled kernels that tells whether the others are whole."""

_FOR_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def cache_folder(name: str) -> Path:
    """Return the path of this cache folder, not made here. Raises UserError for a user who has no home."""
    try:
        root = os.environ.get(VARIABLE) or platformdirs.user_cache_dir("pyrt")
        return Path(root).expanduser() / name
    except RuntimeError:
        raise UserError(f"there is no home directory: set {VARIABLE} to a folder of your own") from None


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
    """Return this process's folder: the cache's, else a temporary one. `use_kernel_folder` may set it.

    Raises UserError where there is neither.
    """
    if _Found.folder is None:
        _Found.folder = _find()
    return _Found.folder


def use_kernel_folder(folder: KernelFolder) -> None:
    """Use the folder that another rank of this node found, so that all load what one compiles."""
    _Found.folder = folder


def _find() -> KernelFolder:
    try:
        folder = cache_folder("kernels")
        obstacle = _obstacle(folder)
        if not obstacle:
            return KernelFolder(folder, "")
    except UserError as error:
        obstacle = str(error)
    try:
        _Found.temporary = tempfile.TemporaryDirectory(prefix="pyrt-kernels-")
    except OSError as error:
        raise UserError(
            out_of_files(error) or f"{obstacle}; and there is no folder for temporary files: {error}"
        ) from None
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
        return (
            out_of_files(error)
            or f"{folder} cannot be written ({error.strerror}): set {VARIABLE} to a folder of your own"
        )
    return ""


def is_own(path: Path) -> bool:
    """Return whether a file or folder exists, belongs to this user, and nobody else can write it."""
    try:
        found = path.stat()
    except OSError:
        return False
    return found.st_uid == os.geteuid() and not found.st_mode & _FOR_OTHERS


def is_kept(folder: Path) -> bool:
    """Return whether all that `new_folder` put there is still there, byte for byte, and only this user can
    change it.

    Clearing a cache by age leaves folders without files, a loss of power files without their bytes.
    """
    try:
        files = list(folder.iterdir()) if is_own(folder) else []
        return bool(files) and all(map(is_own, files)) and (folder / _SUMS).read_text() == _sums(files)
    except (OSError, ValueError):
        return False


def make_folder(folder: Path, fill: Callable[[Path], object]) -> None:
    """Make a folder unless it is kept; ``fill`` writes its files into a scratch folder.

    Of processes that want it at once one makes it, and the others wait. Raises what `new_folder` raises.
    """
    if is_kept(folder):
        return
    with _turn(folder):
        if not is_kept(folder):
            with new_folder(folder) as scratch:
                fill(scratch)


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Wait until no other process makes this folder; go on at once where there can be no lock."""
    with ExitStack() as held:
        with suppress(OSError):
            folder.parent.mkdir(parents=True, exist_ok=True)
            # Some folders share a lock: locks are never removed, and so they are few.
            lock = held.enter_context(open(folder.parent / f"lock-{folder.name[:2]}", "a"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Give a scratch folder to fill with files, then rename it to ``folder``: it appears whole or not at all.

    Of jobs that fill it at once the first one counts. A folder that is there but not kept is replaced.
    Raises UserError where it cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix="compiling-"))
        try:
            yield scratch
            (scratch / _SUMS).write_text(_sums(list(scratch.iterdir())))
            for file in scratch.iterdir():
                file.chmod(0o700)  # whatever the umask is
            _put(scratch, folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        if not is_kept(folder):  # else another job was faster, with the same result
            raise UserError(
                out_of_files(error)
                or f"{folder}: cannot be written ({error.strerror}): make room, or set {VARIABLE} to another "
                "folder"
            ) from None


def _put(scratch: Path, folder: Path) -> None:
    """Under its name, in the place of what is there and not kept."""
    try:
        scratch.rename(folder)
        return
    except OSError:
        if not os.path.lexists(folder):
            raise
    # One at a time, else a job would remove what another has just put there.
    with _held(folder.parent), _aside(folder.parent) as aside:
        if not is_kept(folder):
            folder.rename(Path(aside) / folder.name)
            scratch.rename(folder)


def _aside(folder: Path) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(dir=folder, prefix="removing-", ignore_cleanup_errors=True)


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Lock it for one process at a time, if the file system has locks."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _sums(files: Iterable[Path]) -> str:
    """List SHA-256 and name of each file but that of the sums, a line each."""
    named = sorted((file.name, file) for file in files if file.name != _SUMS)
    return "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {name}\n" for name, file in named)
