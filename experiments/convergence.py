"""How training converges: loss and precision over learning rate, hidden size, batch and epochs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from experiments import convergence_length, figures, jobs
from experiments.study import Figure, Point, Row, Section, Setup, Table, Taken

if TYPE_CHECKING:
    import pandas as pd

    from pyrt.job import Job

TITLE = "Convergence"
QUESTION = (
    "Which learning rate, width and batch get furthest, how fast, and where does training begin to learn its "
    "samples by heart? Each run trains on the embedded digits (4,000 for training, a tenth of them held out "
    "for validation, 1,000 for the test), one hidden layer, float32, seed 0."
)
COLUMNS = (
    *("varied", "lr", "hidden", "batch", "epochs", "device", "threads"),
    *("epoch", "loss", "validation_loss", "validation_precision", "test_precision", "seconds"),
)

BASE: Point = {"lr": 1.0, "hidden": 128, "batch": 400}
"""Varied one or two at a time."""

GOOD = 0.9
"""Validation precision that is waited for."""


class Extent(NamedTuple):
    """What is varied."""

    rates: tuple[float, ...]
    hidden: tuple[int, ...]
    batches: tuple[int, ...]
    epochs: int
    long: int
    """Epochs of the runs that look for overfitting."""
    longest: int
    """Epochs of the runs that converge, with `narrow` hidden layers or with those above."""
    narrow: tuple[int, ...] = ()


EXTENTS = {
    "small": Extent((1e-3, 1e-1, 1.0, 10.0), (16, 128, 512), (100, 800), 6, 15, 50, (4, 16, 64)),
    "full": Extent(
        (1e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 2.0, 4.0, 10.0),
        (16, 32, 64, 128, 256, 512, 1024, 2048),
        (50, 100, 200, 400, 800, 1600, 3600),
        30,
        200,
        1000,
    ),
}

ON_CORES = (4, 8, 16, 32, 64, 128)
"""Hidden units of the longest runs of the full size without a GPU."""


def points(setup: Setup) -> list[Point]:
    """List the points. The small size has one BLAS thread: several wait for each other on busy cores."""
    extent = EXTENTS[setup.size]
    threads = 1 if setup.is_small else None
    common = {**BASE, "epochs": extent.epochs, "device": setup.device, "threads": threads}
    found = [
        *(
            {"varied": "rate", **common, "lr": lr, "hidden": hidden}
            for lr in extent.rates
            for hidden in extent.hidden
        ),
        *(
            {"varied": "batch", **common, "lr": lr, "batch": batch}
            for lr in extent.rates
            for batch in extent.batches
        ),
    ]
    long = {**common, "epochs": extent.long, "batch": min(extent.batches)}
    found += [
        {"varied": "epochs", **long, "hidden": hidden} for hidden in (min(extent.hidden), max(extent.hidden))
    ]
    longest = {**common, "epochs": extent.longest}
    widths = extent.narrow or (extent.hidden if setup.gpus else ON_CORES)
    found += [{"varied": "length", **longest, "hidden": hidden} for hidden in widths]
    return found


def take(points: Sequence[Point], setup: Setup) -> Iterator[Taken]:
    return jobs.measured(__name__, points, setup)


def measure(point: Point, job: Job, folder: Path) -> list[Row]:
    """Return a row an epoch; if the training diverges, return one row of infinite loss."""
    from nn.app.options import Options
    from nn.train.diverged import Diverged
    from train import train

    options = Options(
        hidden=(point["hidden"],),
        lr=point["lr"],
        momentum=0.0,
        batch=point["batch"],
        epochs=point["epochs"],
        device=point["device"],
    )
    try:
        report = train(options, job)
    except Diverged:
        return [{"epoch": 1, "loss": math.inf, "validation_precision": 0.0, "test_precision": 0.0}]
    precision = report.test.precision if report.test is not None else None
    return [
        {
            "epoch": epoch.epoch,
            "loss": epoch.loss,
            "validation_loss": epoch.validation_loss,
            "validation_precision": epoch.validation_precision,
            "test_precision": precision,
            "seconds": epoch.seconds,
        }
        for epoch in report.epochs
    ]


def missing(setup: Setup) -> list[str]:
    return []


def section(rows: pd.DataFrame, setup: Setup) -> Section:
    result = Section()
    for varied, draw in (
        ("rate", _rates),
        ("batch", _batches),
        ("epochs", _overfitting),
        ("length", convergence_length.section),
    ):
        mine = rows[rows.varied == varied]
        if len(mine):
            draw(mine, setup, result)
    return result


def _last(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the row of each run's last epoch."""
    return rows.sort_values("epoch").groupby(["lr", "hidden", "batch"], as_index=False).last()


def _precisions(last: pd.DataFrame, column: str, label: str, setup: Setup, name: str) -> str:
    """Draw a map of the validation precision over the learning rate and a column; return its file."""
    figure, axes = figures.canvas()
    table = last.pivot(index=column, columns="lr", values="validation_precision")
    table = table.rename_axis(index=label, columns="learning rate")
    figures.heatmap(axes, table, "{:.2f}", "validation precision", vmin=0, vmax=1)
    return figures.save(figure, setup.folder, name)


def _rates(rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    last, epochs = _last(rows), rows.epoch.max()
    best = last.loc[last.validation_precision.idxmax()]
    result.find(
        "rates",
        f"After {epochs} epochs the best of {len(last)} runs, learning rate {best.lr:g} with {best.hidden} "
        f"hidden units, has a validation precision of {best.validation_precision:.3f} and a test precision "
        f"of {best.test_precision:.3f}.",
    )
    caption = (
        f"Validation precision after {epochs} epochs over learning rate and hidden size, batch "
        f"{BASE['batch']}. Too small a rate has not got there yet; too large a one jumps about (0: the loss "
        "became infinite)."
    )
    file = _precisions(last, "hidden", "hidden units", setup, "rates")
    result.figures.append(Figure(file, caption))
    _curves(rows[rows.hidden == BASE["hidden"]], setup, result)
    _speed(rows, setup, result)


def _curves(rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    figure, axes = figures.canvas()
    for number, (rate, run) in enumerate(rows.groupby("lr")):
        axes.plot(run.epoch, run.loss, label=f"{rate:g}", **figures.style(number), markevery=0.2)
    axes.set(xlabel="epoch", ylabel="training loss")
    figures.plain_log(axes, "y")
    figure.legend(title="learning rate", loc="outside upper center", ncols=5)
    caption = (
        f"Mean training loss of each epoch, {BASE['hidden']} hidden units, batch {BASE['batch']}: a curve "
        "for each learning rate."
    )
    result.figures.append(Figure(figures.save(figure, setup.folder, "curves"), caption))


def _speed(rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    """Epochs until the validation set is known well."""
    there = rows[rows.validation_precision >= GOOD].groupby(["hidden", "lr"], as_index=False).epoch.min()
    if not len(there):
        result.find("rates", f"No run reached a validation precision of {GOOD} in {rows.epoch.max()} epochs.")
        return
    fastest = there.loc[there.groupby("hidden").epoch.idxmin()]
    table = fastest.rename(
        columns={"hidden": "hidden units", "lr": "fastest learning rate", "epoch": "epochs"}
    )
    result.tables.append(
        Table(f"The learning rate that reaches a validation precision of {GOOD} first.", table)
    )
    first = there.loc[there.epoch.idxmin()]
    result.find(
        "speed",
        f"Validation precision {GOOD} is reached first by learning rate {first.lr:g} with {first.hidden:.0f} "
        f"hidden units, in {first.epoch:.0f} epoch(s).",
    )
    figure, axes = figures.canvas()
    for number, (hidden, run) in enumerate(there.groupby("hidden")):
        axes.plot(run.lr, run.epoch, label=f"{hidden}", **figures.style(number))
    axes.set(xlabel="learning rate", ylabel=f"epochs to precision {GOOD}")
    figures.plain_log(axes, "x")
    axes.set_ylim(bottom=0)
    figure.legend(title="hidden units", loc="outside upper center", ncols=4)
    caption = (
        f"Epochs until the validation precision first reaches {GOOD}, batch {BASE['batch']}; rates that do "
        f"not get there in {rows.epoch.max()} epochs have no point."
    )
    result.figures.append(Figure(figures.save(figure, setup.folder, "speed"), caption))


def _batches(rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    last = _last(rows)
    best = last.loc[last.groupby("batch").validation_precision.idxmax()]
    small, large = best.iloc[0], best.iloc[-1]
    result.find(
        "batches",
        f"After as many epochs batch {small.batch:.0f} gets furthest with learning rate {small.lr:g} "
        f"(validation precision {small.validation_precision:.3f}), batch {large.batch:.0f} with {large.lr:g} "
        f"({large.validation_precision:.3f}).",
    )
    caption = (
        f"Validation precision after {rows.epoch.max()} epochs over learning rate and batch, "
        f"{BASE['hidden']} hidden units: a smaller batch takes more steps an epoch."
    )
    file = _precisions(last, "batch", "batch, samples", setup, "batches")
    result.figures.append(Figure(file, caption))


def _overfitting(rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    figure, axes = figures.canvas()
    for number, (hidden, run) in enumerate(rows.groupby("hidden")):
        colour = figures.COLOURS[number]
        axes.plot(run.epoch, run.loss, color=colour, linestyle="--", label=f"{hidden} units, training")
        axes.plot(run.epoch, run.validation_loss, color=colour, label=f"{hidden} units, validation")
        turn = run.loc[run.validation_loss.idxmin()]
        axes.plot(turn.epoch, turn.validation_loss, "v", color=colour, markersize=11)
        end = run.iloc[-1]
        result.find(
            "overfitting",
            f"With {hidden} hidden units, batch {run.batch.iloc[0]}, the validation loss is least after "
            f"epoch {turn.epoch:.0f} of {end.epoch} ({turn.validation_loss:.3f}; at the end "
            f"{end.validation_loss:.3f}, of training {end.loss:.4f}).",
        )
    axes.set(xlabel="epoch", ylabel="loss")
    figures.plain_log(axes, "y")
    axes.legend()
    caption = (
        "Where training begins to learn its samples by heart: training and validation loss over the epochs, "
        f"learning rate {BASE['lr']:g}. The triangles mark the least validation loss."
    )
    result.figures.append(Figure(figures.save(figure, setup.folder, "overfitting"), caption))
