"""How figures look: readable at half the page's width, in colours that all eyes tell apart."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"),
    *("#332288", "#882255", "#999933", "#8C564B", "#999999"),
)
"""Colours of Okabe and Ito, 2008 (grey for yellow, which is hard to see on white), then of Tol, 2021."""

MARKERS = "osD^vPX*"
LINES = ("-", "--", "-.", ":")
"""With the colours: what is told apart by colour is so by shape, too."""

SIZE = 7.0, 4.6
"""Inches of a figure; half of that on the page."""


def canvas(rows: int = 1, columns: int = 1, **settings: Any) -> tuple[Canvas, Any]:
    """Make a figure and its axes, as `matplotlib.pyplot.subplots` gives them."""
    import matplotlib

    matplotlib.use("Agg")  # no display
    from matplotlib import pyplot

    pyplot.rcParams.update(
        {
            "font.size": 14,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": "#dddddd",
            "axes.prop_cycle": matplotlib.cycler(color=COLOURS),
            "lines.linewidth": 2.2,
            "lines.markersize": 7,
            "legend.fontsize": 11,
            "legend.frameon": False,
            "axes.formatter.min_exponent": 3,
        }
    )
    width, height = SIZE
    size = width * (1 + 0.75 * (columns - 1)), height * (1 + 0.85 * (rows - 1))
    figure, axes = pyplot.subplots(rows, columns, figsize=size, layout="constrained", **settings)
    return figure, axes


def style(number: int) -> dict[str, str]:
    """Colour, marker and line of the curve of that number."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": LINES[number // len(COLOURS) % len(LINES)],
    }


def dots(number: int) -> dict[str, str]:
    """Return the style of that curve, with no line between its points."""
    return {**style(number), "linestyle": ""}


def repeats(axes: Axes, values: Mapping[Any, Sequence[float]], number: int, label: str) -> None:
    """Draw every repeat as a point, and at each place the mean with a standard deviation each way."""
    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    places = [place for place, mine in values.items() for _ in mine]
    points = [value for mine in values.values() for value in mine]
    axes.plot(places, points, marker, color=colour, alpha=0.5, markersize=6, markeredgewidth=0, label=label)
    means = [statistics.mean(mine) for mine in values.values()]
    errors = [statistics.stdev(mine) if len(mine) > 1 else 0.0 for mine in values.values()]
    axes.errorbar(list(values), means, errors, fmt="_", color=colour, capsize=4, elinewidth=1.5, markersize=9)


def error_bars(axes: Axes, x: Any, least: Any, middle: Any, most: Any, number: int) -> None:
    """Draw bars from the least to the largest of the repeats of each median of the curve of that number."""
    around = [middle - least, most - middle]
    axes.errorbar(
        x, middle, around, fmt="none", ecolor=style(number)["color"], elinewidth=1.2, capsize=3, alpha=0.7
    )


def deviations(axes: Axes, x: Any, rates: Any, relative: Any, number: int) -> None:
    """Draw bars of one standard deviation of the time either way; ``relative``: it over the time of each
    rate of the curve of that number."""
    error_bars(axes, x, rates / (1 + relative), rates, rates * (1 + relative), number)


def plain_ticks(axes: Axes, axis: str, values: list[Any], labels: list[str] | None = None) -> None:
    """Set ticks at these values, as they are or under these names, on a logarithmic axis."""
    from matplotlib.ticker import NullFormatter

    which = axes.xaxis if axis == "x" else axes.yaxis
    which.set_ticks(values, labels or [f"{value:g}" for value in values])
    which.set_minor_formatter(NullFormatter())


def plain_log(axes: Axes, axis: str) -> None:
    """Make the axis logarithmic, with plain numbers: 1, 2, 5, 10, ..; over a wide range powers of ten alone.

    To be called when the curves are drawn.
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set(**{f"{axis}scale": "log"})
    which = axes.xaxis if axis == "x" else axes.yaxis
    low, high = axes.get_xlim() if axis == "x" else axes.get_ylim()
    which.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 300 else (1,)))
    which.set_major_formatter("{x:,.10g}")
    which.set_minor_formatter(NullFormatter())


def save(figure: Canvas, folder: Path, name: str) -> str:
    """Save as a PNG in this folder; return the file's name."""
    from matplotlib import pyplot

    for axes in figure.axes:
        _unjoin_pairs(axes)
    file = f"{name}.png"
    figure.savefig(folder / file, dpi=150)
    pyplot.close(figure)
    return file


def _unjoin_pairs(axes: Axes) -> None:
    """Take away the line between two marked points: it would say more than was measured."""
    for line in axes.lines:
        if len(line.get_xdata()) == 2 and line.get_marker() not in ("", " ", "None", None):
            line.set_linestyle("")


def heatmap(axes: Axes, values: pd.DataFrame, format: str, label: str, **settings: Any) -> None:
    """Draw a cell for each number of a pivot table, with the number in it; other cells stay empty."""
    image = axes.imshow(values.to_numpy(float), aspect="auto", cmap="cividis", origin="lower", **settings)
    axes.grid(False)
    axes.set_xticks(range(len(values.columns)), [f"{value:g}" for value in values.columns])
    axes.set_yticks(range(len(values.index)), [f"{value:g}" for value in values.index])
    axes.set(xlabel=values.columns.name, ylabel=values.index.name)
    for (row, column), value in _numbers(values):
        dark = image.norm(value) < 0.55
        text = format.format(value)
        axes.text(column, row, text, ha="center", va="center", size=11, color="white" if dark else "black")
    bar = axes.figure.colorbar(image, ax=axes)
    bar.set_label(label)
    bar.outline.set_visible(False)


def _numbers(values: pd.DataFrame) -> Iterator[tuple[tuple[int, int], float]]:
    for row, line in enumerate(values.to_numpy(float)):
        for column, value in enumerate(line):
            if value == value:
                yield (row, column), float(value)
