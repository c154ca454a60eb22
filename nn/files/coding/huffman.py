"""Canonical Huffman codes, with the package bitarray, which must be installed.

A code is known by the lengths of its words. Words of one length are consecutive numbers, in the order of
their symbols, and follow those of the length before. Sizes and lengths are those of docs/reference/pyrtz.md.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from nn.files.coding.bits import Cursor, Damaged, pack, packed_size

LONGEST = 24
"""Bits of a word at most: bitarray takes 31. 2**17 symbols fit, and next to nothing is lost."""

_LENGTH_BITS = 5
"""Bits of a length in a table; 0 is that of a symbol that does not occur."""

_CHUNK = 1 << 20
"""Symbols that are Python objects at a time."""


def code_lengths(counts: np.ndarray) -> np.ndarray:
    """Return the length of each symbol's word, uint8, of symbols that occur ``counts`` times.

    It is 0 for a symbol that does not occur. A symbol that is alone has one bit. Where a word is longer than
    `LONGEST`, counts are halved, and all is done again.
    """
    from bitarray.util import canonical_huffman

    lengths = np.zeros(len(counts), np.uint8)
    used = np.flatnonzero(counts)
    if not len(used):
        return lengths
    halved = counts[used]
    while True:
        code, *_ = canonical_huffman(dict(zip(used.tolist(), halved.tolist(), strict=True)))
        lengths[used] = [len(code[symbol]) for symbol in used.tolist()]
        if lengths.max() <= LONGEST:
            return lengths
        halved = (halved + 1) // 2


def size(symbols: int, bits: int) -> int:
    """Return the bytes of a table of so many symbols, and of words of so many bits together."""
    return struct.calcsize("<IQ") + packed_size(symbols, _LENGTH_BITS) + packed_size(bits, 1)


def encode(symbols: np.ndarray) -> bytes:
    """Encode symbols (n,) of an integer dtype: the table of lengths, then the words. ``n`` is not 0."""
    from bitarray import bitarray

    lengths = code_lengths(np.bincount(symbols))
    words, stream = _words(lengths), bitarray()
    for start in range(0, len(symbols), _CHUNK):
        stream.encode(words, symbols[start : start + _CHUNK].tolist())
    table = struct.pack("<IQ", len(lengths), len(stream)) + pack(lengths, _LENGTH_BITS)
    return table + stream.tobytes()


def decode(cursor: Cursor, count: int, alphabet: int) -> np.ndarray:
    """Decode ``count`` symbols below ``alphabet``, uint32, from what `encode` has made.

    Raises Damaged where it is something else.
    """
    from bitarray import bitarray
    from bitarray.util import canonical_decode

    symbols, bits = cursor.fields("IQ")
    if symbols > alphabet:
        raise Damaged("a table of code lengths is too long")
    lengths = cursor.numbers(symbols, _LENGTH_BITS).astype(np.int64)
    _require_code(lengths)
    stream = bitarray(endian="big")
    stream.frombytes(cursor.take(packed_size(bits, 1)))
    if count > bits or stream[bits:].any():
        raise Damaged("a stream of words has another length")
    del stream[bits:]
    of_each_length = np.bincount(lengths)
    of_each_length[0] = 0
    words = canonical_decode(stream, of_each_length.tolist(), _order(lengths).tolist())
    try:
        found = np.fromiter(words, np.uint32, count)
    except ValueError:  # of both: no more bits, no such word
        raise Damaged("a stream of words is cut short") from None
    if lengths[found].sum() != bits:
        raise Damaged("a stream of words is too long")
    return found


def _require_code(lengths: np.ndarray) -> None:
    """Raise Damaged unless words of these lengths fill the tree (Kraft), or the only one has one bit."""
    used = lengths[lengths > 0]
    filled = int((1 << (LONGEST - used[used <= LONGEST])).sum())
    if used.tolist() != [1] and (used.max(initial=0) > LONGEST or filled != 1 << LONGEST):
        raise Damaged("a table of code lengths is that of no code")


def _order(lengths: np.ndarray) -> np.ndarray:
    """Return the symbols that occur, by the lengths of their words, then by themselves."""
    order = np.argsort(lengths, kind="stable")
    return order[np.count_nonzero(lengths == 0) :]


def _words(lengths: np.ndarray) -> dict[int, Any]:
    """Return the word of each symbol."""
    from bitarray.util import int2ba

    words, word, before = {}, 0, 0
    for symbol in _order(lengths).tolist():
        length = int(lengths[symbol])
        word <<= length - before
        words[symbol] = int2ba(word, length, endian="big")
        word, before = word + 1, length
    return words
