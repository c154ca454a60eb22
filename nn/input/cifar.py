"""CIFAR-10 and CIFAR-100 as binary files: a record is one or two label bytes and an image of 3072 bytes.

CIFAR-100 has a coarse and a fine label; the fine one is used. An image is its planes red, green and blue,
each 32 rows of 32 pixels. The files lie in a folder, or in the .tar.gz that is downloaded, which is read as
it streams by: nothing in it is unpacked into files, and no path in it means anything but its last part.
"""

import gzip
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np

from nn.files.read import file_size, reading
from nn.input.dataset import DEFAULT, FIRST, NO_TEST, Dataset, Part, Wanted, validate
from nn.input.idx import CHUNK, read_up_to
from pyrt.errors import UserError, shown

PLANES = (3, 32, 32)
BYTES = 3 * 32 * 32
MOST = 50_000 * (2 + BYTES)  # bytes of a file in an archive: CIFAR-100's training set is the largest
BLOCK = 512  # bytes: a tar's headers, and the unit of its files
MOST_ARCHIVE = 1 << 28  # bytes of a whole tar: the two have 184 million


@dataclass(frozen=True)
class Layout:
    """The names of a set's files, and how many label bytes a record has."""

    train: tuple[str, ...]
    test: str
    labels: int


LAYOUTS = (
    Layout(tuple(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin", 1),
    Layout(("train.bin",), "test.bin", 2),
)


def is_here(folder: Path) -> bool:
    """Return whether the folder has a training file of CIFAR's."""
    with reading(folder):
        names = os.listdir(folder)
    return any(name in names for layout in LAYOUTS for name in layout.train)


def load(folder: Path, wanted: Wanted = DEFAULT) -> Dataset:
    """Read the data set whose files lie in ``folder``; the test file may be missing.

    Raises ``UserError`` where another file is missing, damaged, or there are two data sets.
    """
    with reading(folder):
        names = os.listdir(folder)
    layout = find(shown(folder), names)

    def read(name: str) -> np.ndarray:
        path = folder / name
        size = file_size(path)
        with reading(path), open(path, "rb") as file:
            return records(shown(path), read_up_to(file, size + 1), layout.labels)

    files = {name: read(name) for name in (*layout.train, layout.test) if name in names}
    return assembled(shown(folder), layout, files, wanted)


def load_archive(path: Path, wanted: Wanted = DEFAULT) -> Dataset:
    """Read the data set in the .tar.gz at ``path``. Raises ``UserError`` as `load` does."""
    file_size(path)
    names = {name for layout in LAYOUTS for name in (*layout.train, layout.test)}
    with reading(path), open(path, "rb") as file, gzip.GzipFile(fileobj=file) as unpacked:
        found = dict(members(path, cast(IO[bytes], unpacked), names.__contains__))
    layout = find(shown(path), list(found))
    arrays = {
        name: records(f"{shown(path)}: {name}", data, layout.labels)
        for name, data in found.items()
        if name in (*layout.train, layout.test)
    }
    return assembled(shown(path), layout, arrays, wanted)


def find(where: str, names: list[str]) -> Layout:
    """Tell which of the two data sets these files are; its training files are all among them."""
    present = [layout for layout in LAYOUTS if set(layout.train) & set(names)]
    if not present:
        raise UserError(
            f"{where}: no CIFAR here: looked for data_batch_1.bin to data_batch_5.bin, or train.bin"
        )
    if len(present) > 1:
        raise UserError(f"{where}: CIFAR-10 and CIFAR-100: keep one of them")
    missing = [name for name in present[0].train if name not in names]
    if missing:
        raise UserError(f"{where}: lacks {', '.join(missing)}: get the data set again")
    return present[0]


def records(where: str, data: bytearray, labels: int) -> np.ndarray:
    """Make the bytes of a file an array (n, labels + 3072). ``UserError`` unless they are whole records."""
    size = labels + BYTES
    if not data or len(data) % size:
        raise UserError(
            f"{where}: {len(data)} bytes are no whole number of records of {size}: it is cut short, damaged "
            "or no CIFAR; get it again"
        )
    return np.frombuffer(data, np.uint8).reshape(-1, size)


def assembled(name: str, layout: Layout, files: dict[str, np.ndarray], wanted: Wanted) -> Dataset:
    """Make the data set of the records in each file."""

    def parts(names: tuple[str, ...]) -> tuple[Part, Part]:
        all_records = [files.pop(one) for one in names]  # a copy is made of them: let go of each
        joined = np.concatenate(all_records) if len(names) > 1 else all_records[0]
        pixels = joined[:, layout.labels :].reshape(-1, *PLANES)
        where = f"{name}: {' to '.join(sorted({names[0], names[-1]}))}"
        return Part(where, pixels), Part(f"{where}, labels", joined[:, layout.labels - 1])

    train = parts(layout.train)
    test = parts((layout.test,)) if layout.test in files else NO_TEST
    return validate(name, *train, *test, wanted._replace(channels=FIRST))


def members(path: Path, stream: IO[bytes], wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytearray]]:
    """Give the regular files of a tar whose names, without folders, are wanted, and their bytes.

    Of a tar no more is used than CIFAR's have: names of up to 100 characters. (Python's tarfile holds headers
    of any length in memory, at the word of the file.) Raises ``UserError`` where it is damaged.
    """
    damaged = UserError(f"{shown(path)}: is damaged, or no tar of CIFAR's binary files: get it again")
    left = MOST_ARCHIVE
    while len(header := read_up_to(stream, BLOCK)) == BLOCK and any(header):
        size = _size(header)
        padding = -size % BLOCK
        left -= BLOCK + size + padding
        if size < 0 or left < 0:
            raise damaged
        name = header[:100].split(b"\0")[0].decode("ascii", "replace").rpartition("/")[2]
        if wanted(name) and header[156] in b"0\0":  # a regular file
            data = read_up_to(stream, size) if size <= MOST else bytearray()
            if len(data) < size:
                raise damaged
            yield name, data
            size = 0
        _skip(stream, size + padding)
    if len(header) < BLOCK:  # a tar ends with blocks of zeros
        raise damaged
    _skip(stream, left)  # to the checksum at the end of what is packed


def _size(header: bytearray) -> int:
    """Return the size of a file from its header in a tar; -1 where that is none."""
    try:
        size, told = int(header[124:136].strip(b" \0"), 8), int(header[148:156].strip(b" \0"), 8)
    except ValueError:
        return -1
    counted = sum(header) - sum(header[148:156]) + 8 * ord(" ")
    return size if told == counted else -1


def _skip(stream: IO[bytes], count: int) -> None:
    """Read so many bytes, or up to the end, and keep none."""
    while count > 0 and (chunk := stream.read(min(CHUNK, count))):
        count -= len(chunk)
