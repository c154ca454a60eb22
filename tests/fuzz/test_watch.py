"""tests/fuzz/watch.py: what readers must not do is found."""

from __future__ import annotations

import os
import pickle
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pyrt.errors import UserError
from tests.fuzz import watch
from tests.fuzz.readers import Reader
from tests.fuzz.watch import Hung, examine, watching


def refuse(message: str) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        raise UserError(message.format(path))

    return read


def wait(path: Path) -> None:
    with open(path, "rb"):
        time.sleep(10)


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "a message without the file": (refuse("is damaged"), "name the file"),
    "two lines": (refuse("{}: is\ndamaged"), "not printable"),
    "a message that colours terminals": (refuse("{}: \x1b[31m"), "not printable"),
    "a long message": (refuse("{}: " + "x" * 2000), "characters"),
    "memory": (lambda path: bytes(8 << 20), "bytes for a file of 4"),
    "memory that nobody touches": (lambda path: np.empty(1 << 28, np.uint8), "bytes for a file of 4"),
    "a warning": (lambda path: warnings.warn("odd", stacklevel=1), "odd"),
    "a file elsewhere": (lambda path: open("/dev/null", "rb").close(), "/dev/null"),
    "a folder elsewhere": (lambda path: os.listdir("/"), "os.listdir"),
    "writing": (lambda path: open(path, "r+b").close(), "open"),
    "a new file": (lambda path: open(path.with_name("new"), "xb").close(), "new"),
    "a command": (lambda path: os.system("true"), "os.system"),
    "a pickle": (lambda path: pickle.loads(pickle.dumps(Path)), "pickle.find_class"),
    "what is not valid": (lambda path: "not valid", "is not valid"),
}


def require_valid(result: object) -> None:
    assert result != "not valid", "is not valid"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(b"data")
    return tmp_path / "file"


@pytest.mark.parametrize(("read", "word"), WRONG.values(), ids=WRONG.keys())
def test_what_readers_must_not_do_is_found(path: Path, read: Callable[[Path], object], word: str) -> None:
    with watching(), pytest.raises(AssertionError, match=word):
        examine(Reader("wrong", "file", read, require_valid), path)


@pytest.mark.parametrize(("read", "error"), [(lambda path: {}[path], KeyError), (wait, Hung)])
def test_other_exceptions_and_waiting_are_found(
    path: Path,
    read: Callable[[Path], object],
    error: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "SECONDS", 1)
    with watching(), pytest.raises(error):
        examine(Reader("wrong", "file", read, require_valid), path)


def test_what_they_may_do_is_not(path: Path) -> None:
    with watching():
        assert examine(Reader("right", "file", Path.read_bytes, require_valid), path)
        assert not examine(Reader("right", "file", refuse("{}: is damaged"), require_valid), path)
