"""Keeps weights that are 0 at 0, and shared ones equal, while a compressed network trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

NO_VALUE = -1
"""In the place of a code: of a weight that shares no value."""


@dataclass(frozen=True)
class Constraint:
    """Keeps weights that are 0 (pruned) at 0, and weights that share a value equal.

    ``codes`` has, for a layer whose weights share values, the number of each weight's value, whole numbers
    from 0 in the shape of W; `NO_VALUE` for a weight that shares none.

    Both hold by what becomes of the gradients, whatever the optimiser, if its states begin as zeros: a weight
    that is 0 gets no gradient; weights that share a value all get the sum of their gradients, which is that
    of the value (Han, Mao and Dally 2016, equation 3). So equal weights stay equal to the bit.
    """

    codes: Mapping[int, np.ndarray] = field(default_factory=dict)

    def gradient(self, layer: int, W: np.ndarray, dW: np.ndarray) -> np.ndarray:
        """Return what becomes of a layer's weight gradient, which has no weight decay in it yet."""
        result = np.where(W == 0, 0, dW)
        if layer in self.codes:
            codes = self.codes[layer]
            shares = codes != NO_VALUE
            result[shares] = np.bincount(codes[shares], weights=result[shares])[codes[shares]]
        return result

    def members(self, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """List the weights of each value: ``starts`` int32 (values + 1,), and their flat places int32.

        Those of value v are ``places[starts[v]:starts[v + 1]]``, ascending.
        """
        codes = self.codes[layer].reshape(-1)
        shares = np.flatnonzero(codes != NO_VALUE)
        places = shares[np.argsort(codes[shares], kind="stable")]
        starts = np.concatenate([[0], np.cumsum(np.bincount(codes[shares]))])
        return starts.astype(np.int32), places.astype(np.int32)
