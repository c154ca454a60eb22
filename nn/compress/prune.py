"""Chooses the weights of a layer that go: those of least magnitude (Han, Pool, Tran and Dally 2015).

Shares count of all weights of a layer, those that are 0 already among them. Biases stay.
"""

from __future__ import annotations

import numpy as np


def prune_share(W: np.ndarray, share: float) -> np.ndarray:
    """Return W with the ``share`` of its weights that are least in magnitude at 0.

    Exactly ``round(share * W.size)`` go, of equal ones the first; where more are 0 already, these.
    """
    count = round(share * W.size)
    if count == 0:
        return W.copy()
    result = W.reshape(-1).copy()
    result[np.argsort(np.abs(result), kind="stable")[:count]] = 0
    return result.reshape(W.shape)


def prune_below_deviation(W: np.ndarray, quality: float) -> np.ndarray:
    """Return W with all weights at 0 that are less than ``quality`` standard deviations in magnitude.

    The deviation is that of the weights that are not 0, so that a second round prunes again.
    """
    left = W[W != 0].astype(np.float64)
    if not left.size:
        return W.copy()
    return np.where(np.abs(W) < quality * left.std(), W.dtype.type(0), W)


def share_after(rounds_done: int, rounds: int, share: float) -> float:
    """Return the share pruned after some of the rounds: each leaves the same part of what it finds."""
    return 1 - (1 - share) ** (rounds_done / rounds)
