"""Damaged and hostile files, made from a reader's valid ones: one at a time, by the structure of the format.

Each is yielded with what was done to it.
"""

from __future__ import annotations

import copy
import functools
import io
import itertools
import json
import math
import pickle
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests import LONG
from tests.fuzz.readers import (
    READERS,
    Members,
    Reader,
    content_of,
    header_of,
    pack_gzip,
    pack_npy,
    pack_safetensors,
    pack_zip,
    with_header,
)

Case = tuple[str, bytes]

SIZES = (0, 1, 2, 2**16, 2**31 - 1, 2**31, 2**32 - 1)
"""Of a dimension in 32 bits."""

EDGE = 130
"""Bytes at the ends of a file all of which are changed: records and headers."""

JUNK = {
    "empty": b"",
    "zero bytes": bytes(100),
    "all ones": b"\xff" * 100,
    "a web page": b"<!DOCTYPE html><html><body>404 Not Found</body></html>",
    "a line": b"\n",
    "the start of gzip": b"\x1f\x8b",
    "the start of a zip": b"PK\x03\x04",
    "an empty zip": b"PK\x05\x06" + bytes(18),
}


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
    if reader.tensors:
        yield from thinned(headers(reader.tensors))
        yield from thinned(other_tensors(reader.tensors))


def thinned(of_all: Iterator[Case]) -> Iterator[Case]:
    """Take a fourth of the cases, by their names; all where `LONG`."""
    for what, data in of_all:
        if LONG or not zlib.crc32(what.encode()) % 4:
            yield what, data


def dealt(reader: Reader, of_all: Iterator[Case]) -> Iterator[Case]:
    """Take this reader's share among its family of a sixth of the cases; all where `LONG`."""
    alike = [other for other in READERS if other.family == reader.family]
    for what, data in of_all:
        if LONG or zlib.crc32(what.encode()) % (6 * len(alike)) == alike.index(reader):
            yield what, data


def damaged(data: bytes) -> Iterator[Case]:
    """Cut, with each byte changed in one way, and longer; of a long middle a few places."""
    for place in range(len(data)):
        if EDGE <= place < len(data) - EDGE and place % 13:
            continue
        yield f"cut to {place}", data[:place]
        for value in (data[place] ^ 0xFF, data[place] ^ (1 << place % 8)):
            yield f"byte {place} set to {value}", patched(data, place, bytes([value]))
    for tail in (b"\0", b"\xff" * 64, data):
        yield f"with {len(tail)} bytes behind", data + tail
        yield f"with {len(tail)} bytes before", tail + data


def every_byte(data: bytes) -> Iterator[Case]:
    """Each left out, twice, with each bit turned, smallest and largest."""
    for place, byte in enumerate(data):
        yield f"without byte {place}", data[:place] + data[place + 1 :]
        yield f"twice byte {place}", data[: place + 1] + data[place:]
        for value in (0x00, 0xFF, *(byte ^ (1 << bit) for bit in range(8))):
            yield f"byte {place} set to {value}", patched(data, place, bytes([value]))


def patched(data: bytes, place: int, new: bytes) -> bytes:
    return data[:place] + new + data[place + len(new) :]


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (self._path, "w")


# IDX


def idx_headers(array: np.ndarray) -> Iterator[Case]:
    """Every code of a type, every number of dimensions, sizes that lie; raw and packed."""
    content = array.tobytes()
    right = struct.pack(f">{array.ndim}I", *array.shape)
    shapes = [shape for count in range(1, 5) for shape in itertools.product(SIZES, repeat=count)]
    headers = {
        **{f"type {code}": bytes([0, 0, code, array.ndim]) + right for code in range(256)},
        **{f"{count} dimensions": bytes([0, 0, 8, count]) + right for count in range(256)},
        **{f"shape {shape}": _idx_header(0x08, shape) for shape in shapes},
        **{f"shape {shape} of doubles": _idx_header(0x0E, shape) for shape in shapes if len(shape) < 4},
    }
    for what, header in headers.items():
        yield what, header + content
    for shape in shapes:
        if 0 in shape:
            yield f"nothing of shape {shape}", _idx_header(0x08, shape)
    for what, header in list(headers.items())[::7]:
        yield f"{what}, packed", pack_gzip(header + content)
    whole = bytes([0, 0, 8, array.ndim]) + right + content
    for cut in (0, 3, 4, 7, len(whole) - 1):
        yield f"packed in two parts at {cut}", pack_gzip(whole[:cut]) + pack_gzip(whole[cut:])
        yield f"half packed at {cut}", pack_gzip(whole[:cut]) + whole[cut:]
    for flags in range(256):
        yield f"gzip flags {flags}", patched(pack_gzip(whole), 3, bytes([flags]))
    yield "packed twice", pack_gzip(pack_gzip(whole))


def _idx_header(code: int, shape: tuple[int, ...]) -> bytes:
    return bytes([0, 0, code, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)


# safetensors


def headers(tensors: Mapping[str, np.ndarray]) -> Iterator[Case]:
    """Headers that lie, each value of a good one replaced, odd names, lengths beyond the file."""
    content, good = content_of(tensors), header_of(tensors, "{}")
    text = json.dumps(good).encode()
    for what, changed in documents(good):
        yield f"header, {what}", with_header(changed, content)
    for told in (*SIZES, len(text) - 1, len(text) + 1, 10**8, 10**8 + 1, 2**63 - 1, 2**63, 2**64 - 1):
        yield f"header of {told}", with_header(text, content, told)
    (first, of_first), *_ = ((name, entry) for name, entry in good.items() if name in tensors)
    for name in NAMES:
        odd = name.format(first)
        yield f"{odd:.80} beside", with_header({**good, odd: {**of_first, "data_offsets": [0, 0]}}, content)
        renamed = {odd if key == first else key: value for key, value in good.items()}
        yield f"named {odd:.80}", with_header(renamed, content)
    for entry in ENTRIES:
        yield f"{first}: {entry}", with_header({**good, first: {**of_first, **entry}}, content)
    yield "twice", with_header(text[:-1] + b", " + json.dumps({first: of_first}).encode()[1:], content)
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [len(content), len(content)]}
    many = {f"W{number}": empty for number in range(3, 3000)}
    yield "thousands of arrays", with_header({**good, **many}, content)
    for blanks in (b" ", b"\n", b"\0", b" " * 70_000):
        yield f"{len(blanks)} of {blanks[:1]!r} behind", with_header(text + blanks, content)
        yield f"{len(blanks)} of {blanks[:1]!r} before", with_header(blanks + text, content)


ENTRIES: tuple[dict[str, object], ...] = (
    *({"dtype": name} for name in ("F16", "BF16", "I64", "U64", "C64", "BOOL", "F8_E4M3", "F4", "f64", "")),
    *({"shape": shape} for shape in ([], [60], [12, 5], [0], [0, 2**63], [2**64 - 1], [2**64], [-5, -12])),
    *({"shape": shape} for shape in ([2**32, 2**32], [1] * 100 + [5, 12], [5.0, 12.0], ["5", "12"])),
    *({"data_offsets": places} for places in ([0, 0], [480, 0], [-480, 0], [8, 488], [0, 2**63], [0])),
    *({"data_offsets": places} for places in ([2**64 - 480, 2**64 - 1], [0, 480, 480], [0.0, 480.0])),
)
"""What the header may say of an array that it should not."""


def other_tensors(tensors: Mapping[str, np.ndarray]) -> Iterator[Case]:
    """Good files with other values in an array."""
    for name, array in tensors.items():
        for value in (np.nan, np.inf, -np.inf, 1e300, -0.0):
            changed = np.where(np.arange(array.size).reshape(array.shape) == 1, value, array)
            yield f"{name} with {value}", pack_safetensors({**tensors, name: changed}, None)
        for dtype in ("f2", "f4", "i1", "u8"):
            yield f"{name} of {dtype}", pack_safetensors({**tensors, name: array.astype(dtype)}, None)


# npz


def zips(packed: Members) -> Iterator[Case]:
    """Zips around good members: records with each field wrong, odd names, members twice."""
    for packing in PACKINGS:
        data = pack_zip(packed, packing)
        for what, place, width in zip_fields(data):
            yield f"packing {packing}, cut before {what}", data[:place]
            sign = 1 << 8 * width - 1
            for value in (0, 1, 99, sign - 1, sign, 2 * sign - 1):
                changed = patched(data, place, value.to_bytes(width, "little"))
                yield f"packing {packing}, {what} set to {value}", changed
    (first, content), *_ = packed.items()
    for name in NAMES:
        renamed = {name.format(first): content, **dict(list(packed.items())[1:])}
        yield f"named {name!r}", pack_zip(renamed)
        yield f"{name!r} beside", pack_zip({**packed, name.format(first): content})
    for packing in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        yield f"packing {packing}", pack_zip(packed, packing)
    yield from twice(packed, first)
    yield "a comment", with_comment(pack_zip(packed), b"PK\x05\x06" * 1000)
    yield "one in another", pack_zip({first: pack_zip(packed)})


PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

NAMES = (
    *(
        "../{}",
        "/etc/{}",
        "a/b/{}",
        "./{}",
        "C:\\{}",
        "..\\{}",
        "{}\0",
        "{}\0.npy",
        "\0{}",
        "{}/",
        "",
        "/",
        ".npy",
    ),
    *("{}.npy", "{}\n", "\x1b[31m{}", "é{}", "日本{}", "x" * 60_000, "W", "b", "W0", "W9", "W²", "b٣"),
    *("x_train", "x_train.npy.npy", "y_test.npy/"),
)
"""Of members; {} is the right one."""


def zip_fields(data: bytes) -> Iterator[tuple[str, int, int]]:
    """Name, place and width of every field of a zip's records, of each kind the first two."""
    for magic, name, fields in ZIP_RECORDS:
        start = -1
        for number in range(2):
            start = data.find(magic, start + 1)
            if start < 0:
                break
            place = start
            for width in fields:
                yield f"{name} {number} at {place - start}", place, width
                place += width


ZIP_RECORDS = (
    (b"PK\x03\x04", "member", (4, 2, 2, 2, 2, 2, 4, 4, 4, 2, 2)),
    (b"PK\x01\x02", "entry", (4, 1, 1, 2, 2, 2, 2, 2, 4, 4, 4, 2, 2, 2, 2, 2, 4, 4)),
    (b"PK\x05\x06", "end", (4, 2, 2, 2, 2, 4, 4, 2)),
)
"""How they begin, and the widths of their fields (APPNOTE.TXT, 4.3)."""


def twice(packed: Members, name: str) -> Iterator[Case]:
    """A member that is there twice, or thousands of times in the same place."""
    yield "twice, with other content", pack_zip(packed, more={name: b"another"})
    yield "twice, with the same", pack_zip(packed, more={name: packed[name]})
    for copies in (1, 1000):
        file = io.BytesIO(pack_zip(packed))
        with zipfile.ZipFile(file, "a") as archive:
            archive.filelist += [archive.getinfo(name)] * copies
            archive._didModify = True
        yield f"{copies} entries more for one member", file.getvalue()


def with_comment(data: bytes, comment: bytes) -> bytes:
    return data[:-2] + len(comment).to_bytes(2, "little") + comment


def members(packed: Members, arrays: Mapping[str, np.ndarray], canary: Path) -> Iterator[Case]:
    """Good zips around a member that is none, or that lies: the first."""
    (first, array), *_ = arrays.items()
    with_first = functools.partial(_with_member, packed, first)
    content = packed[f"{first}.npy"]
    start = content.index(b"\n") + 1
    for what, head in damaged(content[:start]):
        yield f"{first}: {what}", with_first(head + content[start:])
    for number, (what, changed) in enumerate(npys(array, canary)):
        yield f"{first}: {what}", with_first(changed, packing=PACKINGS[number % 2])


def other_values(packed: Members, arrays: Mapping[str, np.ndarray]) -> Iterator[Case]:
    """Good zips with another array in the place of each."""
    for name, array in arrays.items():
        for what, changed in values(array):
            yield f"{name}: {what}", _with_member(packed, name, changed)


def _with_member(packed: Members, name: str, content: bytes, packing: int = zipfile.ZIP_STORED) -> bytes:
    return pack_zip({**packed, f"{name}.npy": content}, packing)


def npys(array: np.ndarray, canary: Path) -> Iterator[Case]:
    """Files that are no .npy, or whose header lies, in the place of this array."""
    trap = np.empty(array.shape, object)
    trap.fill(Trap(canary))
    objects = pack_npy(trap)
    yield "objects", objects
    pickled = objects[objects.index(b"\n") + 1 :]
    for header in HEADERS:
        text = header.format(
            shape=array.shape,
            dtype=array.dtype.str,
            count=array.size,
            canary=str(canary),
            first=array.shape[0],
        )
        for content in (array.tobytes(), b"", pickled):
            yield f"header {text:.200}, {len(content)} bytes", npy(text, content)
    good = _array_of(array.dtype.str, array.shape)
    for version in itertools.product((0, 1, 2, 3, 255), (0, 1, 255)):
        yield f"version {version}", npy(good, array.tobytes(), version)
    for told in (0, 1, 10, len(good) - 1, len(good) + 1, 10_000, 10_001, 65_535, 2**31 - 1, 2**32 - 1):
        for major in (1, 2, 3):
            if told < 2**16 or major > 1:
                yield f"version {major}, header of {told}", npy(good, array.tobytes(), (major, 0), told)


def values(array: np.ndarray) -> Iterator[Case]:
    """Good .npy files of other types, shapes and values than this array."""
    for dtype in DTYPES:
        yield f"zeros, {dtype}", pack_npy(np.zeros(array.shape, dtype))
        yield f"none, {dtype}", pack_npy(np.zeros((0, *array.shape[1:]), dtype))
    for value in (np.nan, np.inf, -np.inf, 1e300, -1.0, 256.0, 65536.0, 2.0**63):
        yield (
            f"with {value}",
            pack_npy(np.where(np.arange(array.size).reshape(array.shape) == 1, value, array)),
        )
    for value in (-1, 255, 256, 65535, 65536, 2**31, 2**63 - 1, -(2**63)):
        whole = np.zeros(array.shape, np.int64)
        whole.flat[-1] = value
        yield f"whole, with {value}", pack_npy(whole)
    for shape in ((), (0,), (1,), (array.size,), (array.size, 1, 1, 1), (1,) * 5 + (array.size,), (1,) * 32):
        if math.prod(shape) == array.size:
            yield f"shape {shape}", pack_npy(array.reshape(shape))
        yield f"zeros of shape {shape}", pack_npy(np.zeros(shape, array.dtype))
    yield "Fortran order", pack_npy(np.asfortranarray(array))
    yield "not native", pack_npy(array.astype(array.dtype.newbyteorder()))
    yield "signalling NaN", pack_npy(np.full(array.shape, b"\1\0\xa0\x7f", "S4").view("<f4"))


def npy(header: str, content: bytes, version: tuple[int, int] = (1, 0), told: int | None = None) -> bytes:
    """With any header, which says that it has ``told`` bytes."""
    text = header.encode("utf-8", "surrogateescape")
    width = 2 if version[0] <= 1 else 4
    size = (len(text) if told is None else told) % (1 << 8 * width)
    return b"\x93NUMPY" + bytes(version) + size.to_bytes(width, "little") + text + content


def _header(descr: str = "'{dtype}'", order: str = "False", shape: str = "{shape}") -> str:
    return f"{{{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}}}"


HEADERS = (
    _header(),
    _header(descr="'U0'", shape="(2147483647,)"),
    _header(descr="'V0'", shape="(4, 2147483647)"),
    *(_header(order=order) for order in ("True", "0", "None", "'C'")),
    *(
        _header(shape=shape)
        for shape in (
            *(
                "None",
                "[]",
                "()",
                "(0,)",
                "(-1,)",
                "(-{count},)",
                "(-1, -{count})",
                "({count},)",
                "({count}, 0)",
            ),
            *("(2**31,)", "(2147483647,)", "(4294967296, 4294967296)", "(9223372036854775807,)"),
            *(
                "(9223372036854775808, 0)",
                "(4611686018427387904, 4, 0)",
                "(18446744073709551616,)",
                "(0, -1)",
            ),
            *("(9223372036854775807, 9223372036854775807, 0)", "(True, False)", "(6.0, 12)", "('6', 12)"),
            *(
                "(" + "9" * 5000 + ",)",
                "(" + "9" * 400 + ", 0)",
                "(" + "1, " * 3000 + ")",
                "(" + "1, " * 33 + ")",
                "(" + "9223372036854775807, " * 450 + ")",
            ),
            *(
                "({count}L,)",
                "(0x6, 12)",
                "({first}, 1, 12)",
                "(1_0,)",
                "(1 if 1 else 2,)",
                "(1,)if 1else(2,)",
            ),
        )
    ),
    *(
        _header(descr=descr)
        for descr in (
            *(
                "'O'",
                "'|O'",
                "'O8'",
                "['O']",
                "[('a', 'O')]",
                "('O', (1,))",
                "object",
                "None",
                "1",
                "''",
                "'x' * 9",
            ),
            *("'U0'", "'S0'", "'V0'", "'<U2147483647'", "'S2147483647'", "'V1'", "'<f2'", "'<f16'", "'<c16'"),
            *(
                "'<M8[s]'",
                "'<m8[999999999999s]'",
                "'?'",
                "'b1'",
                "'i4,i4'",
                "'i4,,'",
                "'(2,3)f4'",
                "'(99999,99999)f8'",
            ),
            *(
                "[('a', '<f8')]",
                "[('a', '<f8', (0,))]",
                "[('', '|u1')]",
                "[('a', '|u1'), ('a', '|u1')]",
                "[]",
            ),
            *("('|u1', (2, 2))", "('|u1', (-1,))", "('|u1', (1000000000, 1000000000))", "('|u1', {{}})"),
            *(
                "{{'names': ['a'], 'formats': ['u1']}}",
                "{{'names': ['a'], 'formats': ['u1'], 'offsets': [2000000000]}}",
            ),
            *(
                "[('a', [('b', [('c', 'O')])])]",
                "'" + "i4," * 3000 + "'",
                "'a5'",
                "'T'",
                "'<T16'",
                "'\\d'",
                "b'<u1'",
            ),
        )
    ),
    *(
        "",
        "(",
        "()",
        "[]",
        "{{}}",
        "1",
        "None",
        "{{[1]: 2}}",
        "{{{{}}: 1}}",
        "\0",
        "#",
        "\\",
        "'" * 3,
        "é",
        "\n" * 50,
    ),
    *(
        "1 is 1",
        "'\\d'",
        "1or 2",
        "0_",
        "99" * 3000,
        "-" * 9000 + "1",
        "(" * 9000,
        "[" * 150 + "]" * 150,
        "{{" * 150,
    ),
    *(
        "__import__('os').abort()",
        "open({canary!r}, 'w')",
        "[open({canary!r}, 'w') for _ in 'x']",
        "f'{{open}}'",
    ),
    "exec('open({canary!r}, \"w\")')",
    "{{'descr': open({canary!r}, 'w'), 'fortran_order': False, 'shape': {shape}, }}",
    "{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, 'more': 1, }}",
    "{{'descr': '{dtype}', 'fortran_order': False, 'descr': '|O', 'shape': {shape}, }}",
    "{{'descr': '{dtype}', 'shape': {shape}, }}",
    "{{1: 2, 'descr': '{dtype}', 'shape': {shape}, }}",
)
"""Headers of .npy files: which NumPy evaluates as Python's literals."""

DTYPES = (
    *(
        "u1",
        "i1",
        "u2",
        "i2",
        ">u4",
        "<i4",
        ">u8",
        "i8",
        "f2",
        ">f4",
        "f4",
        ">f8",
        "f8",
        "g",
        "F",
        "D",
        "?",
        "S3",
        "U3",
    ),
    *("V5", "M8[s]", "m8[s]", "i4,f4", "(2,2)u1"),
)


MEGABYTE, GIGABYTES = 1 << 20, 2 << 30


def bombs(reader: Reader) -> Iterator[Case]:
    """Zips of 2 MB with a member that inflates to 2 GiB of zeros, beside the others or in the place of one.

    Not one that is an array of the data: that many zeros may be what a user has.
    """
    name, array = next(iter(reader.members.items()))
    bomb = functools.partial(pack_bomb, reader.packed_members)
    good = npy(_array_of(array.dtype.str, array.shape), b"")
    flat = npy(_array_of("|u1", (GIGABYTES,)), b"")
    letters = (GIGABYTES - 1) // 4
    text = npy(_array_of(f"<U{letters}", ()), b"")
    yield "a header without end", bomb(f"{name}.npy", npy("", b"", (2, 0), 2**32 - 1))
    yield "more than the header tells", bomb(f"{name}.npy", good)
    yield "more than header and zip tell", bomb(f"{name}.npy", good, told=array.nbytes)
    yield "unwanted", bomb("more.npy", flat)
    yield "text", bomb("run.npy", text, letters * 4)
    if reader.name != "npz":
        itemsize = GIGABYTES // array.size
        wide = npy(_array_of(f"|V{itemsize}", array.shape), b"")
        yield "another shape", bomb(f"{name}.npy", flat)
        yield "another type", bomb(f"{name}.npy", wide, itemsize * array.size)


def _array_of(descr: str, shape: tuple[int, ...]) -> str:
    return f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"


def pack_bomb(
    packed: Members, name: str, start: bytes, zeros: int = GIGABYTES, told: int | None = None
) -> bytes:
    """A zip whose member ``name`` inflates to ``start`` and zeros, as many as it says, or more."""
    pack = zlib.compressobj(wbits=-15)
    blocks, rest = divmod(zeros, MEGABYTE)
    pieces = [
        pack.compress(part) + pack.flush(zlib.Z_FULL_FLUSH)
        for part in (start, bytes(rest), bytes(MEGABYTE), bytes(MEGABYTE))
    ]
    stream = b"".join(pieces[:3]) + pieces[3] * (blocks - 1) + pack.flush()
    others = {other: content for other, content in packed.items() if other != name}
    data = bytearray(pack_zip({**others, name: stream}))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        member = archive.getinfo(name).header_offset
    entry = data.rindex(name.encode()) - 46  # the last
    for method, size in ((member + 8, member + 22), (entry + 10, entry + 24)):
        struct.pack_into("<H", data, method, zipfile.ZIP_DEFLATED)
        struct.pack_into("<I", data, size, len(start) + (zeros if told is None else told))
    return bytes(data)


# JSON


def documents(content: Any) -> Iterator[Case]:
    """Texts in the place of a document: no JSON, other encodings, each value of it replaced by
    `VALUES` (of a large document by some of them each, unless `LONG`), left out, added."""
    good, places = json.dumps(content), list(paths(content))
    step = 1 if LONG else 1 + len(places) // 12
    for what, text in {**JUNK, **TEXTS}.items():
        yield what, text
    for depth in (100, 900, 980, 995, 1000, 5000, 100_000):
        yield f"{depth} lists", b"[" * depth + b"]" * depth
        yield f"{depth} objects", b'{"a":' * depth + b"1" + b"}" * depth
        yield f"{depth} lists, open", b"[" * depth
    for encoding in ("utf-8-sig", "utf-16", "utf-16-be", "utf-16-le", "utf-32", "utf-32-be", "utf-7"):
        yield encoding, good.encode(encoding)
    for what, tail in TAILS.items():
        yield f"{what} behind", good.encode() + tail
        yield f"{what} before", tail + good.encode()
    for number, path in enumerate(places):
        for value in VALUES[number % step :: step]:
            yield f"{path} set to {value:.40}", replaced(content, path, value).encode()
        for what, new in (("left out", without(content, path)), ("more beside", with_more(content, path))):
            yield f"{path}: {what}", json.dumps(new).encode()
    for value in VALUES:
        yield f"{value:.40}", value.encode()


TEXTS = {
    "no quotes": b"{grid: [1, 2]}",
    "other quotes": b"{'grid': [1, 2]}",
    "a comma too many": b"[1, 2,]",
    "half a surrogate": b'"\\ud800"',
    "not UTF-8": b'"\xff\xfe\xfa"',
    "UTF-8 too long": b'"\xc0\x80"',
    "a control character": b'"\x01"',
    "half an escape": b'"\\u12',
    "an object of nothing": b'{"": 1}',
    "two million blanks": b" " * 2_000_000,
    "many numbers": b"[" + b"1," * 60_000 + b"1]",
    "many objects": b"[" + b'{"":1},' * 60_000 + b"1]",
}

TAILS = {
    "a line": b"\n",
    "blanks": b" " * 70_000,
    "many blanks": b" " * 1_100_000,
    "NUL": b"\0",
    "a brace": b"}",
    "another": b'{"grid": [1, 1], "layers": []}',
    "a BOM": b"\xef\xbb\xbf",
    "bytes": b"\xff\xfe",
}

VALUES = (
    *(
        "null",
        "true",
        "false",
        "0",
        "-0",
        "1",
        "-1",
        "3",
        "0.5",
        "-0.0",
        "1e-320",
        "1e300",
        "1e999",
        "-1e999",
        "NaN",
    ),
    *(
        "Infinity",
        "-Infinity",
        "2147483647",
        "2147483648",
        "4294967296",
        "9223372036854775808",
        "1" + "0" * 400,
    ),
    *(
        "1" * 4299,
        "1" * 5000,
        '""',
        '"x"',
        '"rows"',
        '"auto"',
        '"\\n"',
        '"\\u0000"',
        '"\\ud800"',
        '"\\u001b[31m"',
    ),
    *(
        json.dumps("x" * 5000),
        "[]",
        "{}",
        "[[]]",
        "[0]",
        "[1, 2]",
        '["rows"]',
        '{"a": 1}',
        '{"__class__": 1}',
    ),
    *(
        "[" * 900 + "]" * 900,
        "[" * 980 + "]" * 980,
        "[" * 70 + "1" + "]" * 70,
        "[1, [2]]",
        "[" + "1," * 2000 + "1]",
    ),
)
"""Texts of values in the place of others."""

Place = tuple[str | int, ...]


def paths(content: Any) -> Iterator[Place]:
    """Of all values in a document, of lists the first."""
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(content, dict):
        items = content.items()
    elif isinstance(content, list):
        items = list(enumerate(content))[:1]
    for key, value in items:
        yield (key,)
        for rest in paths(value):
            yield (key, *rest)


def replaced(content: Any, path: Place, text: str) -> str:
    """The document with a text of JSON, or no JSON, in the place of a value."""
    mark = "-- here --"
    return json.dumps(changed(content, path, mark)).replace(json.dumps(mark), text)


def changed(content: Any, path: Place, value: Any) -> Any:
    result = copy.deepcopy(content)
    within(result, path[:-1])[path[-1]] = value
    return result


def without(content: Any, path: Place) -> Any:
    result = copy.deepcopy(content)
    del within(result, path[:-1])[path[-1]]
    return result


def with_more(content: Any, path: Place) -> Any:
    result = copy.deepcopy(content)
    place = within(result, path[:-1])
    if isinstance(place, dict):
        place[f"{path[-1]}\n"] = 1
    else:
        place.append(place[0])
    return result


def within(content: Any, path: Place) -> Any:
    for key in path:
        content = content[key]
    return content
