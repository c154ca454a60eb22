"""Reads a damaged or hostile file, and watches what the reader does meanwhile.

A reader may return what is valid, or raise a UserError of one line that names the file. It may do nothing
else: no other exception, no warning, no file opened but those of the data, nothing unpickled or started, no
more memory than a small multiple of the file, no waiting.
"""

from __future__ import annotations

import os
import signal
import sys
import tracemalloc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyrt.errors import UserError, shown
from tests import standing_still
from tests.fuzz.readers import Reader

MEMORY, MEMORY_PER_BYTE = 4 << 20, 64
"""Bytes that a reader may take, and how many more for each of the file: JSON's objects are that large."""

SECONDS = 60
"""After which a reader hangs."""

LONGEST = 1000
"""Characters of a message, without the names of files."""

_TOUCHING = ("open", "os.", "pickle.", "subprocess.", "socket.", "shutil.", "tempfile.", "ctypes.", "urllib.")
"""How the audit events begin of what reaches beyond the process, and of unpickling."""

_CODE = (".py", ".pyc", ".so")
"""Files that Python opens by itself, when a module is imported."""


class Hung(BaseException):
    """A reader waits; no reader catches it."""


class _Events:
    """What was touched outside a folder. A hook of `sys.addaudithook` stays, so there is one, mostly idle."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.found: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[object, ...]) -> None:
        if (
            self.folder is not None
            and event.startswith(_TOUCHING)
            and not self._is_harmless(event, arguments)
        ):
            self.found.append(f"{event} {arguments!r:.200}")

    def _is_harmless(self, event: str, arguments: tuple[object, ...]) -> bool:
        """A look at the data, or an import."""
        if event not in ("open", "os.listdir"):
            return False
        path = str(arguments[0])
        writes = event == "open" and any(letter in str(arguments[1]) for letter in "wax+")
        return not writes and (path.startswith(str(self.folder)) or path.endswith(_CODE))


_EVENTS = _Events()


@contextmanager
def watching() -> Iterator[None]:
    """Around calls of `examine`: counts memory."""
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def examine(reader: Reader, path: Path) -> bool:
    """Read the file, and whether it was valid. AssertionError where a reader does what it must not."""
    with _limited(path) as there, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        result, refusal = _outcome(reader, path)
    assert not warned, warned[0].message
    assert _EVENTS.found == [], _EVENTS.found
    assert os.listdir(path.parent) == there, "a file was made or removed"
    if refusal is not None:
        require_one_line(refusal, path)
    else:
        reader.require_valid(result)
    return refusal is None


def _outcome(reader: Reader, path: Path) -> tuple[object, UserError | None]:
    _EVENTS.found, _EVENTS.folder = [], path.parent
    try:
        return reader.read(path), None
    except UserError as error:
        return None, error
    finally:
        _EVENTS.folder = None


@contextmanager
def _limited(path: Path) -> Iterator[list[str]]:
    """Fails where the block takes too much memory or time; yields the files that are there."""
    there = os.listdir(path.parent)
    size = path.stat().st_size if path.is_file() else 0
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    with limited_time():
        yield there
    _, peak = tracemalloc.get_traced_memory()
    assert peak - before <= MEMORY + MEMORY_PER_BYTE * size, f"{peak - before} bytes for a file of {size}"


@contextmanager
def limited_time() -> Iterator[None]:
    """Raises Hung in a block that does not end."""

    def stop(*_: object) -> None:
        raise Hung

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)
        standing_still.allow()


def require_one_line(error: UserError, path: Path) -> None:
    """Printable too: no control characters, nothing that a terminal cannot encode."""
    message = str(error)
    assert shown(path) in message, f"{message!r} does not name the file"
    assert message.isprintable(), f"{message!r} is not printable"
    assert len(message.replace(shown(path.parent), "")) < LONGEST, f"a message of {len(message)} characters"
