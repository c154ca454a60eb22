"""Numbers of a few bits each, packed into bytes, and bytes that are read with care.

The first number takes the highest bits of the first byte; bits that are left of the last byte are 0.
"""

from __future__ import annotations

import struct

import numpy as np

_CHUNK = 1 << 20
"""Numbers that are packed at a time: a multiple of 8, so that each chunk fills its bytes."""


class Damaged(ValueError):
    """Bytes that no writer has written: what is wrong with them."""


def width(alphabet: int) -> int:
    """Return the bits of a number below ``alphabet``, at least 1."""
    return max(1, (alphabet - 1).bit_length())


def packed_size(count: int, bits: int) -> int:
    """Return the bytes of ``count`` numbers of so many bits."""
    return -(-count * bits // 8)


def pack(numbers: np.ndarray, bits: int) -> bytes:
    """Pack numbers (count,) of an integer dtype, each below 2**bits; ``bits`` is 1 to 17."""
    places = np.arange(bits - 1, -1, -1, dtype=np.uint32)
    parts = []
    for start in range(0, len(numbers), _CHUNK):
        chunk = numbers[start : start + _CHUNK].astype(np.uint32)
        ones = (chunk[:, np.newaxis] >> places & 1).astype(np.uint8)
        parts.append(np.packbits(ones).tobytes())
    return b"".join(parts)


def unpack(content: bytes, count: int, bits: int) -> np.ndarray:
    """Unpack ``count`` numbers, uint32, from their bytes. Raises Damaged where a bit behind them is set."""
    numbers = np.empty(count, np.uint32)
    raw = np.frombuffer(content, np.uint8)
    for start in range(0, count, _CHUNK):
        stop = min(start + _CHUNK, count)
        ones = np.unpackbits(raw[start * bits // 8 : packed_size(stop, bits)])
        used = (stop - start) * bits
        if ones[used:].any():
            raise Damaged("bits are set behind the last number")
        rows = ones[:used].reshape(-1, bits)
        part = numbers[start:stop]
        part[:] = 0
        for column in range(bits):
            part <<= np.uint32(1)
            part |= rows[:, column]
    return numbers


class Cursor:
    """Bytes that are taken from the front; Damaged where there are fewer, or some are left at the end."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.place = 0

    def take(self, count: int) -> bytes:
        """Return the next ``count`` bytes."""
        if count > len(self._content) - self.place:
            raise Damaged("it is cut short")
        self.place += count
        return self._content[self.place - count : self.place]

    def fields(self, layout: str) -> tuple[int, ...]:
        """Return little-endian numbers, by a layout of the module struct."""
        return struct.unpack(f"<{layout}", self.take(struct.calcsize(f"<{layout}")))

    def floats(self, count: int) -> np.ndarray:
        """Return ``count`` float32 numbers."""
        return np.frombuffer(self.take(4 * count), "<f4").astype(np.float32)

    def numbers(self, count: int, bits: int) -> np.ndarray:
        """Return ``count`` packed numbers, uint32."""
        return unpack(self.take(packed_size(count, bits)), count, bits)

    def require_end(self) -> None:
        """Raise Damaged where bytes are left."""
        if self.place < len(self._content):
            raise Damaged("it is too long")
