"""Arguments of launches: which go to a parameter of which type, and how they are packed."""

from __future__ import annotations

import ctypes
import re
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest

from pyrt.arrays import DeviceArray
from pyrt.driver.cpu import CpuDriver
from pyrt.kernels.c_types import CType, Parameter, c_type, pack
from tests.mpi import ROOT


def value(dtype: str, components: int = 1) -> Parameter:
    return Parameter("v", CType(np.dtype(dtype), components))


class TestTypes:
    @pytest.mark.parametrize(
        ("words", "dtype"),
        [
            ("unsigned long long int", "uint64"),
            ("long long", "int64"),
            ("long unsigned", "uint64"),
            ("signed short int", "int16"),
            ("signed", "int32"),
            ("unsigned int", "uint32"),
            ("signed char", "int8"),
            ("unsigned char", "uint8"),
            ("bool", "bool"),
            ("half", "float16"),
            ("double", "float64"),
            ("uint8_t", "uint8"),
            ("int64_t", "int64"),
            ("size_t", "uint64"),
            ("ushort", "uint16"),
        ],
    )
    def test_numbers_in_any_order_of_words(self, words: str, dtype: str) -> None:
        for order in permutations(words.split()):
            assert c_type(order) == CType(np.dtype(dtype))

    def test_numbers_are_those_of_the_table_in_the_docs(self) -> None:
        text = (ROOT / "docs" / "reference" / "kernel_files.md").read_text().split("## Parameters")[1]
        rows = [line.split("|")[1:4] for line in text.splitlines() if line.startswith("| `")]
        for names, _, arrays in rows[:9]:
            found = [c_type(name.split()) for name in re.findall(r"`([^`<]+)`", names)]
            assert {str(one.dtype) for one in found} == set(arrays.strip().split("; "))
        assert rows[9][0].startswith(" `half2`")

    @pytest.mark.parametrize("words", ["", "void", "Pair", "long double", "float4 float4", "short short"])
    def test_others_are_none(self, words: str) -> None:
        assert c_type(words.split()) is None

    @pytest.mark.parametrize(
        ("name", "components", "dtype", "alignment"),
        [
            ("char2", 2, "i1", 2),
            ("uchar3", 3, "u1", 1),
            ("uchar4", 4, "u1", 4),
            ("short4", 4, "i2", 8),
            ("ushort2", 2, "u2", 4),
            ("half2", 2, "f2", 4),
            ("int4", 4, "i4", 16),
            ("uint3", 3, "u4", 4),
            ("float2", 2, "f4", 8),
            ("float4", 4, "f4", 16),
            ("double2", 2, "f8", 16),
            ("double3", 3, "f8", 8),
            ("longlong4", 4, "i8", 16),
        ],
    )
    def test_vectors_are_aligned_as_in_cuda(
        self, name: str, components: int, dtype: str, alignment: int
    ) -> None:
        assert c_type([name]) == CType(np.dtype(dtype), components)
        assert CType(np.dtype(dtype), components).alignment == alignment


class TestNumbers:
    @pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
    def test_whole_ones_of_every_width_fit_to_the_last(self, dtype: str) -> None:
        limits = np.iinfo(dtype)
        for number in (limits.min, limits.max, np.dtype(dtype).type(limits.max)):
            assert np.frombuffer(value(dtype).pack(number), dtype) == [number]
        for number in (int(limits.min) - 1, int(limits.max) + 1):
            with pytest.raises(
                TypeError, match=rf"v is a number, whole, from {limits.min} to {limits.max}, not"
            ):
                value(dtype).pack(number)

    @pytest.mark.parametrize("number", [8.0, np.float32(8), True, np.True_, None, "8", np.zeros(1), [8]])
    def test_nothing_else_is_a_whole_number(self, number: object) -> None:
        with pytest.raises(
            TypeError, match="argument v is a number, whole, from -2147483648 to 2147483647, not"
        ):
            value("i4").pack(number)

    @pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
    def test_real_ones(self, dtype: str) -> None:
        for number in (
            3,
            0.25,
            np.float16(0.1),
            np.float32(0.1),
            np.float64(0.1),
            np.int8(3),
            Fraction(1, 3),
        ):
            packed = np.frombuffer(value(dtype).pack(number), dtype)
            assert packed == np.dtype(dtype).type(float(number))
        for number in (np.inf, -np.inf, np.nan, -1e39):
            right = -np.inf if number == -1e39 and dtype != "f8" else number  # as in C
            np.testing.assert_array_equal(np.frombuffer(value(dtype).pack(number), dtype), [right])
        for wrong in (True, None, "0.5", 0.5j, np.zeros(2), 10**400):
            with pytest.raises(TypeError, match="argument v is a number, float"):
                value(dtype).pack(wrong)

    def test_truth(self) -> None:
        assert [value("?").pack(truth) for truth in (True, False, np.True_)] == [b"\1", b"\0", b"\1"]
        for wrong in (1, 0.0, None):
            with pytest.raises(TypeError, match=f"argument v is True or False, not {wrong}"):
                value("?").pack(wrong)

    def test_vectors(self) -> None:
        expected = np.array([1, 2, 3, 4], "f4").tobytes()
        for given in ((1, 2, 3, 4), [1.0, 2, 3, 4], np.array([1, 2, 3, 4]), np.array([1, 2, 3, 4], "f4")):
            assert value("f4", 4).pack(given) == expected
        for wrong in ((1, 2, 3), 1.0, None, np.ones(5), "1"):
            with pytest.raises(TypeError, match="argument v is 4 numbers, not"):
                value("f4", 4).pack(wrong)
        with pytest.raises(TypeError, match="argument v is a number, whole, from 0 to 255, not 256"):
            value("u1", 2).pack((0, 256))


class TestArrays:
    @pytest.fixture
    def x(self, cpu: CpuDriver) -> DeviceArray:
        return DeviceArray.from_host(cpu, np.zeros((3, 5), "f4"))

    def test_go_by_their_address(self, x: DeviceArray) -> None:
        parameter = Parameter("x", CType(np.dtype("f4"), 4), is_array=True)
        assert parameter.pack(x) == x.pointer.to_bytes(8, "little")
        assert parameter.pack(None) == bytes(8)

    def test_begin_where_their_vectors_may(self, x: DeviceArray) -> None:
        parameter = Parameter("x", CType(np.dtype("f4"), 4), is_array=True)
        with pytest.raises(
            TypeError, match="x is an array that begins at a multiple of 16 bytes, which this view"
        ):
            parameter.pack(x.rows(1, 2))
        Parameter("x", CType(np.dtype("f4"), 2), is_array=True).pack(x.rows(2, 3))
        Parameter("x", CType(np.dtype("f4"), 3), is_array=True).pack(x.rows(1, 2))

    @pytest.mark.parametrize("dtype", ["u1", "u4", "i8", "f2", "f8", "?"])
    def test_are_of_the_dtype_that_is_asked(self, cpu: CpuDriver, x: DeviceArray, dtype: str) -> None:
        parameter = Parameter("x", CType(np.dtype(dtype)), is_array=True)
        parameter.pack(DeviceArray.empty(cpu, (3,), dtype))
        with pytest.raises(TypeError, match=f"x is an array of {np.dtype(dtype)}, not float32"):
            parameter.pack(x)


_C = {
    "?": ctypes.c_bool,
    "i1": ctypes.c_int8,
    "u2": ctypes.c_uint16,
    "i4": ctypes.c_int32,
    "u8": ctypes.c_uint64,
    "f4": ctypes.c_float,
    "f8": ctypes.c_double,
}


@pytest.mark.parametrize(
    "kinds",
    [
        "i4 f8 P",
        "i4 P i4",
        "f4 P f8 i4",
        "i1 u2 i1 i4 i1 u8 ? ? f4 i1 P",
        "i4",
        "f8 f4 P i4 P f4 f8",
        "u2 P u2 f8",
    ],
)
def test_arguments_lie_as_in_a_c_structure(cpu: CpuDriver, kinds: str) -> None:
    x = DeviceArray.empty(cpu, (8,), "f4")
    codes = kinds.split()
    fields = [(f"_{i}", ctypes.c_void_p if code == "P" else _C[code]) for i, code in enumerate(codes)]
    structure = type("Arguments", (ctypes.Structure,), {"_fields_": fields})
    given = [x if code == "P" else True if code == "?" else 5 + i for i, code in enumerate(codes)]
    packed = pack(
        [Parameter("x", CType(x.dtype), is_array=True) if code == "P" else value(code) for code in codes],
        given,
    )
    last = getattr(structure, f"_{len(codes) - 1}")
    assert len(packed) == last.offset + last.size
    filled = structure.from_buffer_copy(packed.ljust(ctypes.sizeof(structure), b"\0"))
    assert [getattr(filled, name) for name, _ in fields] == [x.pointer if one is x else one for one in given]


def test_vectors_lie_at_multiples_of_their_alignment() -> None:
    packed = pack(
        [value("i1"), value("f4", 4), value("i1"), value("f4", 3), value("i1"), value("i1", 4)],
        [*(1, (2, 3, 4, 5), 6, (7, 8, 9), 10, (11, 12, 13, 14))],
    )
    assert packed[0] == 1 and packed[32] == 6 and packed[48] == 10
    assert packed[52:] == bytes((11, 12, 13, 14))
    np.testing.assert_array_equal(np.frombuffer(packed[16:32], "f4"), [2, 3, 4, 5])
    np.testing.assert_array_equal(np.frombuffer(packed[36:48], "f4"), [7, 8, 9])
