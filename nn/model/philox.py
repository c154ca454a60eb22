"""Random numbers by counting: Philox 4x32-10, four words of 32 bits for each counter and key.

Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011: ten rounds of products
by two constants, whose upper halves are mixed with the key. It passes TestU01's BigCrush. A word follows from
its counter alone, so ranks draw the same ones whichever they have (kernels/nn/philox.cuh).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

ROUNDS = 10

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = 0x9E3779B9, 0xBB67AE85
"""What the key moves on by from round to round: the golden ratio, and the square root of 3 less 1."""

_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


def philox(counter: Sequence[np.ndarray | int], key: Sequence[int]) -> list[np.ndarray]:
    """Return four arrays of words below 2^32, uint64, from four words of the counter and two of the key."""
    c0, c1, c2, c3 = (np.asarray(word, np.uint64) for word in counter)
    for number in range(ROUNDS):
        k0, k1 = (
            np.uint64((word + number * step) & 0xFFFFFFFF) for word, step in zip(key, _WEYL, strict=True)
        )
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (second >> _HALF) ^ c1 ^ k0, second & _LOW, (first >> _HALF) ^ c3 ^ k1, first & _LOW
    return [c0, c1, c2, c3]
