"""Damaged .pyrtz files: headers and sections that lie, with the right checksums."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from tests.fuzz.damage import NAMES, SIZES, Case, patched
from tests.fuzz.packing import join_pyrtz, split_pyrtz, summed_pyrtz

END = 60
"""Bytes of a section with codes and indices."""

NUMBERS = (*SIZES, 2**63 - 1, 2**63, 2**64 - 1)


def lies(file: bytes) -> Iterator[Case]:
    """Each number of the header another one, odd names, entries and sections left out, twice and changed."""
    text, entries, sections = split_pyrtz(file)
    for number, (entry, section) in enumerate(zip(entries, sections, strict=True)):
        for what, lying in _entries(entry):
            others = [*entries[:number], lying, *entries[number + 1 :]]
            yield f"entry {number}, {what}", join_pyrtz(text, others, sections)
        for what, lying in _sections(section):
            summed = [*entries[:number], summed_pyrtz(entry, lying), *entries[number + 1 :]]
            others = [*sections[:number], lying, *sections[number + 1 :]]
            yield f"section {number}, {what}", join_pyrtz(text, summed, others)
        less = entries[:number] + entries[number + 1 :], sections[:number] + sections[number + 1 :]
        yield f"without {number}", join_pyrtz(text, *less)
        yield f"without section {number}", join_pyrtz(text, entries, less[1])
        more = [*entries, entry], [*sections, section]
        yield f"twice {number}", join_pyrtz(text, *more)
    for count in range(8):
        yield f"{count} entries", join_pyrtz(text, entries, sections, count)
    empty = summed_pyrtz(entries[0][:3] + bytes([0, 1]) + bytes(18) + bytes(12), b"")
    many = [bytes([4]) + b"W%03d" % number + empty[3:] for number in range(3, 999)]
    yield "hundreds of arrays", join_pyrtz(text, [*entries, *many], sections)


def _entries(entry: bytes) -> Iterator[Case]:
    """Each byte and each number of an entry another one; other names."""
    for place in range(len(entry)):
        for value in (0, 1, 2, 3, 4, 5, 16, 17, 32, 33, 127, 128, 255):
            yield f"byte {place} set to {value}", patched(entry, place, bytes([value]))
        for value in NUMBERS:
            for layout in ("I", "Q"):
                content = struct.pack("<Q", value)[: struct.calcsize(layout)]
                yield f"{layout} at {place} set to {value}", patched(entry, place, content)[: len(entry)]
    for name in NAMES:
        odd = name.format("W1").encode("utf-8", "replace")[:255]
        yield f"named {odd[:20]!r}", bytes([len(odd)]) + odd + entry[1 + entry[0] :]


def _sections(section: bytes) -> Iterator[Case]:
    """Each bit of its end turned, numbers set, cut, and longer; numbers at its start may be any."""
    for place in range(max(0, len(section) - END), len(section)):
        for bit in range(8):
            yield f"bit {bit} at {place}", patched(section, place, bytes([section[place] ^ 1 << bit]))
        for value in NUMBERS:
            content = struct.pack("<Q", value)
            yield f"{value} at {place}", patched(section, place, content)[: len(section)]
        yield f"cut to {place}", section[:place]
    for tail in (b"\0", b"\xff" * 9, section):
        yield f"with {len(tail)} bytes behind", section + tail
