"""nn/files/coding/bits.py: numbers of a few bits, and bytes that are read with care."""

import numpy as np
import pytest

from nn.files.coding import bits
from nn.files.coding.bits import Cursor, Damaged


def slowly(numbers, width):
    """Pack numbers by way of a text of 0 and 1."""
    text = "".join(format(number, f"0{width}b") for number in numbers)
    text += "0" * (-len(text) % 8)
    return bytes(int(text[start : start + 8], 2) for start in range(0, len(text), 8))


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 7, 8, 9, 16, 17])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 9, 100])
def test_numbers_come_back_and_lie_as_documented(width, count):
    numbers = np.random.default_rng(count).integers(0, 1 << width, count)
    numbers[-1:] = (1 << width) - 1
    packed = bits.pack(numbers, width)
    assert packed == slowly(numbers.tolist(), width)
    assert len(packed) == bits.packed_size(count, width)
    np.testing.assert_array_equal(bits.unpack(packed, count, width), numbers)


@pytest.mark.parametrize("width", [3, 8])
def test_chunks_fit_together(monkeypatch, width):
    numbers = np.random.default_rng(0).integers(0, 1 << width, 50)
    whole = bits.pack(numbers, width)
    monkeypatch.setattr(bits, "_CHUNK", 16)
    assert bits.pack(numbers, width) == whole
    np.testing.assert_array_equal(bits.unpack(whole, 50, width), numbers)


def test_a_bit_behind_the_last_number_is_refused():
    with pytest.raises(Damaged):
        bits.unpack(b"\xe1", 1, 3)
    assert bits.unpack(b"\xe0", 1, 3).tolist() == [7]


@pytest.mark.parametrize(
    ("alphabet", "width"), [(0, 1), (1, 1), (2, 1), (3, 2), (64, 6), (65, 7), (65536, 16), (65537, 17)]
)
def test_the_width_of_an_alphabet(alphabet, width):
    assert bits.width(alphabet) == width


def test_a_cursor_takes_what_is_there_and_no_more():
    cursor = Cursor(bytes([1, 2, 0, 0, 0, 0x80, 0x3F]))
    assert cursor.fields("BH") == (1, 2)
    with pytest.raises(Damaged):
        cursor.take(5)
    with pytest.raises(Damaged):
        cursor.take(2**64)
    with pytest.raises(Damaged):
        cursor.require_end()
    assert cursor.floats(1).tolist() == [1.0]
    cursor.require_end()
