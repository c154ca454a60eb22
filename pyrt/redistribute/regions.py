"""Which part of a whole matrix a rank holds: spreads, and the regions that follow from them."""

from __future__ import annotations

from typing import NamedTuple

SPREADS = ("rows", "columns", "whole")
"""How ranks hold a matrix: each a contiguous part of its rows, one of its columns, or all of it."""

Spans = tuple[tuple[int, int], ...]
"""The columns of each rank, start and stop, where shares are not even or overlap: a part and its halo."""


def share(size: int, ranks: int, rank: int) -> tuple[int, int]:
    """Start and stop of a rank's contiguous part: the first ``size % ranks`` ranks get one more."""
    least, more = divmod(size, ranks)
    start = rank * least + min(rank, more)
    return start, start + least + (rank < more)


class Region(NamedTuple):
    """Some rows and columns of a matrix, each a start and a stop; empty where one of these is."""

    rows: tuple[int, int]
    columns: tuple[int, int]

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows[1] - self.rows[0], self.columns[1] - self.columns[0]

    @property
    def size(self) -> int:
        rows, columns = self.shape
        return rows * columns

    def intersection(self, other: Region) -> Region:
        """Return the part that both have."""
        return Region(_both(self.rows, other.rows), _both(self.columns, other.columns))

    def within(self, outer: Region) -> Region:
        """Return the same part, counted from the first row and column of a region that holds it.

        An empty one, which may lie elsewhere, begins with the region.
        """
        if not self.size:
            return Region((0, 0), (0, 0))
        (row, _), (column, _) = outer
        return Region(
            (self.rows[0] - row, self.rows[1] - row), (self.columns[0] - column, self.columns[1] - column)
        )


def _both(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    start = max(one[0], other[0])
    return start, max(start, min(one[1], other[1]))


def region(spread: str | Spans, shape: tuple[int, int], ranks: int, rank: int, together: int = 1) -> Region:
    """Return the region that a rank holds of a matrix of this shape; ValueError for an unknown spread.

    So many rows stay ``together``: all of them are of one rank.
    """
    rows, columns = shape
    if not isinstance(spread, str):
        return Region((0, rows), spread[rank])
    if spread not in SPREADS:
        raise ValueError(f"{spread!r} is no spread: {', '.join(SPREADS)} are")
    start, stop = share(rows // together, ranks, rank)
    return Region(
        (start * together, stop * together) if spread == "rows" else (0, rows),
        share(columns, ranks, rank) if spread == "columns" else (0, columns),
    )
