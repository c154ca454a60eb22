"""nn/input/validation_split.py: how many rows validate, and which."""

from __future__ import annotations

import numpy as np
import pytest

from nn.input.validation_split import SPLITS, STRATIFIED, TAIL, held_out_last, shares, split


@pytest.mark.parametrize(
    ("images", "fraction", "training"),
    [(4000, 0.1, 3600), (10, 0.0, 10), (10, 0.19, 9), (10, 0.2, 8), (3, 0.99, 1), (1, 0.5, 1)],
)
def test_split_holds_out_the_floor_of_the_fraction(images: int, fraction: float, training: int) -> None:
    assert split(images, fraction) == training


def test_the_fraction_is_the_decimal_number_that_was_typed() -> None:
    """0.29 of 100 is 29, though the float 0.29 is below it; so for all hundredths and thousandths."""
    assert [100 - split(100, fraction) for fraction in (0.29, 0.57, 0.58)] == [29, 57, 58]
    for images in (50, 90, 100, 1000, 60000):
        for part in range(1000):
            assert images - split(images, float(f"0.{part:03}")) == images * part // 1000
    assert 60000 - split(60000, 1e-5) == 0 and 10**6 - split(10**6, 1e-5) == 10


@pytest.mark.parametrize("fraction", [0.5, 0.99, np.nextafter(1, 0)])
def test_split_always_leaves_a_training_image(fraction: float) -> None:
    assert all(1 <= split(images, fraction) <= images for images in range(1, 500))


LABELS = np.repeat(np.arange(7, dtype=np.int32), [0, 1, 2, 13, 40, 90, 454])  # sorted, class 0 missing


@pytest.mark.parametrize("how", SPLITS)
@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.29, 0.9])
def test_every_row_is_there_once_and_both_parts_are_in_order(how: str, fraction: float) -> None:
    order = held_out_last(LABELS, fraction, how, 5)
    first = split(600, fraction)
    assert sorted(order) == list(range(600))
    assert (np.diff(order[:first]) > 0).all() and (np.diff(order[first:]) > 0).all()
    assert (order == np.arange(600)).all() == (how == TAIL or fraction == 0)
    assert (order == held_out_last(LABELS, fraction, how, 5)).all()
    if how != TAIL and fraction:
        assert (order != held_out_last(LABELS, fraction, how, 6)).any()


def test_what_was_drawn_stays_what_is_drawn() -> None:
    """A checkpoint's run goes on with the rows that it began with."""
    assert [held_out_last(LABELS[:20], 0.3, how, 0)[14:].tolist() for how in SPLITS] == [
        [14, 15, 16, 17, 18, 19],
        [4, 6, 7, 10, 16, 17],
        [1, 4, 6, 7, 10, 17],
    ]


def test_stratified_holds_out_as_large_a_part_of_each_class() -> None:
    order = held_out_last(LABELS, 0.29, STRATIFIED, 0)
    held_out = np.bincount(LABELS[order[split(600, 0.29) :]], minlength=7)
    assert held_out.tolist() == [0, 0, 0, 4, 12, 26, 132]  # of 0, .29, .58, 3.77, 11.6, 26.1, 131.66
    assert all(LABELS[order[: split(600, 0.29)]] != 0)


@pytest.mark.parametrize(
    ("counts", "fraction", "expected"),
    [
        ([10, 10, 10], 0.1, [1, 1, 1]),
        ([100, 50], 0.58, [58, 29]),
        ([15, 15, 15], 0.1, [2, 1, 1]),  # floor(4.5), of equal remainders the first
        ([4, 1, 1], 0.5, [2, 1, 0]),  # a class's last row, where no other has a remainder
        ([1, 1, 3], 0.5, [0, 0, 2]),  # else not
        ([0, 7], 0.3, [0, 2]),
        ([5, 5], 0.0, [0, 0]),
    ],
)
def test_shares_are_floors_and_the_largest_remainders(
    counts: list[int], fraction: float, expected: list[int]
) -> None:
    assert shares(counts, fraction) == expected


def test_shares_are_within_one_of_the_fraction_and_add_up() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        counts = rng.integers(0, 40, rng.integers(1, 12)).tolist()
        fraction = float(rng.integers(0, 100)) / 100
        found = shares(counts, fraction)
        assert sum(found) == sum(counts) - split(sum(counts), fraction)
        assert all(abs(share - fraction * count) < 1 for share, count in zip(found, counts, strict=True))
        assert all(0 <= share <= count for share, count in zip(found, counts, strict=True))
