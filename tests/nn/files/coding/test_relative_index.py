"""nn/files/coding/relative_index.py: gaps of a few bits, and fillers in those that are longer."""

import numpy as np
import pytest

from nn.files.coding import relative_index
from nn.files.coding.bits import Damaged


def slowly(places, bits):
    """The entries one by one: gap - 1, and whether it is a filler."""
    reach, at, entries = 1 << bits, -1, []
    for place in places:
        while place - at > reach:
            entries.append((reach - 1, True))
            at += reach
        entries.append((place - at - 1, False))
        at = place
    return entries


@pytest.mark.parametrize("bits", [1, 2, 4, 5, 8, 16])
@pytest.mark.parametrize("density", [1.0, 0.5, 0.08, 0.002])
def test_places_come_back_by_the_fewest_fillers(bits, density):
    places = np.flatnonzero(np.random.default_rng(bits).random(5000) < density)
    stored, is_filler = relative_index.encode(places, bits)
    assert list(zip(stored.tolist(), is_filler.tolist(), strict=True)) == slowly(places.tolist(), bits)
    np.testing.assert_array_equal(relative_index.decode(stored, is_filler, 5000), places)


@pytest.mark.parametrize(
    ("places", "stored"),
    [
        ([], []),
        ([0], [0]),
        ([15], [15]),
        ([16], [15, 0]),
        ([15, 31], [15, 15]),
        ([31, 32], [15, 15, 0]),
        ([32], [15, 15, 0]),
    ],
)
def test_four_bits_reach_a_gap_of_16(places, stored):
    found, is_filler = relative_index.encode(np.array(places, np.int64), 4)
    assert found.tolist() == stored
    assert is_filler.sum() == len(stored) - len(places)


def test_the_example_of_the_paper():
    """Figure 2: weights at 1, 4 and 15 in 3 bits; a filler 8 places behind the second."""
    stored, is_filler = relative_index.encode(np.array([1, 4, 15]), 3)
    assert stored.tolist() == [1, 2, 7, 2]
    assert is_filler.tolist() == [False, False, True, False]


def test_gaps_far_beyond_the_reach_and_the_end_of_a_large_array():
    places = np.array([0, 10**6, 10**6 + 1, 3 * 10**6])
    for bits in (1, 4, 16):
        stored, is_filler = relative_index.encode(places, bits)
        np.testing.assert_array_equal(relative_index.decode(stored, is_filler, 3 * 10**6 + 1), places)
        with pytest.raises(Damaged):
            relative_index.decode(stored, is_filler, 3 * 10**6)


def test_places_beyond_32_bits():
    """65,537 fillers of 16 bits."""
    places = np.array([3, (1 << 32) + 70_000])
    stored, is_filler = relative_index.encode(places, 16)
    np.testing.assert_array_equal(relative_index.decode(stored, is_filler, 1 << 33), places)


def test_a_filler_outside_the_array_is_refused():
    with pytest.raises(Damaged):
        relative_index.decode(np.array([0, 15], np.uint16), np.array([False, True]), 16)
