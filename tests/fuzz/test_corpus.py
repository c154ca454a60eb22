"""Files damaged and hostile by construction (corpus.py), and what is no file, given to every reader."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.fuzz.corpus import cases
from tests.fuzz.damage import Case, every_byte
from tests.fuzz.npz import bombs
from tests.fuzz.readers import READERS, Reader, each, read_mapped
from tests.fuzz.watch import examine, watching

each_reader = each(READERS)


@pytest.fixture
def path(reader: Reader, tmp_path: Path) -> Path:
    """Of the reader's file, which is not there yet, among those that it needs."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name, content in reader.beside.items():
        (folder / name).write_bytes(content)
    return folder / reader.file


def examined(reader: Reader, path: Path, of_all: Iterable[Case]) -> list[bool]:
    """Which of the files were read; AssertionError, with what was done to the first, where any went wrong."""
    read, wrong = [], []
    for what, content in of_all:
        path.write_bytes(content)
        try:
            with watching():  # not while files are made, which takes several times as long watched
                read.append(examine(reader, path))
        except Exception as error:
            wrong.append((what[:300], error))
    if wrong:
        what, error = wrong[0]
        raise AssertionError(f"{len(wrong)} of {len(wrong) + len(read)} files, the first {what!r}") from error
    return read


@each_reader
def test_whole_files_are_read(reader: Reader, path: Path) -> None:
    assert all(examined(reader, path, (("whole", seed) for seed in reader.seeds)))


@each_reader
def test_damaged_and_hostile_files_are_read_or_refused(reader: Reader, path: Path, tmp_path: Path) -> None:
    """Most of them are refused; nothing that is in them is ever run."""
    canary = tmp_path / "canary"
    read = examined(reader, path, cases(reader, canary))
    assert len(read) > 50 and 0 < sum(read) < len(read) / 2
    assert not canary.exists()


@pytest.mark.long
@each_reader
def test_every_byte_of_a_file_may_be_damaged(reader: Reader, path: Path) -> None:
    for seed in reader.seeds:
        examined(reader, path, every_byte(seed))


@each(reader for reader in READERS if reader.members and reader.read is not read_mapped)
def test_what_inflates_to_gigabytes_is_not_inflated(reader: Reader, path: Path) -> None:
    examined(reader, path, bombs(reader))


def _closed(path: Path) -> None:
    path.write_bytes(b"")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("root may read everything")


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        os.chdir(path.parent)  # names of sockets are short
        bound.bind(path.name)


NO_FILES: dict[str, Callable[[Path], object]] = {
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a pipe by a link": lambda path: (os.mkfifo(path.with_name("pipe")), path.symlink_to("pipe")),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("gone"),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a socket": _socket,
    "closed": _closed,
}


@each_reader
@pytest.mark.parametrize("make", NO_FILES.values(), ids=NO_FILES.keys())
def test_what_is_no_file_is_refused_at_once(
    reader: Reader, path: Path, make: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    make(path)
    with watching():
        assert not examine(reader, path)


@each_reader
@pytest.mark.parametrize("name", ["two\nlines", "\x1b[31mred", "half \udcff"], ids=ascii)
def test_messages_are_printable_whatever_folders_are_called(reader: Reader, path: Path, name: str) -> None:
    folder = path.parent.rename(path.parent.with_name(name))
    damaged = folder / path.name
    damaged.write_bytes(b"nothing")
    with watching():
        assert not examine(reader, damaged)
