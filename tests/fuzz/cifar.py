"""Damaged files of CIFAR: records that are not whole, tars whose headers lie."""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Iterator

from tests.fuzz.damage import NAMES, Case, patched
from tests.fuzz.packing import pack_gzip
from tests.nn.input.made import cifar_files, pack_tar

RECORD = 3074
FILE = 512 + 3584
"""Bytes in a tar of a file of one record."""
NUMBERS = (b"", b"0", b"-1", b"8", b"00000000001", b"77777777777", b"0o17", b"1_0", b" 17 ", b"\xff" * 12)
"""Of a header, which are octal."""
KINDS = b"\x00\xff01234567 8xgLKSAVDMNX"
"""Of files: plain, links, folders, devices; headers of tar's extensions."""
FIELDS = (("size", 124, 12), ("checksum", 148, 8), ("mode", 100, 8), ("magic", 257, 8))


def records(file: bytes) -> Iterator[Case]:
    """Labels, records cut and doubled, bytes between them."""
    for label in range(0, 256, 5):
        yield f"label {label}", patched(file, 1, bytes([label]))
    for count in (0, 1, 2, 3, 50):
        yield f"{count} records", file[:RECORD] * count
        for more in (1, 2, 3073, 3075):
            yield f"{count} records and {more} bytes", file[:RECORD] * count + file[:more]
    for length in range(1, len(file), 7):
        yield f"the last {length} bytes", file[-length:]
    yield "records of CIFAR-10", cifar_files(10)["test_batch.bin"]
    yield "packed", pack_gzip(file)


def archives(file: bytes) -> Iterator[Case]:
    """Each header's fields changed, with the right checksum and a wrong one; odd names and orders."""
    tar = gzip.decompress(file)
    for start in _headers(tar):
        for (what, place, length), number in itertools.product(FIELDS, NUMBERS):
            changed = patched(tar, start + place, number.ljust(length, b"\0")[:length])
            yield f"{what} {number!r} at {start}", pack_gzip(changed)
            yield f"{what} {number!r} at {start}, summed", pack_gzip(summed(changed, start))
        for kind in KINDS:
            changed = summed(patched(tar, start + 156, bytes([kind])), start)
            yield f"a file of kind {kind} at {start}", pack_gzip(changed)
    for length in range(0, len(tar), 511):
        yield f"a tar of {length} bytes", pack_gzip(tar[:length])
    files = cifar_files(100, 1)
    for name in NAMES:
        odd = name.format("train.bin").encode("utf-8", "replace")[:100].ljust(100, b"\0")
        changed = summed(patched(pack_tar(files, packed=False), 0, odd), 0)
        yield f"named {name[:20]!r}", pack_gzip(changed)
    for what, other in (("twice", files), ("both sets", cifar_files(10, 1))):
        tars = [
            pack_tar(one, packed=False)[: len(one) * FILE] for one in (files, other)
        ]  # without their ends
        yield what, pack_gzip(b"".join(tars) + bytes(1024))
    yield "no files", pack_tar({})
    yield "packed twice", pack_gzip(file)
    yield "not packed", tar


def summed(tar: bytes, start: int) -> bytes:
    """With the right checksum in the header there."""
    blank = patched(tar, start + 148, b" " * 8)
    return patched(blank, start + 148, b"%06o\0 " % sum(blank[start : start + 512]))


def _headers(tar: bytes) -> list[int]:
    return [start for start in range(0, len(tar), 512) if tar[start + 257 : start + 262] == b"ustar"]
