"""An asymmetric numeral system (rANS, Duda 2013, arXiv 1311.2540), beside Huffman codes; nothing decodes it.

Several states take symbols in turn, each of 64 bits, from 2**31 up; they shed words of 32 bits.
"""

from __future__ import annotations

import numpy as np

SCALE_BITS = 20
"""Frequencies add up to 2**20."""

SYMBOLS_OF_A_STATE = 1 << 13
"""So many that the 8 bytes of a state count little, and that the loop below is short."""

_LOWEST_BITS, _WORD_BITS = 31, 32


def frequencies(counts: np.ndarray) -> np.ndarray:
    """Scale counts (n,) to frequencies that add up to 2**20, uint64; those of what occurs are at least 1."""
    used = counts > 0
    spare = (1 << SCALE_BITS) - int(used.sum())
    scaled = used + counts.astype(np.int64) * spare // counts.sum()
    scaled[counts.argmax()] += (1 << SCALE_BITS) - scaled.sum()
    return scaled.astype(np.uint64)


def encode(symbols: np.ndarray) -> bytes:
    """Encode symbols (n,) of an integer dtype; n is not 0, and the table of frequencies is left out.

    Returns the last states, uint64, then the words, uint32, in the order in which a decoder takes them. State
    s has the symbols s, s + k, s + 2 k, .. of k states.
    """
    frequency = frequencies(np.bincount(symbols))
    below = np.cumsum(frequency) - frequency
    count = -(-len(symbols) // SYMBOLS_OF_A_STATE)
    states = np.full(count, 1 << _LOWEST_BITS, np.uint64)
    words = []
    for start in reversed(range(0, len(symbols), count)):
        row = symbols[start : start + count]
        state, of_each = states[: len(row)], frequency[row]
        full = state >= of_each << np.uint64(_LOWEST_BITS + _WORD_BITS - SCALE_BITS)
        words.append(state[full].astype(np.uint32))
        state[full] >>= np.uint64(_WORD_BITS)
        state[:] = (state // of_each << np.uint64(SCALE_BITS)) + state % of_each + below[row]
    return states.tobytes() + b"".join(part.tobytes() for part in reversed(words))
