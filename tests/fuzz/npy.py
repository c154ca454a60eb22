"""Damaged .npy files, the members of an npz: headers that lie, other types, shapes and values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.fuzz.damage import Case, Trap
from tests.fuzz.packing import pack_npy


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
    good = header_of(array.dtype.str, array.shape)
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


def header_of(descr: str, shape: tuple[int, ...]) -> str:
    return f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"


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
