"""One compressed array: the places of the weights that are left, and their values, or what they share."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from nn.files.coding.relative_index import INDEX_BITS

MOST_CLUSTERS = 1 << 16


def is_zero(values: np.ndarray) -> np.ndarray:
    """Return which float32 numbers are 0.0 or -0.0: by their bits, as NaN may make comparisons warn."""
    return values.view(np.uint32) << np.uint32(1) == 0


@dataclass(frozen=True, eq=False)
class SharedWeights:
    """An array of which some weights are left, all others are 0.0. ValueError where it contradicts itself.

    Either ``values`` has the weights, or ``codebook`` has the values that weights share and ``codes`` says
    which of them each weight has.
    """

    shape: tuple[int, ...]
    places: np.ndarray
    """(n,) int64: where the weights that are left lie in the flat array, in C order; ascending."""
    index_bits: int
    """Bits of a relative index in a file, 1 to 16."""
    values: np.ndarray | None = None
    """(n,) float32; none of them is 0."""
    codes: np.ndarray | None = None
    """(n,) uint16."""
    codebook: np.ndarray | None = None
    """(k,) float32, at most 65536."""

    def __post_init__(self) -> None:
        if self.index_bits not in INDEX_BITS:
            raise ValueError(f"indices of {self.index_bits} bits: 1 to {INDEX_BITS[-1]} are possible")
        places, size = self.places, self.size
        _require(places, np.int64, "places")
        if len(places) and not (0 <= places[0] <= places[-1] < size and (np.diff(places) > 0).all()):
            raise ValueError(f"places are not ascending, or not within {size} weights")
        if self.values is not None:
            if self.codes is not None or self.codebook is not None:
                raise ValueError("weights have values, or codes and a codebook, not both")
            _require(self.values, np.float32, "values", len(places))
            if is_zero(self.values).any():
                raise ValueError("a weight that is left is 0")
            return
        if self.codes is None or self.codebook is None:
            raise ValueError("weights have neither values nor codes and a codebook")
        _require(self.codes, np.uint16, "codes", len(places))
        _require(self.codebook, np.float32, "the codebook")
        if len(self.codebook) > MOST_CLUSTERS or self.codes.max(initial=0) >= max(1, len(self.codebook)):
            raise ValueError(f"codes, or clusters, beyond a codebook of {len(self.codebook)}")
        if len(self.codes) and not len(self.codebook):
            raise ValueError("codes of an empty codebook")

    @classmethod
    def of_dense(cls, array: np.ndarray, index_bits: int = 0) -> SharedWeights:
        """Compress a float32 array, in which 0.0 means pruned. -0.0 does too, and becomes 0.0.

        ``index_bits``: 0 takes the paper's, 8 for filters and 5 for matrices.
        """
        if array.dtype != np.float32:
            raise ValueError(f"weights of {array.dtype}: only float32 is compressed")
        flat = array.reshape(-1)
        places = np.flatnonzero(~is_zero(flat)).astype(np.int64)
        return cls(array.shape, places, index_bits or (8 if array.ndim > 2 else 5), flat[places])

    def shared(self, codebook: np.ndarray, codes: np.ndarray) -> SharedWeights:
        """Return the same places with shared weights: codebook (k,) float32, and codes (n,) uint16."""
        return replace(self, values=None, codes=codes, codebook=codebook)

    @property
    def size(self) -> int:
        """Weights, pruned or not."""
        return math.prod(self.shape)

    @property
    def is_full(self) -> bool:
        """Return whether nothing is pruned."""
        return len(self.places) == self.size

    @property
    def weights(self) -> np.ndarray:
        """Return the weights that are left (n,) float32."""
        if self.values is not None:
            return self.values
        assert self.codebook is not None and self.codes is not None
        return self.codebook[self.codes]

    def dense(self) -> np.ndarray:
        """Return the array, float32, all of it."""
        flat = np.zeros(self.size, np.float32)
        flat[self.places] = self.weights
        return flat.reshape(self.shape)


def _require(array: np.ndarray, dtype: type, name: str, length: int | None = None) -> None:
    """ValueError unless it is a vector of this dtype, and of this length where one is given."""
    if array.dtype != dtype or array.ndim != 1 or length not in (None, len(array)):
        raise ValueError(f"{name} of {array.dtype} {array.shape}: want {np.dtype(dtype)} ({length or 'n'},)")
