"""Valid bytes of gzip, .npy, zip and safetensors, or with a header of a test's own."""

from __future__ import annotations

import gzip
import io
import json
import struct
import warnings
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

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
