"""Valid bytes of gzip, .npy, zip, safetensors and .pyrtz, or with a header of a test's own."""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
import struct
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from nn.files import pyrtz
from nn.files.coding.shared_weights import SharedWeights

Members = Mapping[str, bytes]
"""Of a zip, by name."""


def pack_gzip(content: bytes) -> bytes:
    """The same bytes at any time."""
    return gzip.compress(content, mtime=0)


def pack_npy(array: np.ndarray) -> bytes:
    """A .npy file; objects are pickled."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def pack_zip(members: Members, packing: int = zipfile.ZIP_STORED, more: Members | None = None) -> bytes:
    """``more`` may have names that are there already."""
    file = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", packing) as archive:
        warnings.simplefilter("ignore")  # of names that are there twice
        for name, content in (*members.items(), *(more or {}).items()):
            archive.writestr(zipfile.ZipInfo(name), content, packing)
    return file.getvalue()


def pack_safetensors(tensors: Mapping[str, np.ndarray], run: str | None) -> bytes:
    """A file of these, as the package writes it, with such a text as its metadata."""
    return with_header(header_of(tensors, run), content_of(tensors))


def header_of(tensors: Mapping[str, np.ndarray], run: str | None) -> dict[str, Any]:
    """The header of a safetensors file."""
    header: dict[str, Any] = {} if run is None else {"__metadata__": {"run": run}}
    start = 0
    for name, array in tensors.items():
        kind = f"{array.dtype.kind.upper()}{8 * array.dtype.itemsize}"
        places = [start, start + array.nbytes]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": places}
        start += array.nbytes
    return header


def content_of(tensors: Mapping[str, np.ndarray]) -> bytes:
    """What is behind the header of a safetensors file."""
    return b"".join(array.tobytes() for array in tensors.values())


def with_header(header: Any, content: bytes, told: int | None = None) -> bytes:
    """With any header, or its bytes, of which the file says that it has ``told`` ones."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if told is None else told) + text + content


def pack_pyrtz(parameters: Mapping[str, np.ndarray], run: Mapping[str, Any]) -> tuple[bytes, ...]:
    """Files of W1, b1, W2, b2: sparse and full codes of Huffman, values without the rest, all as it is.

    None without bitarray.
    """
    if importlib.util.find_spec("bitarray") is None:
        return ()
    singles = {name: array.astype(np.float32) for name, array in parameters.items()}
    pruned = {
        name: np.where(np.arange(array.size).reshape(array.shape) % 4 == 1, array, 0)
        for name, array in singles.items()
    }
    compressed: dict[str, Any] = {**singles}
    for name, array in {
        "W1": SharedWeights.of_dense(pruned["W1"], 1),
        "W2": SharedWeights.of_dense(singles["W2"]),
    }.items():
        codes = (array.places % 3 == 0).astype(np.uint16)
        compressed[name] = array.shared(np.linspace(-1, 1, 200, dtype=np.float32), codes)
    return tuple(b"".join(pyrtz.pack(arrays, run)) for arrays in (pruned, parameters, compressed))


def split_pyrtz(file: bytes) -> tuple[bytes, list[bytes], list[bytes]]:
    """The text, the entries of the header, and the sections of a whole .pyrtz file."""
    length, told = struct.unpack_from("<II", file, 12)
    text, place = file[20 : 20 + told], 20 + told + 2
    section, entries, sections = 16 + length + 4, [], []
    while place < 16 + length:
        name = file[place]
        end = place + 1 + name + 2 + 4 * file[place + 1 + name + 1] + 6 + 20
        (size,) = struct.unpack_from("<Q", file, end - 12)
        entries.append(file[place:end])
        sections.append(file[section : section + size])
        place, section = end, section + size
    return text, entries, sections


def join_pyrtz(text: bytes, entries: list[bytes], sections: list[bytes], count: int | None = None) -> bytes:
    """A .pyrtz file of these, whose header has the right checksum, and says that it has ``count`` entries."""
    told = struct.pack("<H", len(entries) if count is None else count)
    header = struct.pack("<I", len(text)) + text + told + b"".join(entries)
    start = b"\x89PYRTZ\r\n" + struct.pack("<II", 1, len(header)) + header
    return start + struct.pack("<I", zlib.crc32(start)) + b"".join(sections)


def summed_pyrtz(entry: bytes, section: bytes) -> bytes:
    """An entry with the length and the checksum of another section."""
    return entry[:-12] + struct.pack("<QI", len(section), zlib.crc32(section))
