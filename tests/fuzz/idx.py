"""Damaged IDX files, as MNIST has them: headers that lie, raw and packed."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator

import numpy as np

from tests.fuzz.damage import SIZES, Case, patched
from tests.fuzz.packing import pack_gzip


def idx_headers(array: np.ndarray) -> Iterator[Case]:
    """Every code of a type, every number of dimensions, sizes that lie; raw and packed."""
    content = array.tobytes()
    right = struct.pack(f">{array.ndim}I", *array.shape)
    shapes = [shape for count in range(1, 5) for shape in itertools.product(SIZES, repeat=count)]
    headers = {
        **{f"type {code}": bytes([0, 0, code, array.ndim]) + right for code in range(256)},
        **{f"{count} dimensions": bytes([0, 0, 8, count]) + right for count in range(256)},
        **{f"shape {shape}": _idx_header(0x08, shape) for shape in shapes},
        **{f"shape {shape} of doubles": _idx_header(0x0E, shape) for shape in shapes if len(shape) < 4},
    }
    for what, header in headers.items():
        yield what, header + content
    for shape in shapes:
        if 0 in shape:
            yield f"nothing of shape {shape}", _idx_header(0x08, shape)
    for what, header in list(headers.items())[::7]:
        yield f"{what}, packed", pack_gzip(header + content)
    whole = bytes([0, 0, 8, array.ndim]) + right + content
    for cut in (0, 3, 4, 7, len(whole) - 1):
        yield f"packed in two parts at {cut}", pack_gzip(whole[:cut]) + pack_gzip(whole[cut:])
        yield f"half packed at {cut}", pack_gzip(whole[:cut]) + whole[cut:]
    for flags in range(256):
        yield f"gzip flags {flags}", patched(pack_gzip(whole), 3, bytes([flags]))
    yield "packed twice", pack_gzip(pack_gzip(whole))


def _idx_header(code: int, shape: tuple[int, ...]) -> bytes:
    return bytes([0, 0, code, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
