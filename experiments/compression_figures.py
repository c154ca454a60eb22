"""The figures, tables and findings of `experiments.compression`, drawn from its rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from experiments import figures
from experiments.compression_points import BOTH, CURVES, DATA, GOAL, PAPER, SCAN, SHARED, TOTAL, Paper
from experiments.study import Figure, Section, Setup, Table, amount

if TYPE_CHECKING:
    import pandas as pd

LOSS = 0.01
"""The loss of accuracy that is called small."""

_SHOWN = 0.1
"""How far below the trained network's accuracy the figure of rates goes."""


def section(rows: pd.DataFrame, setup: Setup) -> Section:
    """Make the section; show each network that has rows, and of it what was measured."""
    result = Section()
    totals = rows[rows.layer == TOTAL]
    goals = totals[totals.method == GOAL].astype({"dense_bytes": int, "file_bytes": int})
    result.find(None, *(_goal(run, setup) for run in goals.itertuples()))
    for name, mine in _networks(totals):
        _rates(name, mine, setup, result)
    for name, mine in _networks(rows[rows.method == SCAN]):
        _scan(name, mine, setup, result)
    if len(goals):
        result.tables.append(_sizes(goals))
    result.tables += [_layers(name, mine) for name, mine in _networks(rows[rows.method == GOAL])]
    return result


def _networks(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the rows of each network on each data set, and their name."""
    for (net, data), mine in rows.groupby(["net", "data"], sort=False):
        yield f"{net} on {DATA[data]}", mine


def _file(kind: str, rows: pd.DataFrame) -> str:
    """Name a network's figure."""
    return f"{kind}-{rows.net.iloc[0]}-{rows.data.iloc[0]}".lower()


def _error(accuracy: float) -> float:
    return 100 * (1 - accuracy)


def _goal(run: Any, setup: Setup) -> str:
    """Say what a network weighs before and after, beside the paper; for a GPU, beside the goal, too."""
    paper, times = PAPER[run.net], run.dense_bytes / run.file_bytes
    said = (
        f"{run.net} on {DATA[run.data]}: {run.dense_bytes:,} bytes of float32 become a file of "
        f"{run.file_bytes:,}, {times:.1f} times smaller; the error goes from "
        f"{_error(run.accuracy_before):.2f} to {_error(run.accuracy):.2f} %. The paper, on MNIST: "
        f"{paper.times} times, {paper.error_before:.2f} to {paper.error_after:.2f} %."
    )
    return f"{said} {_reached(run, paper, times)}" if setup.gpus else said


def _reached(run: Any, paper: Paper, times: float) -> str:
    """Say whether the file is as small as the paper's, and no error was added."""
    more = _error(run.accuracy) - _error(run.accuracy_before)
    missed = [
        *([f"{times:.1f} times"] if times < paper.times else []),
        *([f"{more:.2f} % more errors"] if more > 0 else []),
    ]
    return f"The goal, {paper.times} times and no more errors, is " + (
        f"missed: {' and '.join(missed)}." if missed else "reached."
    )


def _rates(name: str, rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    """Draw accuracy over the file's size, by what is done (the paper's figure 6)."""
    figure, axes = figures.canvas()
    before = rows.accuracy_before.iloc[0]
    for number, method in enumerate(CURVES):
        curve = rows[rows.method == method].sort_values("file_rate")
        if len(curve):
            axes.plot(curve.file_rate, curve.accuracy, label=method, **figures.style(number))
    goal, colour = rows[rows.method == GOAL], figures.COLOURS[CURVES.index(BOTH)]
    axes.plot(goal.file_rate, goal.accuracy, "*", color=colour, markersize=17, label="the table's")
    axes.axhline(before, color="black", linewidth=1, linestyle=":")
    figures.plain_log(axes, "x")
    if hides := bool((rows.accuracy < before - _SHOWN).any()):
        axes.set_ylim(bottom=before - _SHOWN)
    axes.set(xlabel="file, % of the bytes of float32", ylabel="accuracy on the test set")
    figure.legend(loc="outside upper center", ncols=4)
    hidden = f" Curves that leave the figure lose more than {_SHOWN:g}." if hides else ""
    caption = (
        f"{name}: accuracy over the size of the file, as in figure 6 of the paper. Dotted: the trained "
        "network. Each point trains it further, so it may end above the line. The star is the network of the "
        f"table, each layer pruned to a share of its own.{hidden}"
    )
    result.figures.append(Figure(figures.save(figure, setup.folder, _file("rates", rows)), caption))
    if set(rows.method) >= set(CURVES):
        said = "; ".join(_smallest(method, rows[rows.method == method], before) for method in CURVES)
        result.find(_file("rates", rows), f"{name}, at most {LOSS:g} of accuracy lost: {said}.")


def _smallest(method: str, curve: pd.DataFrame, before: float) -> str:
    """Say how small a curve's file gets while the loss of accuracy is small."""
    good = curve[curve.accuracy >= before - LOSS]
    if not len(good):
        return f"{method} at no point here"
    best = good.loc[good.file_bytes.idxmin()]
    how = amount(best.setting, "bit") if method == SHARED else f"{100 * best.kept:.3g} % kept"
    return f"{method} makes it {best.dense_bytes / best.file_bytes:.1f} times smaller ({how})"


def _scan(name: str, rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    """Draw accuracy over the share kept of each layer."""
    figure, axes = figures.canvas()
    for number, (layer, curve) in enumerate(rows.groupby("layer")):
        axes.plot(100 * curve.kept, curve.accuracy, label=layer, **figures.style(number))
    axes.set_xscale("log")
    axes.invert_xaxis()
    figures.plain_ticks(axes, "x", [100, 50, 20, 10, 5, 2])
    axes.set(xlabel="weights kept, %", ylabel="accuracy on the test set")
    figure.legend(loc="outside upper center", ncols=4)
    caption = (
        f"{name}: accuracy over the share of weights that stays, each layer pruned alone and nothing trained "
        "again. A layer whose curve falls early needs its weights."
    )
    result.figures.append(Figure(figures.save(figure, setup.folder, _file("sensitivity", rows)), caption))
    needed = {layer: _needed(curve) for layer, curve in rows.groupby("layer")}
    said = ", ".join(f"{layer} {100 * kept:g} %" for layer, kept in needed.items())
    result.find(
        _file("sensitivity", rows),
        f"{name}, each layer pruned alone and nothing trained again: at most {LOSS:g} of accuracy is lost "
        f"while there stay, of {said}.",
    )


def _needed(curve: pd.DataFrame) -> float:
    """Return the least share of a layer down to which the loss stays small."""
    falling = curve.sort_values("kept", ascending=False)
    lost = falling.accuracy < falling.accuracy.iloc[0] - LOSS
    return float(falling.kept[~lost.cummax()].min())


def _sizes(goals: pd.DataFrame) -> Table:
    """Make the paper's table 1, its networks' rows behind ours."""
    import pandas

    ours = [
        _size(
            *(run.net, DATA[run.data], run.dense_bytes / 1000, run.file_bytes / 1000),
            *(run.dense_bytes / run.file_bytes, _error(run.accuracy_before), _error(run.accuracy)),
        )
        for run in goals.itertuples()
    ]
    papers = [
        _size(
            *(net, "MNIST, the paper", float(paper.before), float(paper.after)),
            *(float(paper.times), paper.error_before, paper.error_after),
        )
        for net, paper in PAPER.items()
        if net in set(goals.net)
    ]
    return Table(
        "Sizes and errors, KB of 1,000 bytes. The file has weights, biases and all that it takes to read it.",
        pandas.DataFrame([*ours, *papers]),
    )


def _size(
    net: str, data: str, before: float, after: float, times: float, error_before: float, error_after: float
) -> dict[str, Any]:
    return {
        "network": net,
        "data": data,
        "float32, KB": before,
        "file, KB": after,
        "times smaller": times,
        "error before, %": f"{error_before:.2f}",
        "error after, %": f"{error_after:.2f}",
    }


def _layers(name: str, rows: pd.DataFrame) -> Table:
    """Make the paper's tables 2 and 3."""
    columns = {
        "layer": "layer",
        "kept": "kept %",
        "weight_bits": "weight bits",
        "weight_bits_huffman": "weight bits, H",
        "index_bits": "index bits",
        "index_bits_huffman": "index bits, H",
        "rate": "rate %",
        "rate_huffman": "rate %, H",
        "file_rate": "file %",
    }
    table = rows.assign(kept=100 * rows.kept)[list(columns)].rename(columns=columns)
    return Table(
        f"{name}, layer by layer: the weights kept, the mean bits of a code and of an index, and the size in "
        "percent of float32, by the paper's accounting (weights alone, no tables of Huffman codes) and in "
        f"the file. H: with Huffman codes. Compressed with {rows.words.iloc[0]}.",
        table,
    )
