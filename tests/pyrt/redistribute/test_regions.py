"""pyrt/redistribute/regions.py: the parts of a matrix fall to the ranks without gap or overlap."""

from __future__ import annotations

import numpy as np
import pytest

from pyrt.redistribute.regions import SPREADS, Region, region, share

SHAPES = [(1, 1), (7, 5), (2, 9), (12, 8), (0, 3)]


@pytest.mark.parametrize("ranks", range(1, 9))
@pytest.mark.parametrize("size", [0, 1, 3, 7, 8, 1000])
def test_shares_cover_all_and_the_first_ranks_have_one_more(size: int, ranks: int) -> None:
    parts = [share(size, ranks, rank) for rank in range(ranks)]
    assert [index for part in parts for index in range(*part)] == list(range(size))
    sizes = [stop - start for start, stop in parts]
    assert sizes == [size // ranks + (rank < size % ranks) for rank in range(ranks)]


def cells(shape: tuple[int, int], part: Region) -> np.ndarray:
    """A matrix with 1 where the region is."""
    marked = np.zeros(shape, int)
    marked[slice(*part.rows), slice(*part.columns)] += 1
    return marked


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ranks", range(1, 6))
def test_the_regions_of_all_ranks_are_the_matrix(shape: tuple[int, int], ranks: int) -> None:
    for spread in SPREADS:
        parts = [region(spread, shape, ranks, rank) for rank in range(ranks)]
        held = np.array(sum(cells(shape, part) for part in parts))
        assert np.all(held == (ranks if spread == "whole" else 1))
        assert [part.size for part in parts] == [cells(shape, part).sum() for part in parts]


@pytest.mark.parametrize("ranks", range(1, 6))
def test_rows_that_stay_together_are_of_one_rank(ranks: int) -> None:
    for rank in range(ranks):
        plain, images = region("rows", (7, 5), ranks, rank), region("rows", (28, 5), ranks, rank, together=4)
        assert images == Region((4 * plain.rows[0], 4 * plain.rows[1]), plain.columns)
        assert region("columns", (28, 5), ranks, rank, together=4) == region("columns", (28, 5), ranks, rank)


@pytest.mark.parametrize("shape", SHAPES)
def test_an_intersection_is_what_both_have(shape: tuple[int, int]) -> None:
    for ranks in (2, 3, 4):
        parts = [region(spread, shape, ranks, rank) for spread in SPREADS for rank in range(ranks)]
        for one in parts:
            for other in parts:
                both = one.intersection(other)
                assert min(both.shape) >= 0
                assert np.array_equal(cells(shape, both), cells(shape, one) * cells(shape, other))


def test_a_region_within_another_is_counted_from_its_start() -> None:
    assert Region((5, 9), (2, 3)).within(Region((4, 10), (2, 8))) == Region((1, 5), (0, 1))


def test_what_is_no_spread_is_refused() -> None:
    with pytest.raises(ValueError, match="'diagonal' is no spread: rows, columns, whole are"):
        region("diagonal", (2, 2), 2, 0)
