"""Parameters in a .pyrtz file: pruned, of shared weights, in Huffman codes (Han et al. 2016).

docs/reference/pyrtz.md says what each byte is. What is read is bounded by the file's size, and by the shapes
in its header, before memory is taken; a CRC-32 covers the header, and one each array. The weights that are
stored come back to the bit. nn/files/coding has what an array becomes.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from nn.files import run_metadata
from nn.files.coding import section
from nn.files.coding.bits import Cursor, Damaged
from nn.files.coding.section import Fields
from nn.files.coding.shared_weights import SharedWeights
from nn.files.packages import need
from nn.files.read import Header, file_size, reading
from nn.files.write import write_whole
from pyrt.errors import UserError, shown

MAGIC, VERSION = b"\x89PYRTZ\r\n", 1

_START = struct.Struct("<8sII")
"""The start of a file: the magic, the version, and the bytes of the header that follows."""

_CHECKSUM = struct.Struct("<I")

_MOST_DIMENSIONS = 32

FREE_WEIGHTS, WEIGHTS_OF_A_BYTE = 1 << 24, 1024
"""The numbers that the arrays of a file may have: so many, and more for each byte of the file. A file that is
pruned further has blanks in its header, so none becomes more than some thousand times as large in memory."""

Compressed = Mapping[str, SharedWeights | np.ndarray]


@dataclass(frozen=True)
class _Entry:
    """An array in the header."""

    name: str
    fields: Fields
    nbytes: int
    checksum: int
    start: int = 0
    """Where its section begins in the file."""


@dataclass(frozen=True)
class _Header:
    text: str
    entries: Mapping[str, _Entry]


def require_installed(path: Path) -> None:
    """Raise UserError where the package that reads and writes ``path`` is missing."""
    need("bitarray", shown(path))


def headers(path: Path, wanted: Callable[[str], bool]) -> dict[str, Header]:
    """Return the shapes and types of those arrays whose names are wanted; UserError for a damaged file."""
    dtype = {section.RAW64: np.dtype(np.float64)}
    return {
        name: Header(entry.fields.shape, dtype.get(entry.fields.kind, np.dtype(np.float32)))
        for name, entry in _read_header(path).entries.items()
        if wanted(name)
    }


def arrays(path: Path, wanted: Callable[[str], bool]) -> dict[str, np.ndarray]:
    """Read the arrays whose names are wanted, all of their zeros too; UserError where the file is damaged."""
    with reading(path):
        return {
            name: array.dense() if isinstance(array, SharedWeights) else array
            for name, array in read_compressed(path, wanted).items()
        }


def read_compressed(
    path: Path, wanted: Callable[[str], bool] = lambda name: True
) -> dict[str, SharedWeights | np.ndarray]:
    """Read the arrays as they are stored; UserError where the file is damaged, or bitarray is missing."""
    require_installed(path)
    entries = _read_header(path).entries
    found = {}
    with reading(path), path.open("rb") as file:
        for name, entry in entries.items():
            if wanted(name):
                file.seek(entry.start)
                found[name] = _decode(path, entry, file.read(entry.nbytes))
    return found


def metadata_text(path: Path) -> str:
    """Read the text; empty where it is longer than such a text is."""
    text = _read_header(path).text
    return text if len(text) <= run_metadata.LONGEST else ""


def write(file: BinaryIO, parameters: Compressed, run: Mapping[str, Any]) -> None:
    """Write all of a file. The package bitarray must be installed."""
    for part in pack(parameters, run):
        file.write(part)


def save_compressed(option: str, path: Path, arrays: Compressed, run: Mapping[str, Any]) -> None:
    """Write arrays, compressed and plain, and how they came about; whole or not at all.

    Plain arrays, float32 or float64, are written without loss. Raises UserError, which names the option,
    where the file cannot be written, or bitarray is missing.
    """
    need("bitarray", f"{option} {shown(path)}")
    write_whole(option, path, lambda file: write(file, arrays, run))


def pack(arrays: Compressed, run: Mapping[str, Any], with_huffman: bool = True) -> list[bytes]:
    """Make the parts of a file: all before the sections, and the section of each array, in order."""
    coded = {name: section.encode(array, with_huffman) for name, array in arrays.items()}
    sections = [content for _, content in coded.values()]
    entries = [_packed(name, fields, content) for name, (fields, content) in coded.items()]
    weights = sum(fields.size for fields, _ in coded.values())
    text = json.dumps(run).encode()
    short = -(-(weights - FREE_WEIGHTS) // WEIGHTS_OF_A_BYTE) - sum(map(len, (text, *entries, *sections)))
    text = text.ljust(len(text) + max(0, short))
    header = struct.pack("<I", len(text)) + text + struct.pack("<H", len(entries)) + b"".join(entries)
    start = _START.pack(MAGIC, VERSION, len(header)) + header
    return [start + _CHECKSUM.pack(zlib.crc32(start)), *sections]


def sizes(arrays: Compressed, with_huffman: bool = True) -> dict[str, int]:
    """Return the bytes that each array takes in a file: its entry in the header, and its section."""
    coded = {name: section.encode(array, with_huffman) for name, array in arrays.items()}
    return {
        name: len(_packed(name, fields, content)) + len(content) for name, (fields, content) in coded.items()
    }


def _packed(name: str, fields: Fields, content: bytes) -> bytes:
    """Pack an array's entry in the header."""
    title = name.encode("ascii")
    return b"".join(
        (
            struct.pack("<B", len(title)) + title,
            struct.pack("<BB", fields.kind, len(fields.shape)),
            struct.pack(f"<{len(fields.shape)}I", *fields.shape),
            struct.pack("<BBI", fields.index_bits, fields.flags, fields.clusters),
            struct.pack("<QQI", fields.entries, len(content), zlib.crc32(content)),
        )
    )


def _read_header(path: Path) -> _Header:
    size = file_size(path)
    with reading(path), path.open("rb") as file:
        start = file.read(_START.size)
        if len(start) < _START.size or start[: len(MAGIC)] != MAGIC:
            raise UserError(f"{shown(path)}: is not a .pyrtz file: get it again")
        _, version, length = _START.unpack(start)
        if version != VERSION:
            raise UserError(
                f"{shown(path)}: is of version {version} of .pyrtz, this program reads {VERSION}: "
                "save it again"
            )
        end = _START.size + length + _CHECKSUM.size
        if end > size:
            raise _damaged(path, "the header is cut short")
        header = file.read(length)
        checksum = file.read(_CHECKSUM.size)
    if checksum != _CHECKSUM.pack(zlib.crc32(start + header)):
        raise _damaged(path, "the header is not what was saved")
    try:
        return _parsed(header, end, size)
    except Damaged as error:
        raise _damaged(path, str(error)) from error


def _parsed(header: bytes, end: int, size: int) -> _Header:
    """Parse a header whose sections begin at ``end``, of a file of ``size`` bytes. Raises Damaged."""
    cursor = Cursor(header)
    (length,) = cursor.fields("I")
    try:
        text = cursor.take(length).decode()
    except UnicodeDecodeError:
        raise Damaged("the metadata is no text") from None
    (count,) = cursor.fields("H")
    entries: dict[str, _Entry] = {}
    for _ in range(count):
        entry = _entry(cursor, end)
        if entry.name in entries:
            raise Damaged("two arrays have one name")
        entries[entry.name] = entry
        end += entry.nbytes
    cursor.require_end()
    if end != size:
        raise Damaged("the file has another length than its arrays")
    _require_in_bounds((entry.fields.shape for entry in entries.values()), size)
    return _Header(text, entries)


def _entry(cursor: Cursor, start: int) -> _Entry:
    (length,) = cursor.fields("B")
    name = cursor.take(length)
    if not name.isascii():
        raise Damaged("a name is not ASCII")
    kind, dimensions = cursor.fields("BB")
    if dimensions > _MOST_DIMENSIONS:
        raise Damaged("an array has too many dimensions")
    shape = cursor.fields(f"{dimensions}I")
    index_bits, flags, clusters = cursor.fields("BBI")
    entries, nbytes, checksum = cursor.fields("QQI")
    fields = Fields(kind, shape, index_bits, flags, clusters, entries)
    fields.require_sound()
    return _Entry(name.decode("ascii"), fields, nbytes, checksum, start)


def _require_in_bounds(shapes: Iterable[tuple[int, ...]], size: int) -> None:
    """Raise Damaged where the arrays are larger than a file of ``size`` bytes may say; 0 counts as 1."""
    weights = sum(math.prod(max(1, length) for length in shape) for shape in shapes)
    if weights > FREE_WEIGHTS + WEIGHTS_OF_A_BYTE * size:
        raise Damaged(f"{weights} numbers are more than a file of its size may have")


def _decode(path: Path, entry: _Entry, content: bytes) -> SharedWeights | np.ndarray:
    if zlib.crc32(content) != entry.checksum:
        raise _damaged(path, f"{shown(entry.name):.80} is not what was saved")
    try:
        return section.decode(entry.fields, content)
    except Damaged as error:
        raise _damaged(path, f"{shown(entry.name):.80}: {error}") from error


def _damaged(path: Path, what: str) -> UserError:
    return UserError(f"{shown(path)}: is damaged: {what:.200}; get the file again")
