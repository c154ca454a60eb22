"""nn/files/coding/huffman.py: canonical Huffman codes, their tables, and tables that lie."""

import heapq
import struct

import numpy as np
import pytest

from nn.files.coding import huffman
from nn.files.coding.bits import Cursor, Damaged, pack
from tests import few

pytest.importorskip("bitarray", reason="make test installs it")


def least_bits(counts):
    """Bits of an optimal prefix code: the sum of all inner nodes of Huffman's tree."""
    heap = [count for count in counts if count]
    if len(heap) == 1:
        return heap[0]
    heapq.heapify(heap)
    total = 0
    while len(heap) > 1:
        both = heapq.heappop(heap) + heapq.heappop(heap)
        total += both
        heapq.heappush(heap, both)
    return total


def draws():
    rng = np.random.default_rng(0)
    return {
        "geometric": rng.geometric(0.1, 3000) - 1,
        "uniform": rng.integers(0, 256, 3000),
        "holes": rng.integers(0, 20, 500) * 37,
        "two": rng.integers(0, 2, 9),
        "one symbol": np.full(100, 6),
        "one symbol 0": np.zeros(3, np.int64),
        "one entry": np.array([31]),
        "65537 symbols": np.append(rng.permutation(65537), rng.integers(0, 9, 10_000)),
    }


@pytest.mark.parametrize("name", few(list(draws())[:-1], of=list(draws())))
def test_symbols_come_back_in_the_fewest_bits(name):
    symbols = draws()[name]
    counts = np.bincount(symbols)
    stream = huffman.encode(symbols)
    bits = least_bits(counts.tolist())
    assert counts @ huffman.code_lengths(counts) == bits
    assert len(stream) == huffman.size(len(counts), bits)
    cursor = Cursor(stream + b"more")
    np.testing.assert_array_equal(huffman.decode(cursor, len(symbols), len(counts)), symbols)
    assert cursor.take(4) == b"more"


def test_words_are_canonical():
    """A: 0, B: 10, C: 110, D: 111, as the page of the format has them; D is symbol 0."""
    symbols = np.array([1] * 8 + [3] * 4 + [5] * 2 + [0] * 2)
    stream = huffman.encode(symbols)
    assert struct.unpack_from("<IQ", stream) == (6, 8 + 8 + 6 + 6)
    assert stream[12:16] == pack(np.array([3, 1, 0, 2, 0, 3]), 5)
    assert stream[16:] == int("00000000101010101111111101100000", 2).to_bytes(4, "big")


def test_words_longer_than_24_bits_are_made_shorter():
    """Fibonacci's numbers make the longest words; next to nothing is lost."""
    counts = [1, 1]
    while len(counts) < 40:
        counts.append(counts[-1] + counts[-2])
    lengths = huffman.code_lengths(np.array(counts)).astype(int)
    assert lengths.max() <= huffman.LONGEST and (2.0**-lengths).sum() == 1
    assert lengths @ np.array(counts) <= 1.0001 * least_bits(counts)


def test_all_chunks_are_encoded(monkeypatch):
    symbols = draws()["geometric"]
    whole = huffman.encode(symbols)
    monkeypatch.setattr(huffman, "_CHUNK", 7)
    assert huffman.encode(symbols) == whole


def packed(lengths, words, bits=None, symbols=None):
    """A stream of such a table and such words."""
    table = pack(np.array(lengths, np.uint8), 5)
    content = int(words.ljust(-(-len(words) // 8) * 8, "0") or "0", 2).to_bytes(-(-len(words) // 8), "big")
    symbols = len(lengths) if symbols is None else symbols
    return struct.pack("<IQ", symbols, len(words) if bits is None else bits) + table + content


def test_a_stream_made_by_hand_is_read():
    assert huffman.decode(Cursor(packed([1, 2, 2], "01011")), 3, 3).tolist() == [0, 1, 2]


WRONG = {
    "no table": packed([], "010"),
    "only zeros in the table": packed([0, 0, 0], "010"),
    "too many words": packed([1, 1, 1], "010"),
    "too few words": packed([1, 2, 0], "010"),
    "one long word": packed([2, 0, 0], "000"),
    "a word of 25 bits": packed([*range(1, 26), 25], "010"),
    "a symbol beyond the alphabet": packed([1, 2, 3, 3], "010111"),
    "a table longer than the file": packed([1, 2, 2], "01011", symbols=2**32 - 1),
    "more bits than the file": packed([1, 2, 2], "01011", bits=2**64 - 1),
    "a bit more": packed([1, 2, 2], "010110"),
    "a bit less": packed([1, 2, 2], "0101"),
    "fewer bits than symbols": packed([1, 2, 2], "01"),
    "bits behind the end": packed([1, 2, 2], "010111", bits=5),
    "another word than the only one": packed([1], "010"),
    "nothing": b"",
}


@pytest.mark.parametrize("stream", WRONG.values(), ids=WRONG.keys())
def test_a_stream_that_no_writer_has_written_is_refused(stream):
    with pytest.raises(Damaged):
        huffman.decode(Cursor(stream), 3, 3)


def test_nothing_is_allocated_for_symbols_that_are_not_there():
    with pytest.raises(Damaged):
        huffman.decode(Cursor(packed([1, 2, 2], "01011")), 10**13, 3)
