"""The memory that a run needs, as a table for people."""

from __future__ import annotations

from nn.train.fit import COLUMNS, Line, Needs
from pyrt.tables import table


def memory_table(needs: Needs, width: int | None = None) -> str:
    """Lay it out in MB, in lines of at most ``width`` characters (None: with all columns)."""
    columns = [*COLUMNS, "device", "pinned"]
    total = Line("total", **{name: needs.column(name) for name in (*COLUMNS, "pinned")})
    rows = [
        [line.name, *(_megabytes(getattr(line, name)) for name in columns)] for line in (*needs.lines, total)
    ]
    headers = ["MB", *COLUMNS, "device", "pinned host"]
    return table(headers, rows, ["", *[".3f"] * (len(headers) - 1)], COLUMNS[::-1], width)


def _megabytes(nbytes: int) -> float | None:
    return nbytes / 1e6 if nbytes else None
