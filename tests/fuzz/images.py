"""Damaged images: PNG's chunks and JPEG's segments, changed with the right checksums and lengths."""

from __future__ import annotations

import itertools
import struct
import zlib
from collections.abc import Iterator

from tests.fuzz.damage import Case, patched

SIGNATURE = 8
SIZES = (0, 1, 2, 3, 8, 255, 65_535, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
TEXTS = (b"tEXt", b"zTXt", b"iTXt", b"iCCP", b"eXIf", b"PLTE", b"tRNS", b"acTL", b"fcTL", b"fdAT", b"gAMA")


def chunks(file: bytes) -> Iterator[Case]:
    """Every size, depth, colour and method in the header; chunks left out, twice, of lengths that lie."""
    parts = list(_chunks(file))
    _, header = parts[0]
    for width, height in itertools.product(SIZES, SIZES):
        yield (
            f"{width} x {height}",
            _png([(b"IHDR", struct.pack(">II", width, height) + header[8:]), *parts[1:]]),
        )
    for place, value in itertools.product(range(8, 13), range(256)):
        changed = patched(header, place, bytes([value]))
        yield f"byte {place} of the header {value}", _png([(b"IHDR", changed), *parts[1:]])
    for number, (name, content) in enumerate(parts):
        yield f"without {name!r}", _png(parts[:number] + parts[number + 1 :])
        yield f"twice {name!r}", _png(parts[: number + 1] + parts[number:])
        for other in TEXTS:
            for text in (b"", b"a", content, b"a\0\0" + zlib.compress(bytes(100)), bytes(1000)):
                yield f"{other!r} before {name!r}", _png([*parts[:number], (other, text), *parts[number:]])
    for data in (b"", b"x", zlib.compress(b""), zlib.compress(bytes(10)), zlib.compress(bytes(100_000))):
        changed_data = [(name, data if name == b"IDAT" else content) for name, content in parts]
        yield f"{len(data)} bytes of pixels", _png(changed_data)
    for length in SIZES:
        yield f"a chunk of {length}", file[:SIGNATURE] + struct.pack(">I", length) + file[SIGNATURE + 4 :]


def segments(file: bytes) -> Iterator[Case]:
    """Each marker another one, each length another one, sizes that lie, segments left out and twice."""
    places = list(_segments(file))
    for start in places:
        for marker in range(0xC0, 0x100):
            yield f"marker {marker:x} at {start}", patched(file, start + 1, bytes([marker]))
        for length in SIZES[:7]:
            yield f"length {length} at {start}", patched(file, start + 2, struct.pack(">H", length))
        stop = start + 2 + int.from_bytes(file[start + 2 : start + 4], "big")
        yield f"without {start}", file[:start] + file[stop:]
        yield f"twice {start}", file[:stop] + file[start:]
        if file[start + 1] == 0xC0:
            for height, width in itertools.product(SIZES[:7], SIZES[:7]):
                yield f"{height} x {width}", patched(file, start + 5, struct.pack(">HH", height, width))
            for value in range(256):
                yield f"{value} bits", patched(file, start + 4, bytes([value]))
                yield f"{value} components", patched(file, start + 9, bytes([value]))


def _chunks(file: bytes) -> Iterator[tuple[bytes, bytes]]:
    place = SIGNATURE
    while place < len(file):
        length = int.from_bytes(file[place : place + 4], "big")
        yield file[place + 4 : place + 8], file[place + 8 : place + 8 + length]
        place += 12 + length


def _png(parts: list[tuple[bytes, bytes]]) -> bytes:
    packed = [
        struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        for name, content in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def _segments(file: bytes) -> Iterator[int]:
    """Give where the segments begin, up to the pixels."""
    place = 2
    while file[place + 1] != 0xDA:
        yield place
        place += 2 + int.from_bytes(file[place + 2 : place + 4], "big")
    yield place
