"""Strips of a matrix are packed and unpacked as NumPy does it."""

import numpy as np
import pytest

from pyrt.arrays import DeviceArray
from pyrt.redistribute.packing import Packing, bind_kernel
from pyrt.redistribute.regions import Region
from pyrt.redistribute.slices import VEC4

CASES = {
    # rows and columns of the memory, the columns that the matrix has of it, parts of the matrix
    "aligned": ((9, 24), (4, 20), [Region((0, 9), (0, 8)), Region((0, 9), (8, 16))]),
    "ragged": ((7, 23), (3, 20), [Region((0, 7), (0, 6)), Region((0, 7), (6, 11)), Region((0, 7), (11, 17))]),
    "empty ones, and one number": ((5, 4), (1, 3), [Region((0, 0), (0, 2)), Region((4, 5), (1, 2))]),
    "no gaps, at an odd place": (
        (11, 3),
        (0, 3),
        [Region((1, 5), (0, 3)), Region((5, 11), (0, 2))],
    ),
    "long": ((3, 5000), (0, 4999), [Region((0, 3), (0, 3001)), Region((0, 2), (3001, 4998))]),
}


@pytest.mark.sanitizer
@pytest.mark.parametrize("case", CASES)
def test_packing_and_unpacking(driver, dtype, case):
    shape, columns, parts = CASES[case]
    host = np.random.default_rng(1).standard_normal(shape).astype(dtype)
    memory = DeviceArray.from_host(driver, host)
    matrix = memory.columns(*columns)
    packing = Packing.of(matrix, parts)
    assert not packing.is_array
    assert all(start % VEC4 == 0 for start in packing.starts)
    packed = DeviceArray.from_host(driver, np.full(packing.size, np.nan, dtype))
    stream = driver.create_stream()
    bind_kernel("pack", matrix, packing, packed)(stream)
    values = packed.to_host()
    expected = np.full(shape, -7, dtype)
    for part, start in packing.apart().items():
        rows, (first, last) = slice(*part.rows), part.columns
        place = rows, slice(columns[0] + first, columns[0] + last)
        assert values[start : start + part.size].tobytes() == host[place].tobytes()
        expected[place] = host[place]

    memory.set(np.full(shape, -7, dtype))
    bind_kernel("unpack", matrix, packing, packed)(stream)
    assert memory.to_host().tobytes() == expected.tobytes()


def test_whole_rows_of_an_array_without_gaps_are_packed_already(driver):
    matrix = DeviceArray.from_host(driver, np.zeros((6, 5), "f4"))
    packing = Packing.of(matrix, [Region((0, 4), (0, 5)), Region((4, 4), (0, 5)), Region((4, 6), (0, 5))])
    assert packing.is_array
    assert (packing.counts, packing.starts, packing.size) == ([20, 0, 10], [0, 20, 20], 30)
