"""Damaged .npz files: zips whose records lie, odd and repeated members, members that inflate without end."""

from __future__ import annotations

import functools
import io
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from tests.fuzz.damage import NAMES, Case, Making, damaged, patched
from tests.fuzz.npy import header_of, npy, npys, values
from tests.fuzz.packing import Members, pack_zip
from tests.fuzz.readers import Reader


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


def members(packed: Members, arrays: Mapping[str, np.ndarray], canary: Path) -> Iterator[Making]:
    """Good zips around a member that is none, or that lies: the first."""
    (first, array), *_ = arrays.items()
    with_first = functools.partial(functools.partial, _with_member, packed, first)
    content = packed[f"{first}.npy"]
    start = content.index(b"\n") + 1
    for what, head in damaged(content[:start]):
        yield f"{first}: {what}", with_first(head + content[start:])
    for number, (what, changed) in enumerate(npys(array, canary)):
        yield f"{first}: {what}", with_first(changed, packing=PACKINGS[number % 2])


def other_values(packed: Members, arrays: Mapping[str, np.ndarray]) -> Iterator[Making]:
    """Good zips with another array in the place of each."""
    for name, array in arrays.items():
        for what, changed in values(array):
            yield f"{name}: {what}", functools.partial(_with_member, packed, name, changed)


def _with_member(packed: Members, name: str, content: bytes, packing: int = zipfile.ZIP_STORED) -> bytes:
    return pack_zip({**packed, f"{name}.npy": content}, packing)


MEGABYTE, GIGABYTES = 1 << 20, 2 << 30


def bombs(reader: Reader) -> Iterator[Case]:
    """Zips of 2 MB with a member that inflates to 2 GiB of zeros, beside the others or in the place of one.

    Not one that is an array of the data: that many zeros may be what a user has.
    """
    name, array = next(iter(reader.members.items()))
    bomb = functools.partial(pack_bomb, reader.packed_members)
    good = npy(header_of(array.dtype.str, array.shape), b"")
    flat = npy(header_of("|u1", (GIGABYTES,)), b"")
    letters = (GIGABYTES - 1) // 4
    text = npy(header_of(f"<U{letters}", ()), b"")
    yield "a header without end", bomb(f"{name}.npy", npy("", b"", (2, 0), 2**32 - 1))
    yield "more than the header tells", bomb(f"{name}.npy", good)
    yield "more than header and zip tell", bomb(f"{name}.npy", good, told=array.nbytes)
    yield "unwanted", bomb("more.npy", flat)
    yield "text", bomb("run.npy", text, letters * 4)
    if reader.name != "npz":
        itemsize = GIGABYTES // array.size
        wide = npy(header_of(f"|V{itemsize}", array.shape), b"")
        yield "another shape", bomb(f"{name}.npy", flat)
        yield "another type", bomb(f"{name}.npy", wide, itemsize * array.size)


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
