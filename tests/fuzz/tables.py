"""Damaged tables of comma-separated values."""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Iterator

from tests.fuzz.damage import Case
from tests.fuzz.packing import pack_gzip

CELLS = (
    *(b"", b" ", b"x", b"-1", b"1.5", b"1e3", b"1e999", b"nan", b"inf", b"-0", b"+7", b"0x1F", b"1_0", b"1j"),
    *(b'"5"', b'"', b'"5', b"'5'", b"=1+1", b"#5", b"\xff", "٣".encode(), "é".encode(), b"9" * 400, b"5;6"),
    *(b"65536", b"18446744073709551616", b"None", b"True", b"label", b"1,2", b"1\n2", b"\x1b[31m", b"\r"),
    *(b"\0", b"5\t6", b"\x0c"),
)


def tables(file: bytes) -> Iterator[Case]:
    """Each of these cells in each place of the first lines; lines left out, joined and repeated."""
    lines = file.split(b"\n")
    for number in range(4):
        cells = lines[number].split(b",")
        for place, cell in itertools.product({0, 1, len(cells) - 1}, CELLS):
            changed = b",".join([*cells[:place], cell, *cells[place + 1 :]])
            yield (
                f"{cell!r:.30} at line {number}, {place}",
                b"\n".join([*lines[:number], changed, *lines[number + 1 :]]),
            )
        yield f"without line {number}", b"\n".join(lines[:number] + lines[number + 1 :])
        yield f"twice line {number}", b"\n".join(lines[: number + 1] + lines[number:])
    for end in (b"\r\n", b"\r", b"\n\n", b"", b"\n\r", b"\0", "\u2028".encode()):
        yield f"lines that end with {end!r}", end.join(lines)
    for encoding in ("utf-16", "utf-32", "utf-8-sig"):
        yield f"in {encoding}", file.decode().encode(encoding)
    for between in (b";", b"\t", b", ", b" ,", b",,", b" "):
        yield f"cells apart by {between!r}", file.replace(b",", between)
    yield "a long line", b"1," * 30_000 + b"1\n"
    yield "a long name", b"label," + b"x" * 300_000 + b"\n1,2\n"


def packed_tables(file: bytes) -> Iterator[Case]:
    """The same, packed; in parts, twice, and not packed at all."""
    table = gzip.decompress(file)
    for what, changed in tables(table):
        yield what, pack_gzip(changed)
    for cut in (0, 5, len(table) - 1):
        yield f"in two parts at {cut}", pack_gzip(table[:cut]) + pack_gzip(table[cut:])
        yield f"half packed at {cut}", pack_gzip(table[:cut]) + table[cut:]
    yield "not packed", table
    yield "packed twice", pack_gzip(file)
