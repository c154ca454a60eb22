"""The option --distribute: each rank holds the whole data set, or only the images that it trains on.

With ``parts`` rank 0 scatters the images, so the ranks together hold them once: a set may be larger than the
memory of a rank. A rank needs no others where batches are the same slices of the set in every epoch
(--no-shuffle) and ranks split batches alone (--plan data). Labels are small; every rank holds them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from mpi4py import MPI

from nn.input import mapped
from nn.input.dataset import Dataset
from pyrt.errors import UserError
from pyrt.job import Job
from pyrt.redistribute.regions import share

CHOICES = WHOLE, PARTS = ("whole", "parts")


@dataclass(frozen=True, eq=False)
class HeldRows:
    """An array (n, D) of which this rank holds some rows.

    `numpy.take` and slices of rows work as on the whole array for rows that are held; for others they give
    arbitrary rows.
    """

    array: np.ndarray
    """(m, D): the rows that are held."""
    numbers: np.ndarray
    """(m,) their row numbers, ascending."""
    rows: int
    """n."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.array.shape[1]

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""
        return self.array.nbytes

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, rows: slice) -> HeldRows:
        first, stop, _ = rows.indices(self.rows)
        begin, end = np.searchsorted(self.numbers, (first, stop))
        return HeldRows(self.array[begin:end], self.numbers[begin:end] - first, max(0, stop - first))

    def take(self, rows: np.ndarray, axis: int, out: np.ndarray, mode: str) -> np.ndarray:
        """Copy rows into ``out``; `numpy.take` calls this."""
        if not len(self.array):
            return out
        places = np.searchsorted(self.numbers, rows)
        return np.take(self.array, places, axis=axis, out=out, mode="clip")


def is_in_parts(dataset: Dataset) -> bool:
    """Return whether this rank holds only a part of the images."""
    return isinstance(dataset.images, HeldRows)


def held_bytes(dataset: Dataset) -> int:
    """Count the bytes of a data set in this rank's memory; what stays in its file takes none."""
    arrays = [array for array in vars(dataset).values() if isinstance(array, np.ndarray | HeldRows)]
    return sum(
        array.nbytes for array in arrays if isinstance(array, HeldRows) or mapped.place_of(array) is None
    )


def require_parts(samples: int | None, available: int) -> None:
    """Raise UserError where an epoch repeats samples: a rank then needs more of them than its part."""
    if samples is not None and samples > available:
        raise UserError(
            f"--distribute parts: --samples {samples} repeats the {available} training samples, so "
            "that parts overlap: give fewer, or --distribute whole"
        )


def slices(used: int, available: int, images: int, batch: int) -> list[tuple[int, int]]:
    """List the slices of a set's images that ranks share: each batch of an epoch, then the validation set.

    The first ``used`` of the ``available`` training images are trained on. All of the test set is one slice:
    ``slices(0, 0, images, 1)``.
    """
    batches = [(first, min(first + batch, used)) for first in range(0, used, batch)]
    return [*batches, *([(available, images)] if available < images else [])]


def scattered(array: np.ndarray | None, of_set: Sequence[tuple[int, int]], job: Job) -> np.ndarray:
    """Scatter rank 0's array (n, D), slice by slice: each rank gets a contiguous part of each. Collective.

    A rank's part of a slice is that which `Shard.own_samples` gives it of a batch. Returns `HeldRows`, which
    stand for the array.
    """
    shape, dtype = job.comm.bcast(None if array is None else (array.shape, array.dtype))
    mine = [_own(first, stop, job.size, job.rank) for first, stop in of_set]
    numbers = np.concatenate([np.arange(first, stop) for first, stop in mine])
    held = np.empty((len(numbers), shape[1]), dtype)
    row = MPI.BYTE.Create_contiguous(shape[1] * dtype.itemsize).Commit()
    place = 0
    for (first, stop), (own_first, own_stop) in zip(of_set, mine, strict=True):
        received = held[place : place + own_stop - own_first]
        sent = None
        if array is not None:
            parts = [_own(first, stop, job.size, rank) for rank in range(job.size)]
            counts, places = [end - begin for begin, end in parts], [begin - first for begin, _ in parts]
            sent = [array[first:stop], counts, places, row]
        job.comm.Scatterv(sent, [received, len(received), row])
        place += len(received)
    row.Free()
    return cast(np.ndarray, HeldRows(held, numbers, shape[0]))


def _own(first: int, stop: int, ranks: int, rank: int) -> tuple[int, int]:
    """Return a rank's part of a slice."""
    begin, end = share(stop - first, ranks, rank)
    return first + begin, first + end
