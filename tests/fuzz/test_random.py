"""Files at random, by hypothesis, given to every reader: valid ones changed, headers of arrays, documents.

The same ones every time; with `LONG` many more, others each time, and a failure is printed with what brings
it back. How to fuzz a reader that is new: a line in readers.py.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("hypothesis", reason="make test installs it")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import LONG
from tests.fuzz.damage import patched
from tests.fuzz.json_documents import Place, paths, replaced
from tests.fuzz.npy import DTYPES, npy
from tests.fuzz.packing import (
    content_of,
    join_pyrtz,
    pack_gzip,
    pack_zip,
    split_pyrtz,
    summed_pyrtz,
    with_header,
)
from tests.fuzz.readers import READERS, Reader, each, pack_idx
from tests.fuzz.watch import examine, watching

examples = settings(
    max_examples=5_000 if LONG else 5,
    derandomize=not LONG,
    print_blob=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture
def path(reader: Reader, tmp_path: Path) -> Path:
    for name, content in reader.beside.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path / reader.file


def check(reader: Reader, path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with watching():
        examine(reader, path)


Edit = tuple[str, int, bytes]
"""What is done, at which place (from the end where it is negative), with which bytes."""

words = st.sampled_from([0, 1, 255, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1])
little, big = (words.map(lambda word, order=order: word.to_bytes(8, order)) for order in ("little", "big"))
edits = st.lists(
    st.tuples(
        st.sampled_from(["set", "insert", "remove", "cut", "repeat"]),
        st.integers(-200, 3000),
        st.one_of(st.binary(min_size=1, max_size=8), little, big.map(lambda word: word[4:])),
    ),
    min_size=1,
    max_size=5,
)


def edited(data: bytes, of_all: list[Edit]) -> bytes:
    for how, place, new in of_all:
        place = place % (len(data) + 1)
        stop = place + len(new)
        data = {
            "set": patched(data, place, new),
            "insert": data[:place] + new + data[place:],
            "remove": data[:place] + data[stop:],
            "cut": data[:place],
            "repeat": data[:stop] + data[place:],
        }[how]
    return data


@each(READERS)
@examples
@given(number=st.integers(0, 3), changes=edits)
def test_changed_files(reader: Reader, path: Path, number: int, changes: list[Edit]) -> None:
    seeds = reader.seeds
    check(reader, path, edited(seeds[number % len(seeds)], changes))


@each([reader for reader in READERS if reader.arrays])
@examples
@given(number=st.integers(0, 1), changes=edits)
def test_files_changed_before_they_are_packed(
    reader: Reader, path: Path, number: int, changes: list[Edit]
) -> None:
    check(reader, path, pack_gzip(edited(pack_idx(reader.arrays[number]), changes)))


packings = st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])


@each([reader for reader in READERS if reader.members])
@examples
@given(number=st.integers(0, 10), changes=edits, packing=packings)
def test_members_changed_before_they_are_packed(
    reader: Reader, path: Path, number: int, changes: list[Edit], packing: int
) -> None:
    members = reader.packed_members
    name = list(members)[number % len(members)]
    check(reader, path, pack_zip({**members, name: edited(members[name], changes)}, packing))


lengths = st.one_of(st.integers(-2, 13), words, st.booleans(), st.floats(), st.integers())
shapes = st.one_of(
    st.lists(lengths, max_size=5).map(tuple), st.just((6, 4, 3)), st.just((5, 12)), lengths, st.none()
)
types = st.one_of(
    st.sampled_from([*DTYPES, "O", "|O8", "<U9999999", "V0", "U0", "f8,O", "(2,)O"]),
    st.text("<>|=uifcSUVOMmbg?,()0123456789[]:", max_size=8),
    st.lists(st.tuples(st.text("ab", max_size=2), st.sampled_from(DTYPES)), max_size=3),
)
headers = st.one_of(
    st.fixed_dictionaries(
        {"descr": types, "fortran_order": st.one_of(st.booleans(), st.none()), "shape": shapes},
        optional={"more": st.none()},
    ).map(repr),
    st.text(max_size=100),
    st.text("{}()[]'\"\\:,-+.LOTFdescr_ 0123456789#\n", max_size=100),
)


@each([reader for reader in READERS if reader.members])
@examples
@given(number=st.integers(0, 10), header=headers, content=st.binary(max_size=300), size=lengths)
def test_headers_of_arrays(
    reader: Reader, path: Path, number: int, header: str, content: bytes, size: Any
) -> None:
    """Of `size` bytes they are, or say that they are."""
    members = reader.packed_members
    name = list(members)[number % len(members)]
    told = size if type(size) is int and size > 13 else None
    check(reader, path, pack_zip({**members, name: npy(header, content, (1, 0), told)}))


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    words,
    st.floats(),
    st.text(st.characters(exclude_categories=[])),
    st.sampled_from(["rows", "columns", "samples", "float32", "sm_90a", "wgmma", "mma", "bf16", 10**400]),
)
keys = st.one_of(st.sampled_from(["grid", "layers", "device", "options", "nn"]), st.text(max_size=3))
documents = st.recursive(
    leaves, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=4))
)
with_documents = [reader for reader in READERS if reader.document is not None]


@each(with_documents)
@examples
@given(content=documents)
def test_documents(reader: Reader, path: Path, content: Any) -> None:
    check(reader, path, reader.with_document(json.dumps(content).encode()))


@each(with_documents)
@examples
@given(
    changes=st.lists(st.tuples(st.integers(0, 10_000), st.one_of(leaves, documents)), min_size=1, max_size=3)
)
def test_documents_with_other_values(reader: Reader, path: Path, changes: list[tuple[int, Any]]) -> None:
    content = reader.document
    for number, value in changes:
        places: list[Place] = list(paths(content))
        if places:
            content = json.loads(replaced(content, places[number % len(places)], json.dumps(value)))
    check(reader, path, reader.with_document(json.dumps(content).encode()))


@each([reader for reader in READERS if reader.tensors])
@examples
@given(header=documents, names=st.lists(st.sampled_from(["W1", "b1", "W2", "b2", "__metadata__"])))
def test_headers_of_safetensors(reader: Reader, path: Path, header: Any, names: list[str]) -> None:
    check(reader, path, with_header(dict.fromkeys(names, header) or header, content_of(reader.tensors)))


@each([reader for reader in READERS if reader.name == "pyrtz"])
@examples
@given(number=st.integers(0, 11), of_entry=st.booleans(), of_section=st.booleans(), changes=edits, more=edits)
def test_pyrtz_changed_before_their_checksums(
    reader: Reader,
    path: Path,
    number: int,
    of_entry: bool,
    of_section: bool,
    changes: list[Edit],
    more: list[Edit],
) -> None:
    text, entries, sections = split_pyrtz(reader.files[number % 3])
    place = number // 3
    if of_section:
        sections[place] = edited(sections[place], changes)
        entries[place] = summed_pyrtz(entries[place], sections[place])
    if of_entry:
        entries[place] = edited(entries[place], more)
    check(reader, path, join_pyrtz(text, entries, sections))
