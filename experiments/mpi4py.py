"""The mpi4py report's own measurement: ten iterations by a master and workers on the cores of a CPU."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from experiments import figures, jobs, laws
from experiments.study import Figure, Point, Row, Section, Setup, Table, Taken, amount, listed

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from pyrt.job import Job

TITLE = "The mpi4py report's tables"
QUESTION = (
    "How do strong and weak scaling look in the very setting of the mpi4py report (APMA 4302)? Each rank "
    "computes the gradients of its part of the batch; rank 0 gathers them, averages, updates and sends the "
    "parameters. Sigmoid outputs, learning rate 0.1, ten iterations of one batch that is the whole training "
    "set, the digits repeated up to its size, one BLAS thread a rank. Each job is run several times."
)
COLUMNS = (
    *("kind", "repeat", "ranks", "threads", "hidden", "samples"),
    *("iteration", "cost", "seconds"),
)

STRONG, WEAK = "strong", "weak"

RANKS = (1, 2, 4, 6, 8)
"""The report's numbers of ranks; those above the number of cores are left out."""

PUBLISHED = {1: 1.0, 2: 1.84, 4: 2.95, 8: 3.97}
"""Its speed-ups in strong scaling: cited, not measured here. Its other numbers are not in this project."""

SAMPLES = {STRONG: 60000, WEAK: 5000}
"""Samples of an iteration: over all ranks, and of each rank."""

HIDDEN, RATE, ITERATIONS = 100, 0.1, 10

REPEATS = {"small": 3, "full": 5}
"""Jobs of each number of ranks, by size."""


def points(setup: Setup) -> list[Point]:
    return [
        {
            "kind": kind,
            "repeat": repeat,
            "ranks": ranks,
            "threads": 1,
            "hidden": HIDDEN,
            "samples": SAMPLES[kind] * (ranks if kind == WEAK else 1),
        }
        for repeat in range(REPEATS[setup.size])
        for ranks in setup.on_cores(RANKS)  # in turn: what slows a machine for a while slows all of them
        for kind in (STRONG, WEAK)
    ]


def take(points: Sequence[Point], setup: Setup) -> Iterator[Taken]:
    return jobs.measured(__name__, points, setup)


def measure(point: Point, job: Job, folder: Path) -> list[Row]:
    """Return a row an iteration: its cost, and its seconds on the slowest rank."""
    from nn.app.options import Options
    from train import train

    options = Options(
        hidden=(point["hidden"],),
        head="sigmoid",
        lr=RATE,
        momentum=0.0,
        device="cpu",
        exchange="root",
        samples=point["samples"],
        batch=point["samples"],
        epochs=ITERATIONS,
        val_fraction=0.0,
    )
    epochs = train(options, job).epochs
    seconds = np.max(job.comm.allgather([epoch.seconds for epoch in epochs]), axis=0)
    return [
        {"iteration": epoch.epoch, "cost": epoch.loss, "seconds": slowest}
        for epoch, slowest in zip(epochs, seconds.tolist(), strict=True)
    ]


def missing(setup: Setup) -> list[str]:
    reasons = [
        "the report's seconds, its weak scaling and its speed-up on 6 ranks: this project has its speed-ups "
        "on 2, 4 and 8 alone",
        f"its number of hidden units: not known here; {HIDDEN} are taken",
    ]
    if left := RANKS[len(setup.on_cores(RANKS)) :]:
        reasons.append(
            f"{listed(left)} ranks: there are {amount(setup.cores, 'core')}, and each rank takes one"
        )
    return reasons


def section(rows: pd.DataFrame, setup: Setup) -> Section:
    result = Section()
    if not len(rows):
        return result
    for kind, number, law in ((STRONG, 1, "Amdahl"), (WEAK, 2, "Gustafson")):
        times = times_of(rows[rows.kind == kind])
        if 1 not in times:
            continue
        fit = (laws.amdahl if kind == STRONG else laws.gustafson)(times)
        _draw_scaling(kind, times, fit, setup, result)
        result.find(kind, _scaling_finding(kind, times, fit, law))
        result.tables.append(_table(kind, times, number))
    _draw_iterations(rows[rows.kind == STRONG], setup, result)
    return result


def times_of(rows: pd.DataFrame) -> dict[int, list[float]]:
    """Return the seconds of ten iterations of each job, by ranks; jobs that were cut short are left out."""
    whole = rows.groupby(["ranks", "repeat"]).seconds.agg(["sum", "size"]).reset_index()
    whole = whole[whole["size"] == ITERATIONS]
    return {int(ranks): list(mine["sum"]) for ranks, mine in whole.groupby("ranks")}


def gain(kind: str, times: laws.Times, ranks: int, seconds: float | None = None) -> float:
    """Return the speed-up T(1) / T(p), by means; of weak scaling Gustafson's, p T(1) / T(p).

    ``seconds`` are those of one job on so many ranks, in the place of the mean.
    """
    return _mean(times[1]) / (seconds or _mean(times[ranks])) * (ranks if kind == WEAK else 1)


def _scaling_finding(kind: str, times: laws.Times, fit: laws.Fit, law: str) -> str:
    ranks = [p for p in times if p > 1]
    one = f"ten iterations take {_mean(times[1]):.2f} s on one rank"
    work = f"{SAMPLES[kind]:,} samples{' a rank' if kind == WEAK else ''}"
    if not ranks:
        return f"{kind.capitalize()} scaling, {work}: {one}; there is no core for more ranks."
    seconds = listed(f"{_mean(times[p]):.2f}" for p in ranks)
    speed = listed(f"{gain(kind, times, p):.2f}" for p in ranks)
    name = "speed-up" if kind == STRONG else "scaled speed-up"
    text = (
        f"{kind.capitalize()} scaling, {work}: {one}, {seconds} s on {listed(ranks)}; {name} {speed}. "
        f"{law}'s law gives {fit}."
    )
    known = [p for p in ranks if p in PUBLISHED]
    if kind == STRONG and known:
        text += f" The mpi4py report has {listed(f'{PUBLISHED[p]:.2f}' for p in known)} on {listed(known)}."
    return text


def _draw_scaling(kind: str, times: laws.Times, fit: laws.Fit, setup: Setup, result: Section) -> None:
    figure, (left, right) = figures.canvas(columns=2)
    ranks = np.array(sorted(times), float)
    gained = {p: [gain(kind, times, p, seconds) for seconds in mine] for p, mine in times.items()}
    line = np.linspace(1, ranks.max())
    one = _mean(times[1])
    left.plot(line, one / line if kind == STRONG else np.full_like(line, one), **_IDEAL)
    right.plot(line, line, **_IDEAL)
    for axes, values in ((left, times), (right, gained)):
        figures.repeats(axes, values, 0, label="measured")
    if len(ranks) > 2 and not fit.refusal:
        law = laws.speed_up if kind == STRONG else laws.scaled_speed_up
        label = f"serial share {100 * fit.share:.1f} % ± {100 * fit.error:.1f}"
        right.plot(line, law(line, fit.share), color=figures.COLOURS[0], label=label)
    published = {p: gain for p, gain in PUBLISHED.items() if p <= ranks.max()}
    if kind == STRONG and len(published) > 1:
        right.plot(published.keys(), published.values(), "x", color=figures.COLOURS[1], label="mpi4py report")
    for axes, label in ((left, "seconds of ten iterations"), (right, _GAINS[kind])):
        _finish(axes, ranks, label)
    work = f"{SAMPLES[kind]:,} samples{' a rank' if kind == WEAK else ''}"
    caption = (
        f"{kind.capitalize()} scaling, {work}, 784-{HIDDEN}-10: time over ranks, and {_GAINS[kind]}. Points: "
        "single jobs, and bars from their mean to one standard deviation either way. Dotted: the ideal."
    )
    result.figures.append(Figure(figures.save(figure, setup.folder, kind), caption, wide=True))


_IDEAL = {"color": "black", "linestyle": ":", "label": "ideal"}
_GAINS = {STRONG: "speed-up", WEAK: "scaled speed-up"}


def _finish(axes: Axes, ranks: np.ndarray, label: str) -> None:
    axes.set_xticks(ranks)
    axes.set(xlabel="ranks", ylabel=label)
    axes.set_ylim(bottom=0)
    axes.legend()


def _draw_iterations(rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    """Draw the cost and the time of every iteration, as the report's Figure 7."""
    if not len(rows):
        return
    figure, (left, right) = figures.canvas(columns=2)
    for number, (ranks, mine) in enumerate(rows.groupby("ranks")):
        cost = mine.groupby("iteration").cost.mean()
        left.plot(cost.index, cost, **figures.style(number), label=amount(ranks, "rank"))
        seconds = {key: list(value) for key, value in mine.groupby("iteration").seconds}
        figures.repeats(right, seconds, number, label=amount(ranks, "rank"))
    for axes, label in ((left, "cost J"), (right, "seconds")):
        axes.set(xlabel="iteration", ylabel=label)
        axes.set_xticks(range(1, ITERATIONS + 1))
    left.legend()
    right.set_ylim(bottom=0)
    caption = (
        f"Cost and time of every iteration, {SAMPLES[STRONG]:,} samples. The cost does not depend on the "
        "ranks: all train the same network. The first takes longer: memory is touched for the first time."
    )
    result.figures.append(Figure(figures.save(figure, setup.folder, "iterations"), caption, wide=True))
    first, last = rows[rows.iteration == 1], rows[rows.iteration == ITERATIONS]
    spread = _relative_spread(rows[rows.ranks == rows.ranks.min()])
    text = f"The cost falls from {first.cost.mean():.3f} in the first iteration to "
    text += f"{last.cost.mean():.3f} in the last."
    if spread > NOISY:
        text += (
            f" Iterations of the same work differ by {100 * spread:.0f} % (standard deviation over mean): "
            "on so noisy a machine none of these times can tell small differences."
        )
    result.find("iterations", text)


NOISY = 0.1
"""Standard deviation of iterations over their mean, above which a finding says that the machine is noisy."""


def _relative_spread(rows: pd.DataFrame) -> float:
    """Return the standard deviation over the mean of all iterations but the first."""
    seconds = rows[rows.iteration > 1].seconds
    return float(seconds.std() / seconds.mean()) if len(seconds) > 1 else 0.0


def _table(kind: str, times: laws.Times, number: int) -> Table:
    import pandas as pd

    lines = []
    for p, mine in times.items():
        line = {
            "ranks": p,
            "samples": SAMPLES[kind] * (p if kind == WEAK else 1),
            "jobs": len(mine),
            "seconds": _mean(mine),
            "min to max": f"{min(mine):.3g} to {max(mine):.3g}",
            _GAINS[kind]: gain(kind, times, p),
            "efficiency": gain(kind, times, p) / p,
        }
        if kind == STRONG:
            line["published speed-up"] = PUBLISHED.get(p, math.nan)
        lines.append(line)
    caption = (
        f"The report's Table {number}: {kind} scaling. Seconds are those of ten iterations, the mean of the "
        "jobs."
    )
    return Table(caption, pd.DataFrame(lines))


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
