"""nn/program/lifetimes.py: arrays in use at once lie apart, others share memory."""

from dataclasses import replace

import numpy as np
import pytest

from nn.launch.elementwise import Zeros
from nn.program.lifetimes import Lifetime, end_of_use, place_by_lifetime
from nn.program.operations import FORWARD, FinishRedistribution, Operation, StartRedistribution
from pyrt.arrays import ALIGNMENT, DeviceArray
from pyrt.driver.null import DeviceProperties, NullDriver
from pyrt.redistribute import Redistribution


def end(begins, arrays):
    return max(begin + nbytes for begin, (nbytes, _) in zip(begins, arrays, strict=True))


def load(arrays):
    """The bytes that are in use at once."""
    items = range(max(life.last for _, life in arrays) + 1)
    return max(sum(nbytes for nbytes, life in arrays if life.first <= item <= life.last) for item in items)


def random_arrays(rng, count):
    """Arrays of bytes that are not all whole lines, some of them empty, with random lifetimes."""
    arrays = []
    for _ in range(count):
        first = int(rng.integers(0, 20))
        life = Lifetime(first, first + int(rng.integers(0, 8)))
        arrays.append((int(rng.integers(0, 5000) * rng.integers(0, 5)), life))
    return arrays


@pytest.mark.parametrize("seed", range(20))
def test_arrays_in_use_at_once_lie_apart(seed):
    arrays = random_arrays(np.random.default_rng(seed), 40)
    begins = place_by_lifetime(arrays)
    assert begins == place_by_lifetime(arrays) and all(begin % ALIGNMENT == 0 for begin in begins)
    for one, (begin, (nbytes, life)) in enumerate(zip(begins, arrays, strict=True)):
        for other, (start, (size, lives)) in enumerate(zip(begins, arrays, strict=True)):
            if one != other and life.meets(lives):
                assert begin + nbytes <= start or start + size <= begin
    padded = [(-(-nbytes // ALIGNMENT) * ALIGNMENT, life) for nbytes, life in arrays]
    assert load(arrays) <= end(begins, arrays) <= 1.3 * load(padded)


def test_a_chain_takes_the_two_largest_neighbours():
    """Each array is made from the one before it."""
    sizes = [300, 700, 200, 900, 800, 100]
    arrays = [(256 * size, Lifetime(item, item + 1)) for item, size in enumerate(sizes)]
    assert end(place_by_lifetime(arrays), arrays) == 256 * (900 + 800)
    assert place_by_lifetime([]) == []


def test_one_that_reaches_high_may_come_first():
    """Placed by size alone, c would lie above all others."""
    a, b, c = (256 * 3, Lifetime(0, 1)), (256 * 3, Lifetime(3, 4)), (256 * 2, Lifetime(1, 3))
    d = (256 * 2, Lifetime(2, 2))
    arrays = [a, b, c, d]
    assert end(place_by_lifetime(arrays), arrays) == load(arrays) == 256 * 5


def test_lifetimes_that_share_one_item_meet():
    assert Lifetime(0, 2).meets(Lifetime(2, 3)) and Lifetime(2, 3).meets(Lifetime(0, 2))
    assert not Lifetime(0, 1).meets(Lifetime(2, 3)) and not Lifetime(2, 3).meets(Lifetime(0, 1))
    assert Lifetime(1, 2).until(4) == Lifetime(1, 4) and Lifetime(1, 2).until(0) == Lifetime(1, 2)


def test_a_move_is_in_use_until_it_ends():
    array = DeviceArray.empty(NullDriver(DeviceProperties()), (2, 2), np.float32)
    zeros = Operation("zeros", FORWARD, Zeros(array))
    start, other = (
        StartRedistribution("move", FORWARD, Redistribution((2, 2), "rows", "whole"), array, array)
        for _ in range(2)
    )
    items = [start, zeros, FinishRedistribution(other), FinishRedistribution(start), zeros]
    assert [end_of_use(items, place) for place in range(len(items))] == [3, 1, 2, 3, 4]
    assert end_of_use([start, zeros, zeros], 0) == 2


def test_what_runs_beside_others_is_in_use_until_they_wait():
    array = DeviceArray.empty(NullDriver(DeviceProperties()), (2, 2), np.float32)
    zeros = Operation("zeros", FORWARD, Zeros(array))
    beside, waiting = replace(zeros, beside=True), replace(zeros, waits_for_beside=True)
    items = [zeros, beside, zeros, beside, zeros, waiting, beside, zeros]
    assert [end_of_use(items, place) for place in range(len(items))] == [0, 4, 2, 4, 4, 5, 7, 7]
