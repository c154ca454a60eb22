"""The figures, tables and findings of `experiments.correctness`, drawn from its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from experiments import figures
from experiments.correctness_points import BASE, CHAOTIC, DTYPES, GRADED, SMALL_DEVIATION
from experiments.study import Figure, Section, Setup, Table, amount

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

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
"""Of the graded runs' table, and how it calls them."""


def section(rows: pd.DataFrame, setup: Setup) -> Section:
    """Make the section; show each part that has rows."""
    result = Section()
    swept = rows[rows.varied.isin(("rate", "hidden", "ranks"))]
    for part, show in (
        (rows[rows.varied == "rate"], _rates),
        (_last(rows[rows.varied == "rate"]), _precision_over_rates),
        (_last(rows), _tolerances),
        (rows, _precision),
        (_last(swept), _ends),
        (rows[rows.varied == "graded"], _graded),
        (rows[rows.varied == "emulated"], _emulated),
    ):
        if len(part):
            show(part, setup, result)
    return result


def _last(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the row of each run's last epoch."""
    return rows[rows.epoch == rows.epochs]


def _trained(rows: pd.DataFrame) -> str:
    """Whose weights they are."""
    return {"cuda": "the GPU's", "cpu": "NumPy's"}[rows.device.iloc[0]]


def _between(values: pd.Series) -> str:
    return f"{values.min():.1e} to {values.max():.1e}"


def _largest(values: pd.Series) -> str:
    return f"{values.max():.1e}"


def _by_dtype(rows: pd.DataFrame, said: Callable[[pd.Series], str]) -> list[str]:
    """Put the differences in each dtype into words."""
    return [f"{said(runs.max_norm)} in {dtype}" for dtype, runs in rows.groupby("dtype")]


def _times(factor: float) -> str:
    """Write a factor with two significant digits."""
    return f"{float(f'{factor:.2g}'):,g} times"


def _apart(rows: pd.DataFrame) -> pd.Series:
    """Return by how much precision differs."""
    return (rows.precision - rows.reference_precision).abs()


def _curves(axes: Axes, runs: pd.DataFrame, label: str, number: int) -> None:
    """Draw the difference of both dtypes over the steps, in one colour, named once."""
    for dtype, run in runs.sort_values("steps").groupby("dtype"):
        axes.plot(run.steps, run.max_norm, label=label, **_style(number, dtype))
        label = "_"  # names no second one


def _style(number: int, dtype: str) -> dict[str, Any]:
    """Return the style of that curve: solid for float32, dashed and open for float64."""
    style: dict[str, Any] = figures.style(number)
    return {**style, "linestyle": "--", "markerfacecolor": "white"} if dtype == "float64" else style


def _legend(figure: Canvas, axes: Axes, title: str | None = None) -> None:
    """Above the axes: curves lie at many heights."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, title=title, loc="outside upper center", ncols=len(labels))


def _tolerance_lines(axes: Axes, rows: pd.DataFrame) -> None:
    for tolerance in rows.tolerance.unique():
        axes.axhline(tolerance, color="#555555", linestyle=":", linewidth=1.5)


def _rates(rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    """Show the difference over the steps, for each learning rate."""
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
    result.find("growth", *_levels(rows), *_factors(rows), *_saturated(rows))


def _precision_over_rates(ends: pd.DataFrame, setup: Setup, result: Section) -> None:
    """Show the reference's precision and that of what is compared with it over the learning rate."""
    figure, axes = figures.canvas()
    curves = {f"{_trained(ends)} {dtype}": (mine, "precision") for dtype, mine in ends.groupby("dtype")}
    curves["the sequential reference"] = (ends[ends.dtype == ends.dtype.iloc[0]], "reference_precision")
    for number, (label, (mine, column)) in enumerate(curves.items()):
        axes.plot(mine.lr, mine[column], label=label, alpha=0.8, **figures.style(number))
    axes.set(xlabel="learning rate", ylabel="test precision", xscale="log")
    figures.plain_ticks(axes, "x", sorted(ends.lr.unique()))
    axes.legend()
    caption = (
        f"Test precision after {ends.epochs.iloc[0]} epochs over the learning rate: of {_trained(ends)} "
        "training in both dtypes, and of the sequential reference on the CPU (NumPy, float64)."
    )
    result.figures.append(Figure(figures.save(figure, setup.folder, "precision-over-rates"), caption))
    apart, best = _apart(ends), ends.loc[ends.reference_precision.idxmax()]
    result.find(
        "precision-over-rates",
        f"Over {ends.lr.nunique()} learning rates from {ends.lr.min():g} to {ends.lr.max():g} "
        f"{_trained(ends)} test precision differs from the reference's by {apart.max():.3f} at most, at "
        f"{ends.lr[apart.idxmax()]:g}; the reference is best at {best.lr:g}, with "
        f"{best.reference_precision:.3f} after {best.epochs} epochs.",
    )


def _levels(rows: pd.DataFrame) -> list[str]:
    """Say how large both dtypes' difference is at the end, at the usual learning rate."""
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
    """Say how fast the difference in float64 grows at the largest rate, beside the usual one."""
    doubles, words = rows[rows.dtype == "float64"].sort_values("steps"), []
    for rate in sorted({BASE["lr"], rows.lr.max()}):
        run = doubles[doubles.lr == rate]
        grown = growth(run.steps, run.max_norm)
        if grown is not None:
            first, last, factor = grown
            words.append(f"{_times(factor)} from step {first:.0f} to {last:.0f} at learning rate {rate:g}")
    return [f"The difference in float64 grows {', '.join(words)}."] if words else []


def growth(steps: Sequence[float], differences: Sequence[float]) -> tuple[float, float, float] | None:
    """Return the first and the last step with a difference that is neither zero nor saturated, and by which
    factor it grows between them; None if there are no two such steps."""
    kept = [(at, size) for at, size in zip(steps, differences, strict=True) if 0 < size < SATURATED]
    if len(kept) < 2:
        return None
    (first, before), (last, after) = kept[0], kept[-1]
    return first, last, after / before


def _saturated(rows: pd.DataFrame) -> list[str]:
    """Say when float32 weights have little left in common with the reference's, at the largest rate."""
    largest = rows.lr.max()
    apart = rows[(rows.dtype == "float32") & (rows.lr == largest) & (rows.max_norm >= SATURATED)]
    if not len(apart):
        return []
    return [
        f"At learning rate {largest:g} float32 weights differ by {SATURATED:g} or more after "
        f"{apart.steps.min():.0f} steps, by {apart.max_norm.max():.2g} at most."
    ]


def _tolerances(ends: pd.DataFrame, setup: Setup, result: Section) -> None:
    """Which runs --check would pass."""
    within = ends.max_norm <= ends.tolerance
    words = [
        f"{within[runs.index].sum()} of {len(runs)} in {dtype} ({runs.tolerance.iloc[0]:g})"
        for dtype, runs in ends.groupby("dtype")
    ]
    text = f"Within the tolerance of --check end {' and '.join(words)}"
    rates = ", ".join(f"{rate:g}" for rate in sorted(ends.lr[~within].unique()))
    result.find("ends", f"{text}; the others have learning rate {rates}." if rates else f"{text}.")


def _precision(rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    """Show whether precision agrees if weights do not."""
    apart = _apart(rows)
    figure, axes = figures.canvas()
    for number, (dtype, mine) in enumerate(rows.groupby("dtype")):
        axes.plot(mine.max_norm, apart[mine.index], label=dtype, alpha=0.7, **figures.dots(number))
    axes.set(xlabel="relative max norm of weights", ylabel="difference of test precision", xscale="log")
    axes.set_ylim(top=1.1 * max(apart.max(), 0.02))
    _legend(figure, axes)
    caption = (
        "Difference of test precision from the reference's against the difference of weights: a mark for "
        "each run and epoch after which they were compared."
    )
    result.figures.append(Figure(figures.save(figure, setup.folder, "precision"), caption))
    result.find("precision", *_agreement(rows))


def _agreement(rows: pd.DataFrame) -> list[str]:
    """Say how far precision is apart, where weights are near and where they are far."""
    apart, found = _apart(rows), []
    within, far = rows.max_norm <= rows.tolerance, rows.max_norm >= SATURATED
    if within.any():
        found.append(
            f"Where weights are within the tolerance test precision differs by {apart[within].max():.3f} at "
            f"most, in {amount(within.sum(), 'comparison')}."
        )
    if far.any():
        ends = _apart(_last(rows[far]))
        at_ends = f" ({ends.max():.3f} where training ended)" if len(ends) else ""
        found.append(
            f"Where weights differ by {SATURATED:g} or more it differs by {apart[far].max():.3f} at most"
            f"{at_ends}, in {amount(far.sum(), 'comparison')}."
        )
    return found


def _ends(rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    """Show the difference at the end over learning rate, hidden size and ranks."""
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
    result.find("ends", *_over_hidden(hidden), *_over_ranks(ranks[ranks.lr == BASE["lr"]]))


def _panel(axes: Axes, rows: pd.DataFrame, column: str) -> None:
    """Both dtypes over a column; where that is not the rate, a curve for each rate."""
    for dtype, mine in rows.sort_values(column).groupby("dtype"):
        for rate, runs in [(None, mine)] if column == "lr" else mine.groupby("lr"):
            style = {**_style(DTYPES.index(dtype), dtype), "marker": "^" if rate == CHAOTIC else "o"}
            axes.plot(runs[column], runs.max_norm, label=dtype, **style)
    if column != "ranks":
        axes.set(xscale="log")
    figures.plain_ticks(axes, "x", sorted(rows[column].unique()))


def _over_hidden(rows: pd.DataFrame) -> list[str]:
    if rows.hidden.nunique() < 2:
        return []
    return [
        f"With {rows.hidden.min()} to {rows.hidden.max()} hidden units the difference is "
        f"{', '.join(_by_dtype(rows, _between))} at learning rate {BASE['lr']:g}."
    ]


def _over_ranks(rows: pd.DataFrame) -> list[str]:
    if rows.ranks.nunique() < 2:
        return []
    return [
        f"On 1 to {rows.ranks.max()} ranks, which sum gradients in another order, the difference is "
        f"{', '.join(_by_dtype(rows, _between))} at learning rate {BASE['lr']:g}."
    ]


def _graded(rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    """Show the course's graded runs: the difference over the steps, and a table of where they end."""
    ends = _last(rows)
    what = (
        f"raw pixels, 784-{GRADED['hidden']}-10, batch {GRADED['batch']}, {rows.samples.iloc[0]:,} samples "
        f"an epoch, initial weights of standard deviation {SMALL_DEVIATION}"
    )
    caption = (
        f"The course's graded runs ({what}): difference of {_trained(rows)} weights from the reference's "
        "over the steps, float32 (solid) and float64 (dashed, open). Dotted: the tolerances of --check."
    )
    result.figures.append(Figure(_draw_graded(rows, setup), caption))
    table = ends[[*GRADED_COLUMNS]].rename(columns=GRADED_COLUMNS)
    result.tables.append(Table(f"Where the course's graded runs end: {what}.", table))
    result.find(
        "graded",
        f"The course's graded runs end with differences of up to {' and '.join(_by_dtype(ends, _largest))}, "
        f"and with a precision that differs from the reference's by {_apart(ends).max():.3f} at most.",
    )


def _draw_graded(rows: pd.DataFrame, setup: Setup) -> str:
    """Draw the difference over the steps, for each run; return the file."""
    figure, axes = figures.canvas()
    for number, ((rate, epochs), runs) in enumerate(rows.groupby(["lr", "epochs"])):
        _curves(axes, runs, f"{rate:g}, {amount(epochs, 'epoch')}", number)
    axes.set(xlabel="steps", ylabel="relative max norm", xscale="log", yscale="log")
    figures.plain_ticks(axes, "x", sorted(rows.steps.unique()))
    _legend(figure, axes, "learning rate")
    _tolerance_lines(axes, rows)
    return figures.save(figure, setup.folder, "graded")


def _emulated(rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    result.find(
        None,
        f"Of weights that the CUDA kernels trained, emulated, 784-{rows.hidden.iloc[0]}-10, on up to "
        f"{amount(rows.ranks.max(), 'rank')}, the difference after {rows.steps.max():.0f} steps is "
        f"{' and '.join(_by_dtype(rows, _largest))}.",
    )
