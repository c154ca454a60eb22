"""A sparse matrix whose weights share the numbers of a codebook, as kernels/sparse/csr.cuh reads it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pyrt.arrays import DeviceArray
from pyrt.driver import Driver

CODES = 256
"""Numbers that a codebook has room for: a code is a byte."""

OCTET = 8
"""Entries that kernels load together: arrays of entries end at a multiple of it."""

MOST_WEIGHTS = 2**30
"""Places of entries are int32, and kernels look a little beyond the last."""

BANKS = LANES = 32
"""Banks of shared memory, a float each; lanes of a warp."""

SHORT_INDEX = 65536
"""Columns up to which an index into them takes 2 bytes."""


@dataclass(frozen=True, eq=False)
class Csr:
    """A matrix W (units, inputs) in compressed sparse rows, the longest row first; NumPy arrays.

    Parameters
    ----------
    shape: (units, inputs) of W
    starts: (units + 1,) int32; row r has the entries ``starts[r]`` to ``starts[r + 1]``
    unit_of: (units,) int32, the row of W that row r is
    columns: (entries,) uint16, or int32 for more than 65536 inputs
    codes: (entries,) uint8, indices into the codebook; entries are filled up to a multiple of 8 with zeros
    codebook: (256,) float32, filled up with zeros
    ascending: whether the columns of each row ascend, as in what `csr_of` makes
    """

    shape: tuple[int, int]
    starts: np.ndarray
    unit_of: np.ndarray
    columns: np.ndarray
    codes: np.ndarray
    codebook: np.ndarray
    ascending: bool = True

    @property
    def weights(self) -> int:
        """Count the weights that are left."""
        return int(self.starts[-1])

    @property
    def nbytes(self) -> int:
        """Count the bytes that a product must read of it."""
        entries = self.weights * (self.columns.itemsize + self.codes.itemsize)
        return entries + self.starts.nbytes + self.unit_of.nbytes + self.codebook.nbytes

    @property
    def rows(self) -> np.ndarray:
        """Return the row of each weight, (weights,) int64."""
        return np.repeat(np.arange(self.shape[0]), np.diff(self.starts))

    def cuts(self, width: int) -> np.ndarray:
        """Cut each row where tiles of so many columns end: (tiles + 1, units) int32.

        Of row r the entries ``cuts[t, r]`` to ``cuts[t + 1, r]`` lie in tile t. Raises ValueError for rows
        that do not ascend.
        """
        if not self.ascending:
            raise ValueError("csr: rows that are interleaved have no tiles")
        units, inputs = self.shape
        tiles = -(-inputs // width)
        tile = self.columns[: self.weights].astype(np.int64) // width
        counts = np.bincount(tile * units + self.rows, minlength=tiles * units).reshape(tiles, units)
        first = self.starts[None, :-1]
        return np.concatenate([first, first + counts.cumsum(axis=0)]).astype(np.int32)

    def interleaved(self) -> Csr:
        """Reorder the entries of each row, so that the lanes of a warp look up inputs in different banks.

        Lanes that look up their j-th entries at once get entries of neighbouring turns: first an entry of
        each bank, then another one, and so on. At 4% of 25088 inputs a look-up then takes 1.5 turns of shared
        memory in place of 3.4.
        """
        row, bank = self.rows, self.columns[: self.weights].astype(np.int64) % BANKS
        place = np.arange(self.weights) - self.starts[row] // OCTET * OCTET
        block, within = np.divmod(place, LANES * OCTET)
        read = within % OCTET * LANES + within // OCTET + block * (LANES * OCTET)
        order = np.empty(self.weights, np.int64)
        order[_sorted(row, read)] = _sorted(row, _turns(row * BANKS + bank) * BANKS + bank)
        columns, codes = self.columns.copy(), self.codes.copy()
        columns[: self.weights], codes[: self.weights] = columns[order], codes[order]
        return replace(self, columns=columns, codes=codes, ascending=False)

    def dense(self) -> np.ndarray:
        """Return W, float32."""
        W = np.zeros(self.shape, np.float32)
        count = self.weights
        W[self.unit_of[self.rows], self.columns[:count]] = self.codebook[self.codes[:count]]
        return W


def csr_of(shape: tuple[int, int], places: np.ndarray, codes: np.ndarray, codebook: np.ndarray) -> Csr:
    """Pack the weights that are left of W into sparse rows.

    Parameters
    ----------
    shape: (units, inputs) of W
    places: (weights,) integers, ascending: flat places in W, row by row, of the weights that are left
    codes: (weights,) integers below the length of the codebook
    codebook: (1 to 256,) float32, the numbers that weights share; empty only if no weight is left

    Raises ValueError where these do not fit each other.
    """
    units, inputs = shape
    places, codes = np.asarray(places, np.int64), np.asarray(codes)
    _require_fits(units * inputs, places, codes, codebook)
    row, column = np.divmod(places, max(1, inputs))
    lengths = np.bincount(row, minlength=units)
    unit_of = np.argsort(-lengths, kind="stable")
    starts = np.concatenate([[0], lengths[unit_of].cumsum()])
    source = _in_order(lengths, unit_of, starts)
    index = np.uint16 if inputs <= SHORT_INDEX else np.int32
    return Csr(
        (units, inputs),
        starts.astype(np.int32),
        unit_of.astype(np.int32),
        _filled(column[source].astype(index)),
        _filled(codes[source].astype(np.uint8)),
        np.concatenate([codebook, np.zeros(CODES - len(codebook))]).astype(np.float32),
    )


def _in_order(lengths: np.ndarray, unit_of: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return where each entry of the sorted rows comes from."""
    before = np.concatenate([[0], lengths.cumsum()])[unit_of]
    return np.repeat(before - starts[:-1], lengths[unit_of]) + np.arange(starts[-1])


def _sorted(row: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Return the order that sorts entries by row, and then by key."""
    return np.argsort(row * (key.max(initial=0) + 1) + key, kind="stable")


def _turns(kind: np.ndarray) -> np.ndarray:
    """Count for each entry those before it of the same kind."""
    order = np.argsort(kind, kind="stable")
    counts = np.bincount(kind)
    first = np.repeat(counts.cumsum() - counts, counts)
    turns = np.empty(len(kind), np.int64)
    turns[order] = np.arange(len(kind)) - first
    return turns


def _filled(entries: np.ndarray) -> np.ndarray:
    """Fill up with zeros to a multiple of `OCTET`, one at least."""
    length = max(1, -(-len(entries) // OCTET)) * OCTET
    return np.concatenate([entries, np.zeros(length - len(entries), entries.dtype)])


def _require_fits(size: int, places: np.ndarray, codes: np.ndarray, codebook: np.ndarray) -> None:
    """Raise ValueError for a mistake in what `csr_of` is given."""
    if places.ndim != 1 or codes.shape != places.shape or len(places) > MOST_WEIGHTS:
        raise ValueError(f"csr: {places.shape} places and {codes.shape} codes; 2^30 at most, a code each")
    if codebook.ndim != 1 or len(codebook) > CODES:
        raise ValueError(f"csr: a codebook of shape {codebook.shape}, not of 1 to {CODES} numbers")
    if not len(places):
        return
    if places[0] < 0 or places[-1] >= size or not np.all(places[1:] > places[:-1]):
        raise ValueError(f"csr: places do not ascend from 0 to below {size}")
    if codes.min() < 0 or codes.max() >= len(codebook):
        raise ValueError(f"csr: codes from {codes.min()} to {codes.max()} of {len(codebook)} numbers")


@dataclass(frozen=True)
class SparseMatrix:
    """A `Csr`, and its arrays on the device."""

    csr: Csr
    starts: DeviceArray
    unit_of: DeviceArray
    columns: DeviceArray
    codes: DeviceArray
    codebook: DeviceArray

    @classmethod
    def from_host(cls, driver: Driver, csr: Csr) -> SparseMatrix:
        """Copy it to the device."""
        arrays = (csr.starts, csr.unit_of, csr.columns, csr.codes, csr.codebook)
        return cls(csr, *(DeviceArray.from_host(driver, array) for array in arrays))

    @property
    def arrays(self) -> tuple[DeviceArray, ...]:
        return self.starts, self.unit_of, self.columns, self.codes, self.codebook
