"""Real images: a convolutional network on Fashion-MNIST, timed from the shell that starts it."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments import figures, jobs
from experiments.study import FAILED, Figure, Point, Row, Section, Setup, Table, Taken
from nn.input import load
from pyrt.cache import VARIABLE, cache_folder
from pyrt.errors import UserError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

TITLE = "Real images"
QUESTION = (
    "How well does a convolutional network know the clothes of Fashion-MNIST, and how soon? train.py runs on "
    "one GPU where there is one, seed 0, a tenth of the 60,000 training images held out for validation. "
    "Seconds count from the start of the command to its end, as the shell sees it. On a GPU the first start "
    "finds an empty cache and compiles the kernels. One run each; by chance alone a precision over 10,000 "
    "test images has a standard error of 0.003."
)
COLUMNS = (
    *("net", "math", "augment", "words", "device"),
    *("start", "shell", "epoch", "at", "loss", "validation_precision", "test_precision"),
)
"""``shell``: seconds of the whole command. ``at``: seconds after which the line of the epoch came."""

DATA = "fashion-mnist"
PRECISION, SECONDS = 0.925, 8.0
"""The goal for one H200: at least, at most, in the second start."""

FIRST, SECOND, ONLY = "first", "second", "only"
"""Starts; on the CPU there is one, since nothing is compiled."""

NO_AUGMENT = "none"


class Run(NamedTuple):
    """A run: its network, its arithmetic, its --augment."""

    net: str
    math: str
    augment: str


CONV, DENSE, SMALL_CONV, SMALL_DENSE = "conv", "784-512-10", "small conv", "784-64-10"
NETS = {
    CONV: "conv3x3x32same,relu,conv3x3x32same,relu,pool2,conv3x3x64same,relu,conv3x3x64same,relu,pool2,"
    "dense256,relu,dropout0.5,dense10",
    DENSE: "dense512,relu,dense10",
    SMALL_CONV: "conv3x3x8,relu,pool2,dense64,relu,dense10",
    SMALL_DENSE: "dense64,relu,dense10",
}

GOAL = Run(CONV, "tf32", "flip")
FEW = (GOAL, Run(CONV, "tf32", NO_AUGMENT), Run(DENSE, "tf32", "flip"))
"""The runs of the small size."""

MORE = tuple(Run(CONV, math, augment) for math in ("float32", "bf16") for augment in ("flip", NO_AUGMENT))
ON_CPU = (Run(SMALL_CONV, "float32", NO_AUGMENT), Run(SMALL_DENSE, "float32", NO_AUGMENT))

EXTENT = "--epochs 15"
SMALL_EXTENT = "--epochs 2 --samples 4000 --device cpu"


def points(setup: Setup) -> list[Point]:
    if not setup.gpus:
        return [_point(run, SMALL_EXTENT, setup) for run in ON_CPU]
    return [_point(run, EXTENT, setup) for run in (FEW if setup.is_small else (*FEW, *MORE))]


def _point(run: Run, extent: str, setup: Setup) -> Point:
    words = f"--data {DATA} --net {NETS[run.net]} --optimiser adam --lr 0.001 --batch 250 {extent}"
    if run.math != "float32":
        words += f" --math {run.math}"
    if run.augment != NO_AUGMENT:
        words += f" --augment {run.augment}"
    return {**run._asdict(), "words": words, "device": setup.device}


def take(points: Sequence[Point], setup: Setup) -> Iterator[Taken]:
    """Run train.py for each as a user would, twice where kernels are compiled."""
    try:
        if points:
            load(DATA)  # downloads it, if need be, while nothing is timed
    except UserError as error:
        yield from ((point, [{FAILED: str(error)}]) for point in points)
        return
    for point in points:
        yield point, _rows(_on_gpu(point, setup) if setup.gpus else _on_cpu(point, setup))


def _on_cpu(point: Point, setup: Setup) -> Iterator[tuple[str, dict[str, Any]]]:
    yield ONLY, jobs.train(1, point["words"].split(), setup)


def _on_gpu(point: Point, setup: Setup) -> Iterator[tuple[str, dict[str, Any]]]:
    """Start twice with one cache, which at first has nothing but the data set."""
    with tempfile.TemporaryDirectory() as cache:
        downloaded = cache_folder(DATA)
        if downloaded.is_dir():
            (Path(cache) / DATA).symlink_to(downloaded.resolve())
        for start in (FIRST, SECOND):
            yield start, jobs.train(1, point["words"].split(), setup, {VARIABLE: cache})


def _rows(starts: Iterator[tuple[str, dict[str, Any]]]) -> list[Row]:
    """Return a row for each epoch of each start; one row alone if a start fails."""
    rows: list[Row] = []
    for start, report in starts:
        if failed := jobs.failed_rows(report):
            return failed
        rows += rows_of(start, report)
    return rows


def rows_of(start: str, report: dict[str, Any]) -> list[Row]:
    """Join the epochs of a report with the moments at which the run printed them."""
    moments = [seconds for seconds, line in report["lines"] if re.match(r"epoch +\d+/\d", line)]
    return [
        {
            "start": start,
            "shell": report["shell"],
            "epoch": epoch["epoch"],
            "at": at,
            "loss": epoch["loss"],
            "validation_precision": epoch["validation_precision"],
            "test_precision": report["test"]["precision"],
        }
        for epoch, at in zip(report["epochs"], moments, strict=True)
    ]


def missing(setup: Setup) -> list[str]:
    if setup.gpus:
        return []
    return [
        f"the goal for one H200, a test precision of {PRECISION} in at most {SECONDS:g} s: there is no GPU; "
        "small networks learn a few of the images in NumPy, in its place"
    ]


def section(rows: pd.DataFrame, setup: Setup) -> Section:
    result = Section()
    if len(rows):
        ends = ends_of(rows)
        later = ends[ends.start != FIRST]
        result.find("accuracy", *_goal(ends))
        result.find("ends", *_augmented(later), *_maths(later), *_nets(later))
        _curves(rows, setup, result)
        _ends(later, setup, result)
        result.tables.append(_table(ends))
    return result


def ends_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the row of each run's last epoch."""
    return rows.groupby(["net", "math", "augment", "start"], sort=False, as_index=False).last()


def _is_goal(rows: pd.DataFrame) -> pd.Series[bool]:
    return (rows.net == GOAL.net) & (rows.math == GOAL.math) & (rows.augment == GOAL.augment)


def _goal(ends: pd.DataFrame) -> list[str]:
    """Say what the goal's command reached, beside the goal."""
    runs = {run.start: run for run in ends[_is_goal(ends)].itertuples()}
    if runs.keys() < {FIRST, SECOND}:
        return []
    first, second = runs[FIRST], runs[SECOND]
    missed = [
        *([f"{PRECISION - second.test_precision:.4f}"] if second.test_precision < PRECISION else []),
        *([f"{second.shell - SECONDS:.1f} s"] if second.shell > SECONDS else []),
    ]
    return [
        f"`python train.py {second.words}` ends with a test precision of {second.test_precision:.4f} after "
        f"{second.epoch} epochs, {second.shell:.1f} s from shell to shell in the second start; the first "
        f"one, which compiles the kernels, takes {first.shell:.1f} s. The goal for one H200, {PRECISION} in "
        f"at most {SECONDS:g} s, is {'missed by ' + ' and '.join(missed) if missed else 'reached'}."
    ]


def _augmented(ends: pd.DataFrame) -> list[str]:
    """Compare runs with and without changed images."""
    found = []
    for (net, math), runs in ends.groupby(["net", "math"], sort=False):
        by_word = runs.set_index("augment").test_precision
        found += [
            f"--augment {word} takes the test precision of {net}, {math}, from {by_word[NO_AUGMENT]:.4f} to "
            f"{precision:.4f}."
            for word, precision in by_word.items()
            if NO_AUGMENT in by_word and word != NO_AUGMENT
        ]
    return found


def _maths(ends: pd.DataFrame) -> list[str]:
    """Compare the accuracies of products, all else as in the goal's command."""
    runs = ends[(ends.net == GOAL.net) & (ends.augment == GOAL.augment)]
    if len(runs) < 2:
        return []
    said = "; ".join(f"{run.math} {_reached(run)}" for run in runs.itertuples())
    return [f"The accuracy of products, of {GOAL.net} with --augment {GOAL.augment}: {said}."]


def _nets(ends: pd.DataFrame) -> list[str]:
    """Compare the networks, with the options of the first run."""
    first = ends.iloc[0]
    runs = ends[(ends.math == first.math) & (ends.augment == first.augment)]
    return [f"Networks: {'; '.join(f'{run.net} {_reached(run)}' for run in runs.itertuples())}."]


def _reached(run: Any) -> str:
    return f"ends at {run.test_precision:.4f} after {run.shell:.1f} s"


def _name(run: Any) -> str:
    return f"{run.net}, {run.math}{'' if run.augment == NO_AUGMENT else ', ' + run.augment}"


def _mark_goal(axes: Axes) -> None:
    axes.axhline(PRECISION, color="black", linewidth=1, linestyle=":")
    axes.axvline(SECONDS, color="black", linewidth=1, linestyle=":")


def _curves(rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    """Draw the epochs of the networks, with and without changed images; the first start of the goal's."""
    figure, axes = figures.canvas()
    chosen = rows[(rows.math == rows.math.iloc[0]) & ((rows.start != FIRST) | _is_goal(rows))]
    for number, (_, run) in enumerate(chosen.groupby(["net", "augment", "start"], sort=False)):
        end, style = run.iloc[-1], figures.style(number)
        name = f"{_name(end)}{'' if end.start == ONLY else f', {end.start} start'}"
        axes.plot(run["at"], run.validation_precision, label=name, **style)
        axes.plot(end.shell, end.test_precision, "*", color=style["color"], markersize=15)
    figures.plain_log(axes, "x")
    axes.set(xlabel="s since the shell", ylabel="validation precision")
    figure.legend(loc="outside upper center", ncols=1 if setup.gpus else 2)
    caption = (
        "Validation precision of each epoch over the seconds since the command was typed; the stars are the "
        f"test precision at the end of the run, of {end.epoch} epochs."
    )
    if setup.gpus:
        _mark_goal(axes)
        caption += f" Dotted: the goal for one H200, {PRECISION} in {SECONDS:g} s."
    result.figures.append(Figure(figures.save(figure, setup.folder, "accuracy"), caption))


def _ends(ends: pd.DataFrame, setup: Setup, result: Section) -> None:
    figure, axes = figures.canvas()
    for number, run in enumerate(ends.itertuples()):
        axes.plot(run.shell, run.test_precision, label=_name(run), **figures.dots(number))
    axes.set(xlabel="s from shell to shell", ylabel="test precision")
    axes.set_xlim(left=0)
    figure.legend(loc="outside upper center", ncols=2)
    caption = "Test precision at the end over the seconds of the whole command"
    if setup.gpus:
        _mark_goal(axes)
        caption += f", second start. Dotted: the goal for one H200, {PRECISION} in {SECONDS:g} s"
    result.figures.append(Figure(figures.save(figure, setup.folder, "ends"), f"{caption}."))


def _table(ends: pd.DataFrame) -> Table:
    columns = {
        "net": "network",
        "math": "products",
        "augment": "--augment",
        "start": "start",
        "epoch": "epochs",
        "shell": "s from shell to shell",
        "test_precision": "test precision",
    }
    table = ends[list(columns)].rename(columns=columns)
    table["test precision"] = [f"{precision:.4f}" for precision in table["test precision"]]
    nets = "; ".join(f"{net}: {NETS[net]}" for net in dict.fromkeys(ends.net))
    return Table(f"All runs. {nets}.", table)
