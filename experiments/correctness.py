"""How far training moves from the sequential reference: weights and precision, over steps, rates, ranks."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from experiments import figures, jobs
from experiments.study import Figure, Point, Row, Section, Setup, Table, Taken

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from nn.network import Network
    from nn.options import Options
    from pyrt.job import Job

TITLE = "Correctness"
QUESTION = (
    "How far do trained weights move from those of the sequential NumPy reference, which takes the same "
    "steps from the same start in float64, and does precision agree where weights do not? The difference is "
    "in relative max norm, max |w - r| / max |r| of the worst parameter, r the reference's (relative l2 is "
    "of all together). Where nothing else is said, 784-64-10 trains on the embedded digits, batch 400."
)
SETTING = ("lr", "hidden", "batch", "samples", "pixel_scale", "start")
"""The columns that the reference depends on, with the epochs."""

COLUMNS = (
    *("varied", "device", "dtype", "ranks", "threads", *SETTING, "epochs"),
    *("epoch", "steps", "max_norm", "l2", "tolerance", "precision", "reference_precision"),
)

DTYPES = ("float32", "float64")

EMBEDDED = 3600
"""Training samples of the embedded digits, less those held out for validation."""

BASE: Point = {
    "lr": 1.0,
    "hidden": 64,
    "batch": 400,
    "samples": EMBEDDED,
    "pixel_scale": 255.0,
    "start": "usual",
}
"""Varied one at a time."""

CHAOTIC = 8.0
"""A learning rate at which the least difference grows; ranks are varied with it, too."""

GRADED: Point = {"hidden": 100, "batch": 800, "pixel_scale": 1.0, "start": "small"}
"""Runs that CME 213 grades: raw pixels, and the small initial weights of the code that it hands out."""

GRADED_RUNS = ((5e-4, 40), (1e-3, 10), (2e-3, 1))
"""Their learning rates and epochs."""

GRADED_SAMPLES = 54_000
"""Their epoch: MNIST's 60,000 less a tenth."""

SMALL_DEVIATION = 0.01
"""Of small initial weights: normal ones; biases are zero."""

TINY: Point = {**BASE, "hidden": 16, "batch": 32, "samples": 64, "epochs": 3}
"""What is emulated, which is slow."""

COMPARED = (1, 2, 5, 10, 20)
"""Epochs after which weights are compared, beside the last, where the difference is followed."""

SATURATED = 0.1
"""Relative difference from which weights have little in common: it hardly grows from there on."""

GRADED_COLUMNS = {
    "lr": "learning rate",
    "epochs": "epochs",
    "steps": "steps",
    "dtype": "dtype",
    "max_norm": "relative max norm",
    "l2": "relative l2",
    "tolerance": "tolerance",
    "precision": "precision",
    "reference_precision": "the reference's",
}
"""Of their table, and how it calls them."""

WEIGHTS = "weights"
"""The folder in the study's with initial, reference and trained weights, while it is taken."""


class Extent(NamedTuple):
    """What is varied."""

    rates: tuple[float, ...]
    hidden: tuple[int, ...]
    epochs: int
    graded_samples: int


EXTENTS = {
    "small": Extent((0.1, 1.0, 4.0, 8.0), (16, 64, 128), 10, EMBEDDED),
    "full": Extent((0.1, 1.0, 4.0, 8.0), (16, 64, 256, 512), 40, GRADED_SAMPLES),
}


def points(setup: Setup) -> list[Point]:
    """Those of one rank first: it has all cores for the references, and the others find them. In the small
    size it has one: threads of BLAS that wait for each other on busy cores take many times as long."""
    extent = EXTENTS[setup.size]
    base = {**BASE, "device": setup.device, "epochs": extent.epochs}
    common = {"threads": 1 if setup.is_small else None}
    graded = {**base, **GRADED, "samples": extent.graded_samples}
    alone = [
        *({"varied": "rate", **base, "lr": lr} for lr in extent.rates),
        *(
            {"varied": "hidden", **base, "hidden": units}
            for units in extent.hidden
            if units != BASE["hidden"]
        ),
        *({"varied": "graded", **graded, "lr": lr, "epochs": epochs} for lr, epochs in GRADED_RUNS),
    ]
    several = [{"varied": "ranks", **base, "lr": lr} for lr in (BASE["lr"], CHAOTIC)]
    tiny = [{"varied": "emulated", **TINY, "device": "emulated"}] if _emulates(setup) else []
    found = [{**point, "ranks": 1} for point in (*alone, *tiny)]
    for ranks in setup.ranks[1:]:
        found += [{**point, "ranks": ranks} for point in (*several, *(tiny if ranks == 2 else ()))]
    return [{**point, **common, "dtype": dtype} for point in found for dtype in DTYPES]


def _emulates(setup: Setup) -> bool:
    """Whether kernels are emulated, for want of a GPU."""
    return setup.emulates and not setup.gpus


def take(points: Sequence[Point], setup: Setup) -> Iterator[Taken]:
    """References are made anew: those that a stopped study left may be of other code."""
    weights = setup.folder / WEIGHTS
    shutil.rmtree(weights, ignore_errors=True)
    weights.mkdir(parents=True)
    try:
        yield from jobs.measured(__name__, points, setup)
    finally:
        shutil.rmtree(weights, ignore_errors=True)


def measure(point: Point, job: Job, folder: Path) -> list[Row]:
    """A row for each epoch after which weights are compared: those of a run that ends there, as what a run
    does in an epoch does not depend on how many follow."""
    from nn.run import run

    weights = folder / WEIGHTS
    options, epochs = _options(point, weights), _compared(point)
    with job.together():
        if job.rank == 0:
            _make_reference(point, options, epochs, weights)
    rows = []
    for epoch in epochs:
        run(dataclasses.replace(options, epochs=epoch), job)
        if job.rank == 0:
            rows.append(_row(options, epoch, _reference_file(point, epoch, weights)))
    return rows


def _compared(point: Point) -> list[int]:
    """The epochs after which weights are compared."""
    last = point["epochs"]
    follows = point["varied"] in ("rate", "graded")
    return [*(epoch for epoch in COMPARED if follows and epoch < last), last]


def _options(point: Point, weights: Path) -> Options:
    from nn.options import Options

    names = "lr", "batch", "samples", "pixel_scale", "epochs", "dtype", "device"
    return Options(
        hidden=(point["hidden"],),
        init=weights / f"{point['start']}-start-{point['hidden']}-hidden.npz",
        save=weights / "trained.npz",
        **{name: point[name] for name in names},
    )


def _reference_file(point: Point, epoch: int, weights: Path) -> Path:
    """The reference's weights after an epoch."""
    setting = "-".join(f"{name}-{point[name]}" for name in SETTING)
    return weights / f"reference-{setting}-epoch-{epoch}.npz"


def _make_reference(point: Point, options: Options, epochs: Sequence[int], weights: Path) -> None:
    """Train it once through these epochs and keep its weights after each, unless a point before did."""
    from nn import check, data, parameters, reference
    from nn.batches import Schedule, split
    from nn.network import Network

    files = [_reference_file(point, epoch, weights) for epoch in epochs]
    if all(file.exists() for file in files):
        return
    digits = data.load(options.data)
    sizes = digits.images.shape[1], *options.hidden, digits.classes
    network = Network(sizes, options.activation, options.head)
    trained = _start(network, point["start"], options.seed)
    assert options.init is not None and digits.test_images is not None and digits.test_labels is not None
    parameters.save(options.init, trained, {})
    trained = {name: array.astype(np.float64) for name, array in trained.items()}
    rows = split(len(digits.images), options.val_fraction)
    schedule = Schedule(rows, point["samples"], options.batch, epochs[-1], options.shuffle, options.seed)
    batches = check.batches(options, digits, schedule)
    way = options.activation, options.head, options.reg, options.lr, options.momentum
    for file, (before, epoch) in zip(files, pairwise([0, *epochs]), strict=True):
        # Without momentum nothing but the parameters goes from one part of a training to the next.
        trained = reference.train(trained, islice(batches, (epoch - before) * schedule.batches), *way)
        precision = check.precision_on((digits.test_images, digits.test_labels), trained, options)
        parameters.save(file, trained, {"steps": epoch * schedule.batches, "test_precision": precision})


def _start(network: Network, start: str, seed: int) -> dict[str, np.ndarray]:
    """Initial values, numbers of float32: so all of a difference comes about in training."""
    from nn import parameters

    values = parameters.initial(network, "float32", seed)
    if start == "small":
        generator = np.random.default_rng(seed)
        for layer in network.layers:
            weights = generator.standard_normal(network.shapes[f"W{layer}"]) * SMALL_DEVIATION
            values[f"W{layer}"] = weights.astype(np.float32)
    return values


def _row(options: Options, epoch: int, reference: Path) -> Row:
    """What was trained beside the reference."""
    assert options.save is not None
    (weights, story), (truth, told) = _read(options.save), _read(reference)
    return {
        "epoch": epoch,
        "steps": told["steps"],
        **differences(weights, truth),
        "tolerance": options.check_tolerance,
        "precision": story["test_precision"],
        "reference_precision": told["test_precision"],
    }


def _read(file: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The parameters that a file holds, and its story."""
    with np.load(file) as content:
        arrays = {name: content[name] for name in content.files}
    return arrays, json.loads(str(arrays.pop("run")))


def differences(weights: Mapping[str, np.ndarray], truth: Mapping[str, np.ndarray]) -> Row:
    """The relative max norm of the worst parameter, and the relative l2 of all together."""
    from nn.check import difference

    together = [np.concatenate([arrays[name].ravel() for name in truth]) for arrays in (weights, truth)]
    return {
        "max_norm": max(difference(name, weights[name], truth[name]).max_norm for name in truth),
        "l2": difference("all", *together).l2,
    }


def missing(setup: Setup) -> list[str]:
    reasons = []
    if not setup.gpus:
        reasons.append(
            "weights trained on a GPU: there is none; NumPy trains in its place, in the run's dtype"
        )
    if not setup.gpus and not setup.emulates:
        reasons.append("emulated kernels: there is no C++ compiler")
    if setup.gpus == 1:
        reasons.append("sums over several GPUs: there is one")
    if setup.is_small:
        reasons.append(
            f"the course's graded runs with {GRADED_SAMPLES:,} samples an epoch: the small size takes the "
            f"embedded digits' {EMBEDDED:,}, and so fewer steps"
        )
    return reasons


def section(rows: pd.DataFrame, setup: Setup) -> Section:
    result = Section()
    swept = rows[rows.varied.isin(("rate", "hidden", "ranks"))]
    for part, draw in (
        (rows[rows.varied == "rate"], _growth),
        (_last(rows), _tolerances),
        (rows, _precision),
        (_last(swept), _ends),
        (rows[rows.varied == "graded"], _graded),
        (rows[rows.varied == "emulated"], _emulated),
    ):
        if len(part):
            draw(part, setup, result)
    return result


def growth(steps: Sequence[float], differences: Sequence[float]) -> tuple[float, float, float] | None:
    """The first and the last step at which there is a difference that is not saturated, and by which factor
    it grows between them; None where there are no two."""
    kept = [(at, size) for at, size in zip(steps, differences, strict=True) if 0 < size < SATURATED]
    if len(kept) < 2:
        return None
    (first, before), (last, after) = kept[0], kept[-1]
    return first, last, after / before


def _last(rows: pd.DataFrame) -> pd.DataFrame:
    """Of each run the row of its last epoch."""
    return rows[rows.epoch == rows.epochs]


def _trained(rows: pd.DataFrame) -> str:
    """Whose weights they are."""
    return {"cuda": "the GPU's", "cpu": "NumPy's"}[rows.device.iloc[0]]


def _between(values: pd.Series) -> str:
    return f"{values.min():.1e} to {values.max():.1e}"


def _times(factor: float) -> str:
    """A factor with two digits that count."""
    return f"{float(f'{factor:.2g}'):,g} times"


def _growth(rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    """The difference over the steps, for each learning rate."""
    figure, axes = figures.canvas()
    for number, (rate, runs) in enumerate(rows.groupby("lr")):
        _curves(axes, runs, f"{rate:g}", number)
    axes.set(xlabel="steps", ylabel="relative max norm", yscale="log")
    axes.set_xlim(left=0)
    _legend(figure, axes, "learning rate")
    _tolerance_lines(axes, rows)
    caption = (
        f"Difference of {_trained(rows)} weights from the reference's over the steps: float32 (solid) and "
        "float64 (dashed, open). Dotted: the tolerances of --check for each of them."
    )
    result.figures.append(Figure(figures.save(figure, setup.folder, "growth"), caption))
    result.findings += [*_levels(rows), *_factors(rows)]


def _curves(axes: Axes, runs: pd.DataFrame, label: str, number: int) -> None:
    """The difference of both dtypes, in one colour, named once."""
    for dtype, run in runs.sort_values("steps").groupby("dtype"):
        axes.plot(run.steps, run.max_norm, label=label, **_style(number, dtype))
        label = "_"  # names no second one


def _style(number: int, dtype: str) -> dict[str, Any]:
    """Of the curve of that number: solid for float32, dashed and open for float64."""
    style: dict[str, Any] = figures.style(number)
    return {**style, "linestyle": "--", "markerfacecolor": "white"} if dtype == "float64" else style


def _legend(figure: Canvas, axes: Axes, title: str | None = None) -> None:
    """Above the axes: curves lie at many heights."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, title=title, loc="outside upper center", ncols=len(labels))


def _tolerance_lines(axes: Axes, rows: pd.DataFrame) -> None:
    for tolerance in rows.tolerance.unique():
        axes.axhline(tolerance, color="#555555", linestyle=":", linewidth=1.5)


def _levels(rows: pd.DataFrame) -> list[str]:
    """How far both dtypes are at the end, at the usual learning rate."""
    ends = _last(rows[rows.lr == BASE["lr"]]).set_index("dtype")
    if set(ends.index) != set(DTYPES):
        return []
    single, double = ends.max_norm["float32"], ends.max_norm["float64"]
    less = f", {_times(single / double)} less" if 0 < double < single else ""
    return [
        f"At learning rate {BASE['lr']:g}, after {ends.steps.iloc[0]:.0f} steps, {_trained(rows)} float32 "
        f"weights differ from the reference's by {single:.1e}, those in float64 by {double:.1e}{less}."
    ]


def _factors(rows: pd.DataFrame) -> list[str]:
    """How fast the difference grows at the largest rate, beside the usual one."""
    doubles, largest = rows[rows.dtype == "float64"].sort_values("steps"), rows.lr.max()
    words = []
    for rate in sorted({BASE["lr"], largest}):
        run = doubles[doubles.lr == rate]
        grown = growth(run.steps, run.max_norm)
        if grown is not None:
            first, last, factor = grown
            words.append(f"{_times(factor)} from step {first:.0f} to {last:.0f} at learning rate {rate:g}")
    found = [f"The difference in float64 grows {', '.join(words)}."] if words else []
    apart = rows[(rows.dtype == "float32") & (rows.lr == largest) & (rows.max_norm >= SATURATED)]
    if len(apart):
        found.append(
            f"At learning rate {largest:g} float32 weights differ by {SATURATED:g} or more after "
            f"{apart.steps.min():.0f} steps, by {apart.max_norm.max():.2g} at most."
        )
    return found


def _ends(rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    """The difference at the end over learning rate, hidden size and ranks."""
    usual, alone = rows.hidden == BASE["hidden"], rows.ranks == 1
    rates, hidden = rows[usual & alone], rows[(rows.lr == BASE["lr"]) & alone]
    ranks = rows[usual & rows.lr.isin((BASE["lr"], CHAOTIC))]
    figure, panels = figures.canvas(1, 3, sharey=True)
    for axes, part, column, label in (
        (panels[0], rates, "lr", "learning rate"),
        (panels[1], hidden, "hidden", "hidden units"),
        (panels[2], ranks, "ranks", "ranks"),
    ):
        _panel(axes, part, column)
        _tolerance_lines(axes, rows)
        axes.set(xlabel=label, yscale="log")
    panels[0].set(ylabel="relative max norm")
    _legend(figure, panels[0])
    caption = (
        f"Difference of {_trained(rows)} weights from the reference's after {rows.steps.max():.0f} steps, "
        f"over the learning rate; over hidden units at learning rate {BASE['lr']:g}; over ranks at learning "
        f"rates {BASE['lr']:g} (circles) and {CHAOTIC:g} (triangles). Dotted: the tolerances of --check."
    )
    result.figures.append(Figure(figures.save(figure, setup.folder, "ends"), caption, wide=True))
    result.findings += [*_over_hidden(hidden), *_over_ranks(ranks[ranks.lr == BASE["lr"]])]


def _panel(axes: Axes, rows: pd.DataFrame, column: str) -> None:
    """Both dtypes over a column; where that is not the rate, a curve for each rate."""
    for dtype, mine in rows.sort_values(column).groupby("dtype"):
        for rate, runs in [(None, mine)] if column == "lr" else mine.groupby("lr"):
            style = {**_style(DTYPES.index(dtype), dtype), "marker": "^" if rate == CHAOTIC else "o"}
            axes.plot(runs[column], runs.max_norm, label=dtype, **style)
    values = sorted(rows[column].unique())
    if column != "ranks":
        axes.set(xscale="log")
    figures.plain_ticks(axes, "x", values)


def _over_hidden(rows: pd.DataFrame) -> list[str]:
    if rows.hidden.nunique() < 2:
        return []
    words = [f"{_between(runs.max_norm)} in {dtype}" for dtype, runs in rows.groupby("dtype")]
    return [
        f"With {rows.hidden.min()} to {rows.hidden.max()} hidden units the difference is {', '.join(words)} "
        f"at learning rate {BASE['lr']:g}."
    ]


def _over_ranks(rows: pd.DataFrame) -> list[str]:
    if rows.ranks.nunique() < 2:
        return []
    words = [f"{_between(runs.max_norm)} in {dtype}" for dtype, runs in rows.groupby("dtype")]
    return [
        f"On 1 to {rows.ranks.max()} ranks, which sum gradients in another order, the difference is "
        f"{', '.join(words)} at learning rate {BASE['lr']:g}."
    ]


def _graded(rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    """The course's graded runs: the difference over the steps, and a table of where they end."""
    figure, axes = figures.canvas()
    for number, ((rate, epochs), runs) in enumerate(rows.groupby(["lr", "epochs"])):
        _curves(axes, runs, f"{rate:g}, {_count(epochs, 'epoch')}", number)
    axes.set(xlabel="steps", ylabel="relative max norm", xscale="log", yscale="log")
    figures.plain_ticks(axes, "x", sorted(rows.steps.unique()))
    _legend(figure, axes, "learning rate")
    _tolerance_lines(axes, rows)
    what = (
        f"raw pixels, 784-{GRADED['hidden']}-10, batch {GRADED['batch']}, {rows.samples.iloc[0]:,} samples "
        f"an epoch, initial weights of standard deviation {SMALL_DEVIATION}"
    )
    caption = (
        f"The course's graded runs ({what}): difference of {_trained(rows)} weights from the reference's "
        "over the steps, float32 (solid) and float64 (dashed, open). Dotted: the tolerances of --check."
    )
    result.figures.append(Figure(figures.save(figure, setup.folder, "graded"), caption))
    ends = _last(rows)
    table = ends[[*GRADED_COLUMNS]].rename(columns=GRADED_COLUMNS)
    result.tables.append(Table(f"Where the course's graded runs end: {what}.", table))
    words = [f"{runs.max_norm.max():.1e} in {dtype}" for dtype, runs in ends.groupby("dtype")]
    result.findings.append(
        f"The course's graded runs end with differences of up to {' and '.join(words)}, and with a precision "
        f"that differs from the reference's by {_apart(ends).max():.3f} at most."
    )


def _count(number: float, what: str) -> str:
    return f"{number:.0f} {what}{'' if number == 1 else 's'}"


def _emulated(rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    words = [f"{runs.max_norm.max():.1e} in {dtype}" for dtype, runs in rows.groupby("dtype")]
    result.findings.append(
        f"Of weights that the CUDA kernels trained, emulated, 784-{rows.hidden.iloc[0]}-10, on up to "
        f"{_count(rows.ranks.max(), 'rank')}, the difference after {rows.steps.max():.0f} steps is "
        f"{' and '.join(words)}."
    )


def _tolerances(ends: pd.DataFrame, setup: Setup, result: Section) -> None:
    """Which runs --check would pass."""
    within = ends.max_norm <= ends.tolerance
    words = [
        f"{within[runs.index].sum()} of {len(runs)} in {dtype} ({runs.tolerance.iloc[0]:g})"
        for dtype, runs in ends.groupby("dtype")
    ]
    text = f"Within the tolerance of --check end {' and '.join(words)}"
    rates = ", ".join(f"{rate:g}" for rate in sorted(ends.lr[~within].unique()))
    result.findings.append(f"{text}; the others have learning rate {rates}." if rates else f"{text}.")


def _apart(rows: pd.DataFrame) -> pd.Series:
    """By how much precision differs."""
    return (rows.precision - rows.reference_precision).abs()


def _precision(rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    """Whether it agrees where weights do not."""
    apart = _apart(rows)
    figure, axes = figures.canvas()
    for number, (dtype, mine) in enumerate(rows.groupby("dtype")):
        style = {**figures.style(number), "linestyle": ""}
        axes.plot(mine.max_norm, apart[mine.index], label=dtype, alpha=0.7, **style)
    axes.set(xlabel="relative max norm of weights", ylabel="difference of test precision", xscale="log")
    axes.set_ylim(top=1.1 * max(apart.max(), 0.02))
    _legend(figure, axes)
    caption = (
        "Difference of test precision from the reference's against the difference of weights: a mark for "
        "each run and epoch after which they were compared."
    )
    result.figures.append(Figure(figures.save(figure, setup.folder, "precision"), caption))
    within, far = rows.max_norm <= rows.tolerance, rows.max_norm >= SATURATED
    if within.any():
        result.findings.append(
            f"Where weights are within the tolerance test precision differs by {apart[within].max():.3f} at "
            f"most, in {_count(within.sum(), 'comparison')}."
        )
    if far.any():
        result.findings.append(
            f"Where weights differ by {SATURATED:g} or more it differs by {apart[far].max():.3f} at most"
            f"{_at_ends(apart[far & (rows.epoch == rows.epochs)])}, in {_count(far.sum(), 'comparison')}."
        )


def _at_ends(apart: pd.Series) -> str:
    return f" ({apart.max():.3f} where training ended)" if len(apart) else ""
