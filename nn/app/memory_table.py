"""The memory that a run needs, as a table for people."""

from __future__ import annotations

from nn.app.console import Console
from nn.app.report import Report
from nn.train.memory_needs import COLUMNS, Line, Needs
from nn.train.prepare import Prepared
from pyrt.job import Job
from pyrt.tables import table


def show_memory(report: Report, prepared: Prepared, console: Console, job: Job) -> None:
    """Print what --memory is for, of the rank that needs most; nothing is trained.

    Collective. Raises UserError on all ranks where it does not fit.
    """
    assert report.memory is not None
    for line in report.environment["header"]:
        console.say(line)
    table = memory_table(report.memory, console.width)
    console.tell(f"\nmemory of rank {report.memory.rank}, of those that need most\n\n{table}\n")
    console.tell(f"data set: {report.memory.data / 1e6:.3f} MB on the host of this rank")
    for pool in prepared.rehearsal.pools:
        console.tell(pool.said())
    with job.agree():
        prepared.rehearsal.require_room(prepared.problem.settings.placement)
    prepared.groups.close()


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
