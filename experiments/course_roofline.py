"""The roofline of CME 213: a step of data-parallel ranks whose gradients go through host memory.

A rank's share of a batch is B' = B / ranks samples. The course counts 4 B' H (D + C) flops, and n = HD + H +
CH + C gradients of b bytes that travel four times: down and up over PCIe, and two times n in MPI. So

    AI = 4 B' H (D + C) / (4 n b)    flops a byte
    roof = AI / (AI / P_flops + (1 / P_pci + 1 / P_mpi) / 2)    flops a second

since half of the bytes take each way and nothing overlaps. P_flops, P_pci and P_mpi come from the median
times of ranges at one size, H = 512 and B = 3000. A ring moves 2 (ranks - 1) / ranks n b bytes of each rank,
not 2 n b: its rate is told beside the course's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from experiments import counting, figures, jobs
from experiments.study import Figure, Point, Row, Section, Setup, Table, Taken, amount

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from nn.app.report import Report
    from pyrt.job import Job

TITLE = "The course's roofline"
QUESTION = (
    "How fast can a step of data-parallel ranks be if its gradients go through host memory and nothing "
    "overlaps, as in the final assignment of CME 213, and how fast is it? Each step is timed range by range "
    "(--profile --exchange blocking, 784-H-10, float32); rates come from the median ranges of one size."
)
COLUMNS = (
    *("hidden", "batch", "ranks", "threads", "device", "steps"),
    *("products_us", "copies_us", "mpi_us", "iteration_us", "passes_us"),
    *("iteration_std_us", "passes_std_us"),
)

HIDDEN, BATCH = 512, 3000
"""The size whose ranges give the rates."""

ITEMSIZE = 4
"""Bytes of a gradient: float32."""

DOWN, UP, SUM = "gradients device -> host", "gradients host -> device", "MPI_Allreduce"
"""Ranges of the exchange `blocking`."""

PASSES = ("forward", "backward", "step")
"""Ranges of a step without its communication."""


class Extent(NamedTuple):
    """The sizes that are measured, and the steps of each run."""

    hidden: tuple[int, ...]
    batches: tuple[int, ...]
    steps: int


SMALL = Extent((64, 256, HIDDEN), (300, BATCH), 6)
FULL = Extent((128, 256, HIDDEN, 1024, 2048, 4096), (750, BATCH, 12000, 48000), 40)
CPU = Extent((64, 256, HIDDEN, 1024), (300, 1000, BATCH), 12)


class Work(NamedTuple):
    """The work of one rank in a step, as the course counts it."""

    hidden: int
    batch: int
    ranks: int
    inputs: int = counting.INPUTS
    classes: int = counting.CLASSES

    @property
    def flops(self) -> float:
        """4 B' H (D + C): the products of the forward pass, and as many flops in the backward pass."""
        return 4 * self.batch / self.ranks * self.hidden * (self.inputs + self.classes)

    @property
    def nbytes(self) -> int:
        """Bytes of the gradients, n b."""
        return ITEMSIZE * (
            self.hidden * self.inputs + self.hidden + self.classes * self.hidden + self.classes
        )

    @property
    def intensity(self) -> float:
        """AI, flops for each byte that is copied or sent."""
        return self.flops / (4 * self.nbytes)


class Rates(NamedTuple):
    """Flops and bytes a second."""

    flops: float
    pci: float
    mpi: float
    """Counting the course's 2 n b bytes."""
    ring: float
    """Counting the bytes that a ring moves."""

    @classmethod
    def of(cls, work: Work, products: float, copies: float, mpi: float) -> Rates:
        """Compute them from median seconds: of all products, of both copies, and of MPI's sum."""
        moved = 2 * work.nbytes
        ring = moved * (work.ranks - 1) / work.ranks
        return cls(work.flops / products, moved / copies, moved / mpi, ring / mpi)

    def roof(self, intensity: float) -> float:
        """Return the flops a second that the course expects at this intensity."""
        return intensity / (intensity / self.flops + (1 / self.pci + 1 / self.mpi) / 2)


def points(setup: Setup) -> list[Point]:
    """List sizes for two ranks, the course's number, and for all; the size that gives the rates is first.

    Where there is one GPU, two ranks share it.
    """
    extent = SMALL if setup.is_small else FULL if setup.gpus else CPU
    threads = {} if setup.gpus else {"threads": 1}
    sizes = [(hidden, batch) for hidden in extent.hidden for batch in extent.batches]
    sizes.sort(key=lambda size: size != (HIDDEN, BATCH))
    several = sorted({2, max(2, setup.ranks[-1])})
    return [
        {
            **{"hidden": hidden, "batch": batch, "ranks": ranks},
            **{**threads, "device": setup.device, "steps": extent.steps},
        }
        for ranks in several
        for hidden, batch in sizes
    ]


def take(points: Sequence[Point], setup: Setup) -> Iterator[Taken]:
    return jobs.measured(__name__, points, setup)


def measure(point: Point, job: Job, folder: Path) -> list[Row]:
    """Return the medians of the ranges of a step, over all ranks. Collective."""
    from train import train

    asked = {**point, "placement": "stream", "exchange": "blocking"}
    report = train(counting.options_of(asked, 1, point["steps"], profile=True), job)
    return [medians(report)] if job.rank == 0 else []


def medians(report: Report) -> Row:
    """Return microseconds: sums of medians, from enter to leave, of the ranges of each kind; and standard
    deviations of two of the sums."""
    calls = {row.name: row.on_host for row in report.phases if row.on_host is not None}
    us = {name: 1e6 * mine.median for name, mine in calls.items()}
    products = [name for name in us if name.startswith(("forward GEMM", "backward GEMM"))]
    return {
        "products_us": sum(us[name] for name in products),
        "copies_us": us[DOWN] + us[UP],
        "mpi_us": us[SUM],
        "iteration_us": us["batch iteration"],
        "passes_us": sum(us[name] for name in PASSES),
        "iteration_std_us": 1e6 * calls["batch iteration"].std,
        "passes_std_us": 1e6 * math.hypot(*(calls[name].std for name in PASSES)),
    }


def missing(setup: Setup) -> list[str]:
    if setup.gpus == 1:
        return ["a GPU for each rank: two ranks share one, and its products run for one after the other"]
    return [] if setup.gpus else ["P_pci of a bus: there is no GPU; copies are those of host memory"]


def section(rows: pd.DataFrame, setup: Setup) -> Section:
    result = Section()
    tables = []
    for _, mine in rows.groupby("ranks"):
        base = mine[(mine.hidden == HIDDEN) & (mine.batch == BATCH)]
        if not len(base):
            continue
        work, rates = _work(base.iloc[0]), _rates(base.iloc[0])
        tables.append(_rates_row(work, base.iloc[0], rates))
        result.find(f"roofline-{work.ranks}", _base(work, rates), *_compared(mine, rates))
        result.figures.append(_figure(mine, rates, setup))
    if tables:
        result.tables.append(_rates_table(tables))
    return result


def _work(row: pd.Series) -> Work:
    return Work(int(row.hidden), int(row.batch), int(row.ranks))


def _rates(row: pd.Series) -> Rates:
    """Return the rates of a step by its own ranges."""
    return Rates.of(_work(row), *(1e-6 * float(row[name]) for name in ("products_us", "copies_us", "mpi_us")))


def _base(work: Work, rates: Rates) -> str:
    roof = rates.roof(work.intensity)
    return (
        f"{amount(work.ranks, 'rank')}, H = {HIDDEN}, B = {BATCH}: medians of the ranges give P_flops = "
        f"{_rate(rates.flops, 'FLOP/s')}, P_pci = {_rate(rates.pci, 'B/s')}, and P_mpi = "
        f"{_rate(rates.mpi, 'B/s')} by the course's 2n numbers ({_rate(rates.ring, 'B/s')} by the bytes "
        f"that a ring moves). AI = {work.intensity:.1f} flops a byte; the roof there is "
        f"{_rate(roof, 'FLOP/s')}, {roof / rates.flops:.0%} of P_flops: communication takes the rest."
    )


def _rate(value: float, unit: str) -> str:
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= scale:
            return f"{value / scale:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


def ratios(rows: pd.DataFrame, rates: Rates, column: str) -> pd.Series:
    """Return the flops a second of each step, by the time in a column, over the roof at its intensity."""
    return rows.apply(lambda row: _reached(row, column) / rates.roof(_work(row).intensity), axis=1)


def _reached(row: pd.Series, column: str) -> float:
    return 1e6 * _work(row).flops / float(row[column])


def _compared(rows: pd.DataFrame, rates: Rates) -> list[str]:
    """Say which steps lie above the roof, by each time, and why."""
    whole, passes = ratios(rows, rates, "iteration_us"), ratios(rows, rates, "passes_us")
    found = [
        f"By the time of a batch iteration {(whole > 1).sum()} of {len(rows)} steps lie above the roof, from "
        f"{whole.min():.2f} of it at {_size(rows.loc[whole.idxmin()])} to {whole.max():.2f} at "
        f"{_size(rows.loc[whole.idxmax()])}. {_why(rows, rates, whole)}"
    ]
    above = (passes > 1).sum()
    text = (
        f"By the time of forward, backward and step alone {above} of {len(rows)} lie above it, up to "
        f"{passes.max():.2f} at {_size(rows.loc[passes.idxmax()])}."
    )
    if above:
        text += " The roof has the copies and the sums in it, and these ranges leave them out."
    else:
        text += (
            " They leave out copies and sums, but have activations, loss and update, which weigh more here."
        )
    return [*found, text]


def _size(row: pd.Series) -> str:
    return f"H = {row.hidden:.0f}, B = {row.batch:.0f}"


def _why(rows: pd.DataFrame, rates: Rates, whole: pd.Series) -> str:
    """Explain the highest point by the rates at its own size."""
    highest = rows.loc[whole.idxmax()]
    if whole.max() <= 1:
        return "All are below: pixels, activations, loss, update and launches are not in the roof."
    own = _rates(highest)
    ways = {
        "products run": own.flops / rates.flops,
        "copies": own.pci / rates.pci,
        "sums": own.mpi / rates.mpi,
    }
    said = ", ".join(f"{name} at {ratio:.2f} times" for name, ratio in ways.items())
    return (
        f"The roof is no bound, since its rates are those of one size: at the highest point {said} the rates "
        f"at H = {HIDDEN}, B = {BATCH}."
    )


def _rates_row(work: Work, known: pd.Series, rates: Rates) -> Row:
    return {
        "ranks": work.ranks,
        "products us": known.products_us,
        "copies us": known.copies_us,
        "MPI us": known.mpi_us,
        "P_flops GFLOP/s": 1e-9 * rates.flops,
        "P_pci GB/s": 1e-9 * rates.pci,
        "P_mpi GB/s, 2n": 1e-9 * rates.mpi,
        "P_mpi GB/s, ring": 1e-9 * rates.ring,
        "AI": work.intensity,
        "roof GFLOP/s": 1e-9 * rates.roof(work.intensity),
    }


def _rates_table(rows: Sequence[Row]) -> Table:
    import pandas as pd

    caption = f"Median ranges at H = {HIDDEN}, B = {BATCH}, the rates that follow, and the roof."
    return Table(caption, pd.DataFrame(rows))


def _figure(rows: pd.DataFrame, rates: Rates, setup: Setup) -> Figure:
    """Draw the roof, and the steps by both times, a panel each."""
    figure, all_axes = figures.canvas(1, 2, sharey=True)
    columns = {"iteration": "batch iteration", "passes": "forward + backward + step"}
    ranks = int(rows.ranks.iloc[0])
    for axes, (column, title) in zip(all_axes, columns.items(), strict=True):
        _panel(axes, rows, rates, f"{column}_us", f"{column}_std_us")
        axes.set_title(f"by {title}", size=14)
    all_axes[0].set_ylabel("GFLOP/s of a rank")
    lines, names = all_axes[0].get_legend_handles_labels()
    figure.legend(lines, names, ncols=4, loc="outside lower center")
    caption = (
        f"The course's roofline on {amount(ranks, 'rank')}: P_flops {_rate(rates.flops, 'FLOP/s')}, P_pci "
        f"{_rate(rates.pci, 'B/s')}, P_mpi {_rate(rates.mpi, 'B/s')}, from the ranges at H = {HIDDEN}, B = "
        f"{BATCH}. Left, steps by the time of the whole batch iteration; right, by forward, backward and "
        "step without communication. Bars: one standard deviation of a step's time. H hardly changes AI: "
        "flops and gradients both grow with it."
    )
    return Figure(figures.save(figure, setup.folder, f"roofline-{ranks}"), caption, wide=True)


def _panel(axes: Axes, rows: pd.DataFrame, rates: Rates, column: str, deviation: str) -> None:
    """Draw the roof, and the steps by the time in a column, with the deviation of it in another."""
    import numpy as np

    intensity = rows.apply(lambda row: _work(row).intensity, axis=1)
    line = np.geomspace(intensity.min() / 2, intensity.max() * 2, 99)
    axes.plot(line, [1e-9 * rates.roof(each) for each in line], color="black", label="roof")
    axes.axhline(1e-9 * rates.flops, color="#999999", linestyle="--", label="P_flops")
    for number, (hidden, mine) in enumerate(rows.sort_values("batch").groupby("hidden")):
        reached = mine.apply(lambda row: 1e-9 * _reached(row, column), axis=1)
        place = intensity[mine.index]
        axes.plot(place, reached, label=f"H = {hidden}", **figures.dots(number))
        figures.deviations(axes, place, reached, mine[deviation] / mine[column], number)
    axes.set_xlabel("AI, flops a byte copied or sent")
    figures.plain_log(axes, "x")
    figures.plain_log(axes, "y")
