"""Long runs of `experiments.convergence`: loss over many epochs, and when and how well they converge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments import figures
from experiments.study import Figure, Section, Setup, Table

if TYPE_CHECKING:
    import pandas as pd

NEAR = 0.005
"""A run has converged at the first epoch whose validation precision is so near to its last level."""

LAST = 0.1
"""The last level is the mean over this part of the epochs."""


def section(rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    """Add the figures, the table and the findings of runs that differ in their hidden units."""
    _loss(rows, setup, result)
    ends = converged(rows)
    _over_hidden(ends, rows, setup, result)
    names = {
        "hidden": "hidden units",
        "level": "validation precision at convergence",
        "test_precision": "test precision after all epochs",
        "epoch": "epochs to convergence",
        "seconds": "seconds to convergence",
    }
    caption = (
        f"Runs of {rows.epoch.max()} epochs: converged is the first epoch whose validation precision is "
        f"within {NEAR} of its mean over the last {LAST:.0%} of the epochs."
    )
    result.tables.append(Table(caption, ends[[*names]].rename(columns=names)))


def converged(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each hidden size: its last level, and epoch and seconds at which it was reached.

    Seconds are those of all epochs up to there, their validation included.
    """
    import pandas as pd

    found = []
    for hidden, run in rows.sort_values("epoch").groupby("hidden"):
        level = float(run.validation_precision.tail(max(1, round(LAST * len(run)))).mean())
        there = int((run.validation_precision > level - NEAR).to_numpy().argmax())
        found.append(
            {
                **{"hidden": hidden, "level": level, "epoch": int(run.epoch.iloc[there])},
                **{"seconds": float(run.seconds.iloc[: there + 1].sum())},
                **{"test_precision": float(run.test_precision.iloc[-1]), "loss": float(run.loss.iloc[-1])},
            }
        )
    return pd.DataFrame(found)


def _loss(rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    figure, axes = figures.canvas()
    for number, (hidden, run) in enumerate(rows.groupby("hidden")):
        axes.plot(run.epoch, run.loss, label=f"{hidden}", **figures.style(number), markevery=[-1])
    axes.set(xlabel="epoch", ylabel="training loss")
    for axis in "xy":
        figures.plain_log(axes, axis)
    axes.legend(title="hidden units", ncols=2)
    caption = (
        f"Mean training loss over {rows.epoch.max()} epochs, both axes logarithmic, learning rate "
        f"{rows.lr.iloc[0]:g}, batch {rows.batch.iloc[0]}: a curve for each hidden size."
    )
    result.figures.append(Figure(figures.save(figure, setup.folder, "length"), caption))


def _over_hidden(ends: pd.DataFrame, rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    """Show precision at convergence, and how long that takes, over the hidden size."""
    epochs = rows.epoch.max()
    figure, (left, right) = figures.canvas(1, 2)
    left.plot(ends.hidden, ends.level, label="validation, at convergence", **figures.style(0))
    left.plot(ends.hidden, ends.test_precision, label=f"test, after {epochs} epochs", **figures.style(1))
    left.set(xlabel="hidden units", ylabel="precision", xscale="log")
    left.legend()
    right.plot(ends.hidden, ends.seconds, label="seconds", **figures.style(2))
    right.plot(ends.hidden, ends.epoch, label="epochs", **figures.style(3))
    right.set(xlabel="hidden units", ylabel="to convergence", xscale="log")
    figures.plain_log(right, "y")
    right.legend()
    for axes in (left, right):
        figures.plain_ticks(axes, "x", sorted(ends.hidden))
    caption = (
        f"Left: precision over the hidden size, of runs of {epochs} epochs, learning rate "
        f"{rows.lr.iloc[0]:g}, batch {rows.batch.iloc[0]}. Right: epochs, and seconds of training on "
        f"{_place(rows)}, until the validation precision is within {NEAR} of its last level."
    )
    result.figures.append(Figure(figures.save(figure, setup.folder, "converged"), caption, wide=True))
    narrow, wide = ends.iloc[0], ends.iloc[-1]
    enough = ends[ends.level > ends.level.max() - NEAR].iloc[0]
    result.find(
        "length",
        f"After {epochs} epochs the training loss is {narrow.loss:.2g} with {narrow.hidden:.0f} hidden units "
        f"and {wide.loss:.2g} with {wide.hidden:.0f}.",
    )
    result.find(
        "converged",
        f"Precision at convergence goes from {narrow.level:.3f} "
        f"to {wide.level:.3f} (test: {narrow.test_precision:.3f} to {wide.test_precision:.3f}); "
        f"{enough.hidden:.0f} units are enough to be within {NEAR} of the best.",
        f"Convergence takes {narrow.epoch:.0f} epochs and {narrow.seconds:.3g} s with {narrow.hidden:.0f} "
        f"hidden units, {wide.epoch:.0f} epochs and {wide.seconds:.3g} s with {wide.hidden:.0f}, on "
        f"{_place(rows)}.",
    )


def _place(rows: pd.DataFrame) -> str:
    return "one GPU" if rows.device.iloc[0] == "cuda" else "the CPU"
