"""Which rows of the training set are held out for validation: how many, and which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

import numpy as np

from nn.input.dataset import Dataset

TAIL, RANDOM, STRATIFIED = SPLITS = ("tail", "random", "stratified")
"""Ways to choose the rows: the last ones; any; as large a part of each class."""


def split(images: int, val_fraction: float) -> int:
    """Return how many images are for training: all but ``floor(val_fraction * images)``.

    The product is that of the decimal number: 0.29 of 100 is 29, though the float 0.29 is below it.
    """
    numerator, denominator = _ratio(val_fraction)
    return images - images * numerator // denominator


def with_held_out_last(data: Dataset, val_fraction: float, how: str, seed: int) -> Dataset:
    """Return the data set with the rows that validate last: see `held_out_last`."""
    if how == TAIL:
        return data
    order = held_out_last(data.labels, val_fraction, how, seed)
    return replace(data, images=data.images[order], labels=data.labels[order])


def held_out_last(labels: np.ndarray, val_fraction: float, how: str, seed: int) -> np.ndarray:
    """Return all row numbers (n,), the rows that validate last; both parts stay in the order of the rows.

    ``random`` and ``stratified`` draw from PCG64 seeded with (seed, 2), which nothing else draws from.
    """
    n = len(labels)
    if how == TAIL:
        return np.arange(n)
    rank = np.random.default_rng((seed, 2)).permutation(n)
    if how == RANDOM:
        is_held_out = rank < n - split(n, val_fraction)
    else:
        counts = np.bincount(labels)
        by_class = np.lexsort((rank, labels))
        place_in_class = np.arange(n) - (np.cumsum(counts) - counts)[labels[by_class]]
        is_held_out = np.empty(n, bool)
        is_held_out[by_class] = (
            place_in_class < np.array(shares(counts.tolist(), val_fraction))[labels[by_class]]
        )
    return np.argsort(is_held_out, kind="stable")


def shares(counts: Sequence[int], val_fraction: float) -> list[int]:
    """Return how many rows of each class validate, of so many; together as many as without classes.

    Each class gives the floor of its fraction. What is missing then comes from the classes with the largest
    remainders, one row each, and from a class whose last row that would be only where there is no other.
    """
    numerator, denominator = _ratio(val_fraction)
    floors, remainders = zip(*(divmod(count * numerator, denominator) for count in counts), strict=True)
    missing = sum(counts) - split(sum(counts), val_fraction) - sum(floors)

    def order(label: int) -> tuple[bool, bool, int]:
        is_last = counts[label] - floors[label] == 1
        return remainders[label] == 0, is_last, -remainders[label]

    first = set(sorted(range(len(counts)), key=order)[:missing])
    return [floor + (label in first) for label, floor in enumerate(floors)]


def _ratio(fraction: float) -> tuple[int, int]:
    """Return numerator and denominator of the shortest decimal number that stands for this float."""
    return Decimal(str(fraction)).as_integer_ratio()
