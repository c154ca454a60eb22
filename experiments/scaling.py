"""What more ranks gain: strong and weak scaling over the cores of the CPU and over GPUs, and Amdahl's law."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from experiments import figures, jobs, laws
from experiments.noise import noisy
from experiments.study import Figure, Point, Row, Section, Setup, Table, Taken, listed

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from nn.app.options import Options
    from pyrt.job import Job

TITLE = "Scaling"
QUESTION = (
    "How much faster is training on more ranks? Strong scaling: all ranks share an epoch and its batches, as "
    "large as on one rank; weak scaling: each rank has a part of its own of each batch, as large as one "
    "rank's. On the CPU the setting is the mpi4py report's: master and workers (exchange root), sigmoid "
    "outputs, one BLAS thread a rank, and exchange host beside it; GPUs take the exchange that is chosen for "
    "them. An epoch is a pass over the embedded digits, repeated up to its samples, without validation."
)
COLUMNS = (
    *("kind", "device", "hidden", "head", "exchange", "ranks", "threads", "samples", "batch"),
    *("taken", "epoch_seconds", "least_seconds", "most_seconds", "window_seconds", "step_us"),
)

STRONG, WEAK = "strong", "weak"

NAMES = {"cpu": "CPU", "cuda": "GPUs"}
"""Of devices."""

RANKS = (1, 2, 4, 8)
"""On the CPU, as far as there are cores."""

ALONE = "local"
"""The exchange of one rank, whatever the others take: it has nothing to sum."""

REPORT = {2: 1.84, 4: 2.95, 8: 3.97}
"""Speed-ups by processes that the mpi4py report publishes for its own network and machine: cited, not
measured here."""

WINDOWS = 4
"""Times that are taken of an epoch, after `bench.step.WARM_UP` epochs."""

SECONDS = 0.1
"""That each of them is to last at least: several epochs, where one is shorter."""


class Work(NamedTuple):
    """What is done by one rank, then by more and more."""

    kind: str
    device: str
    hidden: int
    exchange: str
    samples: int
    """An epoch: of all ranks for strong scaling, of each for weak; and so is the batch."""
    batch: int

    def on(self, ranks: int) -> Point:
        times = ranks if self.kind == WEAK else 1
        is_cpu = self.device == "cpu"
        return {
            "kind": self.kind,
            "device": self.device,
            "hidden": self.hidden,
            "head": "sigmoid" if is_cpu else "softmax",
            "exchange": self.exchange if ranks > 1 else ALONE,
            "ranks": ranks,
            "threads": 1 if is_cpu else None,
            "samples": times * self.samples,
            "batch": times * self.batch,
        }


SAMPLES = 60000
"""An epoch, for strong scaling."""

BATCH = 3000
"""The default of train.py: on one core a step of it lasts long against an exchange of its gradients."""

ON_CPU = {
    "small": (
        Work(STRONG, "cpu", 512, "root", 12000, BATCH),
        Work(STRONG, "cpu", 512, "host", 12000, BATCH),
        Work(WEAK, "cpu", 512, "root", 6000, BATCH),
    ),
    "full": (
        Work(STRONG, "cpu", 512, "root", SAMPLES, BATCH),
        Work(STRONG, "cpu", 512, "host", SAMPLES, BATCH),
        Work(WEAK, "cpu", 512, "root", 9000, BATCH),
    ),
}
"""By size."""

ON_GPUS = (
    Work(STRONG, "cuda", 512, "auto", SAMPLES, BATCH),
    Work(STRONG, "cuda", 2048, "auto", SAMPLES, 12000),
    Work(WEAK, "cuda", 512, "auto", SAMPLES, BATCH),
)


def points(setup: Setup) -> list[Point]:
    gpus = range(1, setup.gpus + 1) if setup.gpus > 1 else ()
    found: list[Point] = []
    for works, numbers in ((ON_CPU[setup.size], setup.on_cores(RANKS)), (ON_GPUS, gpus)):
        for ranks in numbers:
            for work in works:
                point = work.on(ranks)
                if point not in found:  # one rank does the same, whatever the others' exchange
                    found.append(point)
    return found


def take(points: Sequence[Point], setup: Setup) -> Iterator[Taken]:
    return jobs.measured(__name__, points, setup)


def measure(point: Point, job: Job, folder: Path) -> list[Row]:
    """Return one row: seconds of an epoch by the slowest rank's clock, as `train.py` runs it."""
    from nn.app.options import Options

    options = Options(
        hidden=(point["hidden"],),
        head=point["head"],
        lr=0.1,
        momentum=0.0,
        device=point["device"],
        exchange=point["exchange"],
        samples=point["samples"],
        batch=point["batch"],
        val_fraction=0.0,
    )
    steps = math.ceil(point["samples"] / point["batch"])
    windows, taken = _times(job, options, steps)
    epochs = [steps * seconds for seconds in windows]
    return [
        {
            "taken": taken,
            "epoch_seconds": statistics.median(epochs),
            "least_seconds": min(epochs),
            "most_seconds": max(epochs),
            "window_seconds": " ".join(map(repr, epochs)),
            "step_us": 1e6 * statistics.median(windows),
        }
    ]


def _times(job: Job, options: Options, steps: int) -> tuple[list[float], str]:
    """Time a step, over windows of one epoch or, if these are too short, of several. Collective.

    Return the seconds on the slowest rank in each window, and the exchange that was taken.
    """
    seconds, taken = _windows(job, options, steps, epochs=1)
    epochs = epochs_of_window(max(job.comm.allgather(steps * statistics.mean(seconds))))
    if epochs > 1:
        seconds, taken = _windows(job, options, steps, epochs)
    return list(map(max, zip(*job.comm.allgather(seconds), strict=True))), taken


def epochs_of_window(seconds: float) -> int:
    """Return how many epochs of so many seconds a window has."""
    return math.ceil(SECONDS / seconds)


def _windows(job: Job, options: Options, steps: int, epochs: int) -> tuple[list[float], str]:
    """Seconds a step in each window of so many epochs, by this rank's clock; the exchange. Collective."""
    from bench.step import WARM_UP, Ours
    from train import train

    report = train(replace(options, epochs=WARM_UP + WINDOWS * epochs), job)
    ours = Ours()
    ours.add(report, steps, epochs)
    return ours.wall, report.environment["exchange"]


def missing(setup: Setup) -> list[str]:
    reasons: list[str] = []
    taken = ON_CPU[setup.size][0].samples
    if taken < SAMPLES:
        reasons.append(f"{SAMPLES:,} samples an epoch on the CPU: the {setup.size} size takes {taken:,}")
    if left := RANKS[len(setup.on_cores(RANKS)) :]:
        numbers = listed(map(str, left))
        reasons.append(f"{numbers} ranks on the CPU: it has {setup.cores} core(s), and each rank takes one")
    if setup.gpus < 2:
        reasons.append(f"scaling over GPUs: there is {'one' if setup.gpus else 'none'} to use")
    return reasons


def compared(rows: pd.DataFrame) -> pd.DataFrame:
    """Add ``gain``, samples a second over those of one rank, and ``efficiency``, gain over ranks.

    Where the samples stay the same the gain is the speed-up T(1) / T(p); where they grow with the ranks it
    is p T(1) / T(p), Gustafson's scaled speed-up. NaN where one rank has no row.
    """
    work = ["kind", "device", "hidden"]
    rows = rows.assign(rate=rows.samples / rows.epoch_seconds)
    ones = rows.loc[rows.ranks == 1, [*work, "rate"]].rename(columns={"rate": "one"})
    rows = rows.merge(ones, on=work, how="left")
    gain = rows.rate / rows.one
    return rows.assign(gain=gain, efficiency=gain / rows.ranks).drop(columns=["rate", "one"])


def curves(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """List the rows of each work and exchange on one device by ranks, from one rank on, if there are more."""
    found = []
    for _, work in rows.groupby(["kind", "hidden"]):
        for exchange in work.exchange.unique():
            curve = work[work.exchange.isin((ALONE, exchange))].sort_values("ranks")
            if exchange != ALONE and ALONE in set(curve.exchange):
                found.append(curve)
    return found


def section(rows: pd.DataFrame, setup: Setup) -> Section:
    result = Section()
    if not len(rows):
        return result
    rows = compared(rows)
    for device in NAMES:
        mine = rows[rows.device == device]
        there_are = curves(mine)
        strong = [curve for curve in there_are if _is_strong(curve)]
        weak = [curve for curve in there_are if not _is_strong(curve)]
        result.find(f"speed-up-{device}", *(_strong_finding(curve) for curve in strong))
        if strong:
            _draw_speed_ups(strong, device, setup, result)
        if strong and device == "cpu":
            result.find("speed-up-cpu", _report_finding())
        result.find(f"efficiency-{device}", *(_weak_finding(curve) for curve in weak))
        noise = noisy(mine.least_seconds, mine.epoch_seconds, mine.most_seconds)
        if there_are:
            result.find(f"efficiency-{device}", *noise)
        if there_are:
            _draw_efficiencies([*strong, *weak], device, setup, result)
        if len(mine):
            result.tables.append(_table(mine, device))
    return result


def _is_strong(curve: pd.DataFrame) -> bool:
    return bool(curve.kind.iloc[0] == STRONG)


def _strong_finding(curve: pd.DataFrame) -> str:
    fit = laws.amdahl(_times_of(curve))
    limit = ""
    if not fit.refusal and fit.share > fit.error:
        limit = f", with which no number of ranks is more than {1 / fit.share:.2g} times as fast"
    return (
        f"{_what(curve)}, exchange {curve.taken.iloc[-1]}: {_each(curve, 'gain')} times as fast on "
        f"{_numbers(curve)} ranks as on one (efficiency {_each(curve, 'efficiency')}); Amdahl's law gives "
        f"{fit}{limit}."
    )


def _report_finding() -> str:
    ranks, gains = list(REPORT), list(REPORT.values())
    shares = [f"{100 * serial_share(*one):.1f}" for one in REPORT.items()]
    return (
        f"The mpi4py report has, for its own network and machine, {listed(f'{gain:.2f}' for gain in gains)} "
        f"on {listed(ranks)} processes: a serial share of {listed(shares)} % of each by itself, which grows "
        "with them."
    )


def _weak_finding(curve: pd.DataFrame) -> str:
    one, last = curve.iloc[0], curve.iloc[-1]
    return (
        f"{_what(curve)}, exchange {last.taken}: a step takes {one.step_us:,.0f} us on one rank and "
        f"{last.step_us:,.0f} us on {last.ranks}; the efficiency is {_each(curve, 'efficiency')} on "
        f"{_numbers(curve)}, Gustafson's scaled speed-up {_each(curve, 'gain')}; his law gives "
        f"{laws.gustafson(_times_of(curve))}."
    )


def _what(curve: pd.DataFrame) -> str:
    """Describe the work of a curve in words."""
    one = curve.iloc[0]
    each = "" if _is_strong(curve) else " a rank"
    return (
        f"{NAMES[one.device]}, {one.kind} scaling, 784-{one.hidden}-10, batch {one.batch}{each}, "
        f"{one.samples:,} samples an epoch{each}"
    )


def _times_of(curve: pd.DataFrame) -> laws.Times:
    """Return the seconds of an epoch in each window, by ranks."""
    return {
        int(row.ranks): [float(word) for word in row.window_seconds.split()] for row in curve.itertuples()
    }


def _gains(curve: pd.DataFrame) -> dict[int, list[float]]:
    """Return the gain of each window over the mean of one rank's, by ranks."""
    times = _times_of(curve)
    one = statistics.mean(times[1])
    return {
        p: [one / seconds * (1 if _is_strong(curve) else p) for seconds in mine] for p, mine in times.items()
    }


def _each(curve: pd.DataFrame, column: str) -> str:
    """List a column's numbers on more than one rank."""
    return listed(f"{value:.2f}" for value in curve[curve.ranks > 1][column])


def _numbers(curve: pd.DataFrame) -> str:
    """List rank counts above one."""
    return listed(str(ranks) for ranks in curve.ranks if ranks > 1)


def _draw_speed_ups(curves: Sequence[pd.DataFrame], device: str, setup: Setup, result: Section) -> None:
    most = max(curve.ranks.max() for curve in curves)
    figure, axes = figures.canvas()
    axes.plot([1, most], [1, most], color="black", linestyle=":", label="ideal")
    line = np.linspace(1, most)
    for number, curve in enumerate(curves):
        fit, label = laws.amdahl(_times_of(curve)), _label(curve)
        if len(curve) > 2 and not fit.refusal:  # two points lie on any line
            colour = figures.style(number)["color"]
            axes.plot(line, laws.speed_up(line, fit.share), color=colour, linestyle="-")
            label += f": serial share {100 * fit.share:.1f} % ± {100 * fit.error:.1f}"
        figures.repeats(axes, _gains(curve), number, label)
    caption = (
        f"{_caption(curves)}. Points: single windows, and their mean with a standard deviation either way. "
        "Lines, if any: Amdahl's law with the serial share that fits best: all that more ranks do not "
        "shorten, the exchange included."
    )
    if device == "cpu":
        known = {1: 1.0, **{ranks: gain for ranks, gain in REPORT.items() if ranks <= most}}
        style = {"color": figures.COLOURS[-1], "linestyle": "", "marker": "x"}
        axes.plot(known.keys(), known.values(), **style, label="mpi4py report (published)")
        caption += (
            " Grey: what the mpi4py report, whose setting exchange root and sigmoid outputs are, published "
            "for its own network and machine."
        )
    _finish(axes, curves, "speed-up")
    result.figures.append(Figure(figures.save(figure, setup.folder, f"speed-up-{device}"), caption))


def _draw_efficiencies(curves: Sequence[pd.DataFrame], device: str, setup: Setup, result: Section) -> None:
    figure, axes = figures.canvas()
    axes.axhline(1, color="black", linestyle=":", label="ideal")
    for number, curve in enumerate(curves):
        efficiencies = {p: [gain / p for gain in mine] for p, mine in _gains(curve).items()}
        figures.repeats(axes, efficiencies, number, f"{curve.kind.iloc[0]}, {_label(curve)}")
    _finish(axes, curves, "efficiency")
    caption = (
        f"{_caption(curves)}. Efficiency: samples a second of a rank over those of one rank (ideal: 1). "
        "Points: single windows, and their mean with a standard deviation either way."
    )
    result.figures.append(Figure(figures.save(figure, setup.folder, f"efficiency-{device}"), caption))


def _label(curve: pd.DataFrame) -> str:
    """Name what tells curves of the same device and kind apart."""
    one = curve.iloc[0]
    return f"exchange {curve.taken.iloc[-1]}" if one.device == "cpu" else f"{one.hidden} hidden units"


def _caption(curves: Sequence[pd.DataFrame]) -> str:
    """Describe the works of some curves of one device, and how they are measured."""
    words = dict.fromkeys(_what(curve) for curve in curves)
    how = (
        "one BLAS thread a rank, sigmoid outputs"
        if curves[0].device.iloc[0] == "cpu"
        else f"a GPU a rank, exchange {listed(dict.fromkeys(curve.taken.iloc[-1] for curve in curves))}"
    )
    return f"{'; '.join(words)}: {how}"


def _finish(axes: Axes, curves: Sequence[pd.DataFrame], label: str) -> None:
    """Over numbers of ranks, from 0 up, the legend where no curve is."""
    axes.set_xticks(sorted({ranks for curve in curves for ranks in curve.ranks}))
    axes.set(xlabel="ranks", ylabel=label)
    most = max(curve.efficiency.max() for curve in curves)
    axes.set_ylim(0, None if label == "speed-up" else max(1.1, 1.05 * most))
    axes.legend(loc="upper left" if label == "speed-up" else "lower left")


def _table(rows: pd.DataFrame, device: str) -> Table:
    """Tabulate all that was measured on the CPU, or on GPUs."""
    from experiments.page import cell

    rows = rows.sort_values(["kind", "hidden", "ranks"])
    rows = rows.assign(
        epoch=1e3 * rows.epoch_seconds,
        spread=[
            f"{cell(1e3 * row.least_seconds)} to {cell(1e3 * row.most_seconds)}" for row in rows.itertuples()
        ],
        share=[_share_of_one(row) for row in rows.itertuples()],
    )
    names = {
        "kind": "scaling",
        "hidden": "hidden",
        "taken": "exchange",
        "ranks": "ranks",
        "batch": "batch",
        "samples": "samples",
        "epoch": "ms an epoch",
        "spread": "min to max",
        "step_us": "us a step",
        "gain": "speed-up",
        "efficiency": "efficiency",
        "share": "serial",
    }
    caption = (
        f"{NAMES[device]}: medians of {WINDOWS} windows of one epoch or more. Speed-up is in samples a "
        "second (weak scaling: Gustafson's). Serial is the serial share of each number of ranks by itself "
        "(Karp and Flatt): it grows with the ranks where the exchange does."
    )
    return Table(caption, rows[list(names)].rename(columns=names))


def _share_of_one(row: Any) -> float:
    """Return a row's serial share; NaN if Amdahl's law has none."""
    return serial_share(row.ranks, row.gain) if row.kind == STRONG and row.ranks > 1 else math.nan


def serial_share(ranks: int, gain: float) -> float:
    """Return Karp and Flatt's experimentally determined serial fraction (1990) of a speed-up."""
    return (1 / gain - 1 / ranks) / (1 - 1 / ranks)
