"""Places of weights as gaps of a few bits each (Han et al. 2016, section 2 and figure 2).

An entry stores gap - 1: 4 bits reach the gaps 1 to 16. The first gap is counted from place -1. A longer gap
is cut: fillers, entries of weight zero, are put in, each at the full reach from the entry before it.
"""

from __future__ import annotations

import numpy as np

from nn.files.coding.bits import Damaged

INDEX_BITS = range(1, 17)
"""Bits that an index may take."""


def encode(places: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Encode places (n,), ascending, in gaps of ``bits`` bits, 1 to 16.

    Returns of each entry gap - 1, uint16, and whether it is a filler, bool.
    """
    gaps = np.diff(places, prepend=-1) - 1
    before = gaps >> bits  # fillers before each weight
    at = np.arange(len(places)) + np.cumsum(before)
    entries = len(places) + int(before.sum())
    stored = np.full(entries, (1 << bits) - 1, np.uint16)
    is_filler = np.ones(entries, bool)
    stored[at] = gaps & ((1 << bits) - 1)
    is_filler[at] = False
    return stored, is_filler


def decode(stored: np.ndarray, is_filler: np.ndarray, size: int) -> np.ndarray:
    """Return the places, int64, ascending, of the entries that are no fillers.

    Raises Damaged where one of them is not below ``size``.
    """
    places = np.cumsum(stored, dtype=np.int64)
    places += np.arange(len(stored))
    if len(places) and places[-1] >= size:
        raise Damaged("a weight lies outside its array")
    return places[~is_filler]
