"""One array as a section of a .pyrtz file: its bytes, and the fields of the header that say what they are.

docs/reference/pyrtz.md has the layout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nn.files.coding import huffman, relative_index
from nn.files.coding.bits import Cursor, Damaged, pack, packed_size, width
from nn.files.coding.relative_index import INDEX_BITS
from nn.files.coding.shared_weights import MOST_CLUSTERS, SharedWeights, is_zero

RAW32, RAW64, VALUES, CODES, FULL_CODES = range(5)
"""Kinds: all numbers as they are, float32 or float64; the weights that are left, with float32 values or with
codes; codes of all weights, without indices."""

DTYPES: dict[int, np.dtype] = {RAW32: np.dtype("<f4"), RAW64: np.dtype("<f8")}

HUFFMAN_CODES, HUFFMAN_GAPS, FILLERS = 1, 2, 4
"""Flags: codes or gaps are Huffman's; some entries are fillers."""


@dataclass(frozen=True)
class Fields:
    """Holds what the header says of a section, beside its name, bytes and checksum."""

    kind: int
    shape: tuple[int, ...]
    index_bits: int = 0
    flags: int = 0
    clusters: int = 0
    entries: int = 0

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def alphabet(self) -> int:
        """The number of different codes: a filler is one more than those of the clusters."""
        return self.clusters + bool(self.flags & FILLERS)

    def require_sound(self) -> None:
        """Raise Damaged where no writer writes such fields together."""
        sparse, coded = self.kind in (VALUES, CODES), self.kind in (CODES, FULL_CODES)
        bits = INDEX_BITS if sparse or coded else (0,)
        entries = self.entries if sparse else self.size if coded else 0
        allowed = (HUFFMAN_GAPS | FILLERS if sparse else 0) | (HUFFMAN_CODES if coded else 0)
        if (
            self.kind > FULL_CODES
            or self.index_bits not in bits
            or self.flags & ~allowed
            or (self.clusters > MOST_CLUSTERS if coded else self.clusters)
            or self.entries != entries
        ):
            raise Damaged("the header contradicts itself")


class Entries(NamedTuple):
    """A compressed array, entry by entry: what a file stores of it."""

    gaps: np.ndarray | None
    """Gap - 1 of each entry, uint16; None of an array of which nothing is pruned."""
    is_filler: np.ndarray
    codes: np.ndarray | None
    """The code of each entry, int32; a filler's is the number of clusters; None without a codebook."""
    fillers: int

    @classmethod
    def of(cls, array: SharedWeights) -> Entries:
        """List the entries of an array; all places of one that is full and shared need no gaps."""
        gaps, is_filler = None, np.zeros(len(array.places), bool)
        if not (array.is_full and array.codes is not None):
            gaps, is_filler = relative_index.encode(array.places, array.index_bits)
        codes = None
        if array.codes is not None and array.codebook is not None:
            codes = np.full(len(is_filler), len(array.codebook), np.int32)
            codes[~is_filler] = array.codes
        return cls(gaps, is_filler, codes, len(is_filler) - len(array.places))


def encode(array: SharedWeights | np.ndarray, with_huffman: bool = True) -> tuple[Fields, bytes]:
    """Encode an array; ValueError for one that is neither float32 nor float64.

    A plain array is stored as it is, or without its zeros where that is smaller and gives back the same bits.
    Codes and gaps are Huffman's where that is smaller, unless ``with_huffman`` is False.
    """
    if isinstance(array, SharedWeights):
        return _encode_compressed(array, with_huffman)
    kind = next((kind for kind, dtype in DTYPES.items() if array.dtype == dtype), None)
    if kind is None:
        raise ValueError(f"an array of {array.dtype}: only float32 and float64 are stored")
    raw = np.asarray(array, DTYPES[kind], order="C")
    if kind == RAW32 and not np.signbit(raw[is_zero(raw)]).any():  # -0.0 would become 0.0
        fields, section = _encode_compressed(SharedWeights.of_dense(raw), with_huffman)
        if len(section) < raw.nbytes:
            return fields, section
    return Fields(kind, array.shape), raw.tobytes()


def _encode_compressed(array: SharedWeights, with_huffman: bool) -> tuple[Fields, bytes]:
    entries = Entries.of(array)
    flags, parts = FILLERS if entries.fillers else 0, []
    if array.codebook is None or entries.codes is None:
        weights = np.zeros(len(entries.is_filler), np.float32)
        weights[~entries.is_filler] = array.weights
        parts.append(weights.astype("<f4").tobytes())
    else:
        parts.append(array.codebook.astype("<f4").tobytes())
        alphabet = len(array.codebook) + bool(entries.fillers)
        is_huffman, stream = _smaller(entries.codes, width(alphabet), with_huffman)
        flags |= is_huffman * HUFFMAN_CODES
        parts.append(stream)
    if entries.gaps is not None:
        is_huffman, stream = _smaller(entries.gaps, array.index_bits, with_huffman)
        flags |= is_huffman * HUFFMAN_GAPS
        parts.append(stream)
    kind = VALUES if array.codebook is None else FULL_CODES if entries.gaps is None else CODES
    clusters = 0 if array.codebook is None else len(array.codebook)
    fields = Fields(kind, array.shape, array.index_bits, flags, clusters, len(entries.is_filler))
    return fields, b"".join(parts)


def _smaller(symbols: np.ndarray, bits: int, with_huffman: bool) -> tuple[bool, bytes]:
    """Encode symbols in so many bits each, or by Huffman where that is smaller; return whether it is."""
    plain = packed_size(len(symbols), bits)
    if with_huffman and len(symbols):
        counts = np.bincount(symbols)
        words = int(counts @ huffman.code_lengths(counts).astype(np.int64))
        if huffman.size(len(counts), words) < plain:
            return True, huffman.encode(symbols)
    return False, pack(symbols, bits)


def decode(fields: Fields, section: bytes) -> SharedWeights | np.ndarray:
    """Decode a section; the fields are sound. Raises Damaged where no writer has written it.

    Takes no more memory than some times the section, whatever the shape.
    """
    cursor = Cursor(section)
    if fields.kind in DTYPES:
        dtype = DTYPES[fields.kind]
        content = cursor.take(fields.size * dtype.itemsize)
        cursor.require_end()
        return np.frombuffer(content, dtype).astype(dtype.newbyteorder("=")).reshape(fields.shape)
    values = codes = codebook = None
    if fields.kind == VALUES:
        values = cursor.floats(fields.entries)
        is_filler = is_zero(values)
    else:
        codebook = cursor.floats(fields.clusters)
        codes = _symbols(cursor, fields, HUFFMAN_CODES, fields.alphabet, width(fields.alphabet))
        is_filler = codes == fields.clusters
    places = _places(cursor, fields, is_filler)
    cursor.require_end()
    if codes is not None:
        codes = codes[~is_filler].astype(np.uint16)
    if values is not None:
        values = values[~is_filler]
    return SharedWeights(fields.shape, places, fields.index_bits, values, codes, codebook)


def _places(cursor: Cursor, fields: Fields, is_filler: np.ndarray) -> np.ndarray:
    if is_filler.any() != bool(fields.flags & FILLERS):
        raise Damaged("there are fillers where there are none, or none where there are some")
    if fields.kind == FULL_CODES:
        return np.arange(fields.size)
    gaps = _symbols(cursor, fields, HUFFMAN_GAPS, 1 << fields.index_bits, fields.index_bits)
    return relative_index.decode(gaps, is_filler, fields.size)


def _symbols(cursor: Cursor, fields: Fields, flag: int, alphabet: int, bits: int) -> np.ndarray:
    """Read a symbol of each entry, in one of the two codings."""
    if fields.flags & flag:
        return huffman.decode(cursor, fields.entries, alphabet)
    symbols = cursor.numbers(fields.entries, bits)
    if symbols.max(initial=0) >= max(1, alphabet):
        raise Damaged("a code is beyond the codebook")
    return symbols
