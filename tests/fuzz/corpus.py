"""The damaged and hostile files of a reader, made from its valid ones: one at a time, by its format.

Each is yielded with what was done to it. A format's file (idx.py, npz.py, cifar.py, tables.py, images.py,
safetensors.py, pyrtz.py, json_documents.py) owns what can be wrong with it.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from tests import LONG
from tests.fuzz.cifar import archives, records
from tests.fuzz.damage import JUNK, Case, Making, Trap, damaged
from tests.fuzz.idx import idx_headers
from tests.fuzz.images import chunks, segments
from tests.fuzz.json_documents import documents
from tests.fuzz.npz import members, other_values, zips
from tests.fuzz.pyrtz import lies
from tests.fuzz.readers import READERS, Reader
from tests.fuzz.safetensors import headers, other_tensors
from tests.fuzz.tables import packed_tables, tables

DAMAGE: dict[str, Callable[[bytes], Iterator[Case]]] = {
    "CIFAR file": records,
    "CIFAR archive": archives,
    "CSV": tables,
    "packed CSV": packed_tables,
    "PNG": chunks,
    "JPEG": segments,
    "pyrtz": lies,
}
"""What makes damaged files of a valid one, for readers of `Reader.files`."""


def cases(reader: Reader, canary: Path) -> Iterator[Case]:
    """All of a reader; unpickling, or running as Python, what is in them would make the file ``canary``."""
    yield from JUNK.items()
    yield "a pickle", pickle.dumps(Trap(canary))
    for other in READERS:
        for number, seed in enumerate(other.seeds):
            yield f"file {number} of {other.name}", seed
    yield from of_format(reader, canary)
    if reader.document is not None:
        for what, text in thinned(documents(reader.document)):
            yield what, reader.with_document(text)


def of_format(reader: Reader, canary: Path) -> Iterator[Case]:
    """Those of its bytes, and of IDX, npz or safetensors. Unless `LONG`, what several share is dealt."""
    for number, seed in enumerate(reader.seeds):
        for what, data in dealt(reader, damaged(seed)):
            yield f"file {number}, {what}", data
    if reader.arrays:
        yield from dealt(reader, idx_headers(reader.arrays[0]))
    if reader.members:
        yield from dealt(reader, zips(reader.packed_members))
        yield from dealt(reader, members(reader.packed_members, reader.members, canary))
        yield from thinned(other_values(reader.packed_members, reader.members))
    if reader.files:
        yield from thinned(DAMAGE[reader.name](reader.files[-1]))
    if reader.tensors:
        yield from thinned(headers(reader.tensors))
        yield from thinned(other_tensors(reader.tensors))


def thinned(of_all: Iterator[Case | Making]) -> Iterator[Case]:
    """Take a fortieth of the cases, by their names; all where `LONG`."""
    for what, data in of_all:
        if LONG or not zlib.crc32(what.encode()) % 40:
            yield what, data() if callable(data) else data


def dealt(reader: Reader, of_all: Iterator[Case | Making]) -> Iterator[Case]:
    """Take this reader's share among its family of a hundredth of the cases; all where `LONG`."""
    alike = [other for other in READERS if other.family == reader.family]
    for what, data in of_all:
        if LONG or zlib.crc32(what.encode()) % (100 * len(alike)) == alike.index(reader):
            yield what, data() if callable(data) else data
