"""What a study is: points to measure, how, and the section of the page that is made of the results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # a worker needs none of it
    import pandas as pd

    from pyrt.job import Job

Point = dict[str, Any]
"""What is measured together, by column: words and numbers. ``ranks`` and ``threads`` (of BLAS, a rank) say
how many of a job take it, where they are there: else one rank, and its share of the cores."""

Row = dict[str, Any]
"""A line of a study's table: its point's columns, and what was measured."""

Taken = tuple[Point, list[Row]]

FAILED = "failed"
"""The column that says why a point has no numbers; empty where it has."""

SMALL, FULL = SIZES = ("small", "full")
"""Of a report: minutes on the CPU; minutes on several GPUs."""


def amount(number: float, what: str) -> str:
    """Say in words: 1 rank, 2 ranks."""
    return f"{number:.0f} {what}{'' if number == 1 else 's'}"


def listed(values: Iterable[object]) -> str:
    """Join: a, b and c."""
    *first, last = map(str, values)
    return f"{', '.join(first)} and {last}" if first else last


@dataclass(frozen=True)
class Setup:
    """What there is to measure on, and how much of it is asked for."""

    size: str
    gpus: int
    """That this process may use, at most `MOST_GPUS`; 0: NumPy computes."""
    cores: int
    emulates: bool
    """Whether kernels can be emulated: there is a C++ compiler."""
    folder: Path
    """Of the study: for results, figures and what jobs leave for each other."""

    @property
    def device(self) -> str:
        return "cuda" if self.gpus else "cpu"

    @property
    def is_small(self) -> bool:
        return self.size == SMALL

    @property
    def ranks(self) -> list[int]:
        """The numbers of ranks to compare: of GPUs all, of cores powers of two up to 8."""
        if self.gpus:
            return list(range(1, self.gpus + 1))
        return [ranks for ranks in (1, 2, 4, 8) if ranks <= max(2, self.cores)]

    def on_cores(self, ranks: Iterable[int]) -> list[int]:
        """Keep the numbers of ranks that have a core each."""
        return [number for number in ranks if number <= self.cores]


MOST_GPUS = 4
"""However many there are."""


@dataclass(frozen=True)
class Figure:
    """A PNG file in the study's folder, and a caption that stands alone."""

    file: str
    caption: str
    wide: bool = False
    """Whether it takes the whole width of the page."""

    @property
    def name(self) -> str:
        """The name by which findings call it."""
        return Path(self.file).stem


@dataclass(frozen=True)
class Table:
    """Few rows, for people; floats are shown with three digits."""

    caption: str
    rows: pd.DataFrame


class Finding(str):
    """A sentence of a report, with the name of the figure that it is read from; None: a table."""

    figure: str | None

    def __new__(cls, text: str, figure: str | None = None) -> Finding:
        made = super().__new__(cls, text)
        made.figure = figure
        return made

    @property
    def said(self) -> str:
        """The sentence with the name of its figure."""
        where = f"figure {self.figure}" if self.figure else "table"
        return f"{self.removesuffix('.')} ({where})."


@dataclass
class Section:
    """A study's part of the page, in plain words."""

    findings: list[str] = field(default_factory=list)
    """Sentences, with the numbers that they rest on. Each names its figure: by `find`, or in its text."""
    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    def find(self, figure: str | None, *texts: str) -> None:
        """Add findings that are read from this figure; None: from a table."""
        self.findings += [Finding(text, figure) for text in texts]


class Study(Protocol):
    """A module of this folder."""

    TITLE: str
    QUESTION: str
    """What is asked, and how it is measured, in two or three sentences."""
    COLUMNS: tuple[str, ...]
    """Of the table: those of a point first."""

    def points(self, setup: Setup) -> list[Point]:
        """List all points to measure, each job's points side by side."""

    def take(self, points: Sequence[Point], setup: Setup) -> Iterator[Taken]:
        """Measure them: most often `experiments.jobs.measured`."""

    def missing(self, setup: Setup) -> list[str]:
        """List what cannot be measured here and why, a sentence each."""

    def section(self, rows: pd.DataFrame, setup: Setup) -> Section:
        """Draw the figures into the study's folder, and say what is to be seen.

        ``rows`` are those that have numbers; there may be few of them, or none of some kind.
        """


class Measuring(Protocol):
    """A study whose points are taken by `experiments.worker`."""

    def measure(self, point: Point, job: Job, folder: Path) -> list[Row]:
        """Return the measured columns of each row. Collective; rank 0's count. ``folder`` is the study's."""
