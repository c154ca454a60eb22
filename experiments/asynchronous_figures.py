"""The figures, tables and findings of `experiments.asynchronous`, drawn from its rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments import figures
from experiments.asynchronous_model import mean_staleness, rate_limit, speed, staleness_at_once
from experiments.asynchronous_points import (
    COMPARED,
    DENSE,
    FREE,
    HOGWILD,
    MOST,
    OPTIMISERS,
    PLAIN,
    SCALED,
    SYNCHRONOUS,
    WAYS,
    servers_of,
)
from experiments.asynchronous_runs import GOAL, counts_of, goal_of, mean_of, runs_of
from experiments.study import Figure, Section, Setup, Table, amount

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

SHOWN = (SYNCHRONOUS, SCALED, servers_of("0"), servers_of("4"), FREE, HOGWILD)
"""The ways of figures that have no room for all."""

_LOOKS = (*SHOWN, *(way for way in WAYS if way not in SHOWN))
"""Ways in the order of colours: those that are seen together differ."""


def section(rows: pd.DataFrame, setup: Setup) -> Section:
    """Make the section, of what was measured of it."""
    result = Section()
    if not len(rows):
        return result
    goal = goal_of(rows)
    if goal < GOAL:
        result.find(None, f"No run reaches a validation accuracy of {GOAL:g}: {goal:g} is waited for.")
    runs = runs_of(rows, goal)
    compared = runs[(runs.kind == COMPARED) & (runs.optimiser == PLAIN)]
    dense = compared[compared.net == DENSE]
    for net in compared.net.unique():
        _curves(rows, compared[compared.net == net], goal, setup, result)
    _throughput(dense, setup, result)
    _slow(dense, setup, result)
    _arrival(dense, goal, setup, result)
    _staleness(rows, dense, setup, result)
    _bounds(rows, dense, setup, result)
    _price(runs, goal, setup, result)
    _rates(runs, goal, setup, result)
    result.tables.append(_table(runs, goal))
    return result


def _add(
    result: Section, figure: Any, setup: Setup, name: str, title: str, caption: str, columns: int = 2
) -> None:
    """Save a figure, whose caption begins with its title; its legend above it has so many columns."""
    if columns:
        figure.legend(loc="outside upper center", ncols=columns)
    file = figures.save(figure, setup.folder, name)
    result.figures.append(Figure(file, f"{title}. {caption}", wide=name.startswith("curves")))


def _style(way: str) -> dict[str, str]:
    """Return the look of a way, the same in all figures."""
    return figures.style(_LOOKS.index(way))


def _repeated(axes: Axes, runs: pd.DataFrame, column: str, number: int, label: str) -> None:
    """Draw a column over the workers: all runs, their means with a deviation, and a line through three or
    more means."""
    found = {
        workers: list(values) for workers, values in runs.dropna(subset=column).groupby("workers")[column]
    }
    figures.repeats(axes, found, number, label)
    if len(found) > 2:
        look = {**figures.style(number), "marker": ""}
        axes.plot(list(found), [np.mean(values) for values in found.values()], **look)


def _spread(values: Any) -> str:
    """Say numbers of repeated runs, from the least to the most."""
    known = sorted(value for value in values if not math.isnan(value))
    if not known:
        return "no number"
    low, high = (f"{value:,.3g}" if value < 1000 else f"{value:,.0f}" for value in (known[0], known[-1]))
    return low if low == high else f"{low} to {high}"


def _when(runs: pd.DataFrame, goal: float) -> str:
    """Say when runs of one way reach the accuracy."""
    there = runs[runs.updates.notna()]
    late = len(runs) - len(there)
    never = f"never in {amount(runs.epochs.iloc[0], 'epoch')} (best {runs.best.max():.3f})"
    if not len(there):
        return never
    said = f"after {_spread(there.seconds)} s and {_spread(there.updates)} updates"
    return f"{said} ({amount(late, 'run')} of {len(runs)} {never})" if late else said


def _curves(rows: pd.DataFrame, compared: pd.DataFrame, goal: float, setup: Setup, result: Section) -> None:
    """Draw loss and accuracy over time and over updates, of the ways of most workers, none of them slow."""
    calm = compared[(compared.slow == 1) & compared.way.isin(SHOWN)]
    net, workers = calm.net.iloc[0], min(MOST, calm.workers.max())
    calm = calm[calm.workers == workers]
    mine = rows[(rows.kind == COMPARED) & (rows.optimiser == PLAIN) & (rows.net == net)]
    mine = mine[(mine.slow == 1) & (mine.workers == workers)]
    figure, axes = figures.canvas(2, 2)
    for way in [way for way in SHOWN if way in set(calm.way)]:
        for number, run in mine[mine.way == way].groupby("run"):
            label = way if number == 1 else None
            for line, (column, name) in enumerate((("loss", "training loss"), ("accuracy", "accuracy"))):
                for place, (over, unit) in enumerate((("seconds", "seconds"), ("updates", "updates"))):
                    one = axes[line][place]
                    one.plot(
                        run[over], run[column], label=label if line == place == 0 else None, **_style(way)
                    )
                    one.set(xlabel=unit, ylabel=name)
    for one in axes.flat:
        figures.plain_log(one, "x")
    for one in axes[1]:
        one.axhline(goal, color="black", linewidth=1, linestyle=":")
    title = f"Learning, {net}"
    caption = (
        f"Training loss and validation accuracy over wall time and over updates, {workers} workers, none "
        f"slow; all runs, a point an epoch. Dotted: {goal:g}. A synchronous update is of the samples of all."
    )
    _add(result, figure, setup, f"curves-{net}", title, caption, columns=3)
    said = "; ".join(f"{way} {_when(calm[calm.way == way], goal)}" for way in SHOWN if way in set(calm.way))
    result.find(
        f"curves-{net}", f"{net}, {workers} workers, none slow, validation accuracy {goal:g}: {said}."
    )


def _throughput(runs: pd.DataFrame, setup: Setup, result: Section) -> None:
    """Draw samples a second over the number of workers."""
    calm = runs[(runs.slow == 1) & runs.rate.notna() & runs.way.isin(SHOWN)]
    if not len(calm):
        return
    figure, axes = figures.canvas()
    for way in [way for way in SHOWN if way in set(calm.way)]:
        _repeated(axes, calm[calm.way == way], "rate", _LOOKS.index(way), way)
    numbers = sorted(set(calm.workers))
    alone = calm[(calm.workers == 1) & (calm.way == FREE)].rate.mean()
    if not math.isnan(alone):
        ideal = [alone * workers for workers in numbers]
        axes.plot(numbers, ideal, color="black", linewidth=1, linestyle=":", label="p x one, with a server")
    figures.plain_log(axes, "x")
    figures.plain_ticks(axes, "x", numbers)
    axes.set(xlabel="workers", ylabel="samples a second")
    axes.set_ylim(bottom=0)
    title = "Throughput"
    caption = (
        f"Samples a second over the number of workers, {DENSE}, none slow, without the first epoch; all "
        "runs, and their means with a standard deviation either way. Dotted: p times one worker with a "
        "server, as without queues."
    )
    _add(result, figure, setup, "throughput", title, caption)
    for workers in numbers[1:]:
        here = calm[calm.workers == workers]
        base = here[here.way == SYNCHRONOUS].rate.mean()
        parts = [
            f"{way} {_spread(here[here.way == way].rate / base)} times"
            for way in (FREE, HOGWILD)
            if way in set(here.way)
        ]
        result.find(
            "throughput",
            f"{workers} workers, none slow: synchronous training takes {base:,.0f} samples a second; "
            f"{', '.join(parts)} as many.",
        )


def _slow(runs: pd.DataFrame, setup: Setup, result: Section) -> None:
    """Draw what is left of the throughput where one worker is slow, beside what the rates predict."""
    mine = runs[(runs.workers == MOST) & runs.rate.notna()]
    slows = [slow for slow in sorted(set(mine.slow)) if slow > 1]
    if not slows:
        return
    ways = [way for way in WAYS if way in set(mine[mine.slow > 1].way)]
    figure, axes = figures.canvas()
    for place, slow in enumerate(slows):
        points = [(ways.index(way), left) for way in ways for left in _left(mine, way, slow)]
        predicted = [_predicted(mine, way, slow) for way in ways]
        axes.plot(predicted, range(len(ways)), "|", color=figures.COLOURS[place], markersize=22)
        look = {**figures.dots(place), "label": f"one worker slow by {slow}"}
        axes.plot([left for _, left in points], [number for number, _ in points], **look)
    axes.set_yticks(range(len(ways)), ways)
    axes.set(xlabel="throughput, of that without a slow worker")
    axes.set_xlim(left=0)
    title = "One slow worker"
    caption = (
        f"What is left of the samples a second of {MOST} workers if the steps of one take longer, {DENSE}: "
        "all runs, over the mean of those with none slow. Bars: predicted from the rates of the workers."
    )
    _add(result, figure, setup, "slow", title, caption)
    for slow in slows:
        parts = [
            f"{way} {_spread(_left(mine, way, slow))} (predicted {_predicted(mine, way, slow):.2f})"
            for way in ways
            if _left(mine, way, slow)
        ]
        result.find(
            "slow",
            f"One of {MOST} workers slow by {slow}: of the throughput there is left: {', '.join(parts)}."
            f"{_crowded(setup)}",
        )


def _crowded(setup: Setup) -> str:
    """Say why predictions are too low where workers share cores."""
    if setup.gpus or setup.cores > MOST:
        return ""
    return (
        f" Workers share {amount(setup.cores, 'core')}, which a slow one leaves to the others: with a core "
        "for each, as is predicted, less is left."
    )


def _left(runs: pd.DataFrame, way: str, slow: float) -> list[float]:
    """Return throughputs with a slow worker over the mean of those without, of all runs."""
    mine = runs[runs.way == way]
    base = mine[mine.slow == 1].rate.mean()
    return [] if math.isnan(base) else [float(rate / base) for rate in mine[mine.slow == slow].rate]


def _predicted(runs: pd.DataFrame, way: str, slow: float) -> float:
    """Return what the rates of the workers say of the same."""
    steps = runs[runs.way == way].steps.iloc[0]
    return speed(way, MOST, slow, steps) / speed(way, MOST, 1, steps)


def _arrival(runs: pd.DataFrame, goal: float, setup: Setup, result: Section) -> None:
    """Draw the time to the accuracy, by way and slow worker."""
    mine = runs[runs.workers == MOST]
    ways = [way for way in WAYS if way in set(mine.way)]
    if not mine.seconds.notna().any():
        return
    figure, axes = figures.canvas()
    right = 1.15 * mine.seconds.max()
    for place, (slow, some) in enumerate(mine.groupby("slow")):
        label = "none slow" if slow == 1 else f"one slow by {slow}"
        heights = np.array([ways.index(way) for way in some.way]) + 0.2 * (place - 1)
        axes.plot(some.seconds, heights, label=label, **figures.dots(place))
        never = some.seconds.isna().to_numpy()
        axes.plot([right] * never.sum(), heights[never], "x", color=figures.COLOURS[place], clip_on=False)
    axes.set_yticks(range(len(ways)), ways)
    axes.set(xlabel=f"seconds to accuracy {goal:g} (x: never)")
    axes.set_xlim(0, right)
    title = "Time to the accuracy"
    caption = (
        f"Seconds until the end of the first epoch with a validation accuracy of {goal:g}, {MOST} workers, "
        f"{DENSE}, learning rate {mine.lr.iloc[0]:g}; all runs. Crosses: not in {mine.epochs.iloc[0]} epochs."
    )
    _add(result, figure, setup, "arrival", title, caption, columns=3)
    worst = mine[mine.slow == mine.slow.max()]
    if worst.slow.iloc[0] > 1:
        said = "; ".join(
            f"{way} {_when(worst[worst.way == way], goal)}" for way in ways if way in set(worst.way)
        )
        seen = worst[worst.most_seen.notna() & worst.way.str.startswith("server")]
        uneven = (
            f" With servers a sample was seen {seen.least_seen.min():.0f} to {seen.most_seen.max():.0f} "
            f"times in {amount(worst.epochs.iloc[0], 'epoch')}."
            if len(seen)
            else ""
        )
        result.find(
            "arrival",
            f"One of {MOST} workers slow by {worst.slow.iloc[0]}, accuracy {goal:g}: {said}.{uneven}",
        )


def _counts(rows: pd.DataFrame, way: str, workers: int, slow: float) -> np.ndarray:
    """Add up the histograms of the runs of a way with the plain optimiser."""
    mine = rows[(rows.kind == COMPARED) & (rows.net == DENSE) & (rows.optimiser == PLAIN)]
    mine = mine[(mine.way == way) & (mine.workers == workers) & (mine.slow == slow)]
    found = [counts for counts in map(counts_of, mine.staleness) if len(counts)]
    total = np.zeros(max(map(len, found), default=0), int)
    for counts in found:
        total[: len(counts)] += counts
    return total


def _histogram(axes: Axes, counts: np.ndarray, number: int, label: str) -> None:
    """Draw shares of updates over staleness."""
    axes.plot(range(len(counts)), counts / counts.sum(), label=label, **figures.style(number))


def _staleness(rows: pd.DataFrame, runs: pd.DataFrame, setup: Setup, result: Section) -> None:
    """Draw histograms of staleness by number of workers, none waiting."""
    numbers = [workers for workers in sorted(set(runs.workers)) if _counts(rows, FREE, workers, 1).sum()]
    if not numbers:
        return
    figure, axes = figures.canvas()
    parts = []
    for number, workers in enumerate(numbers):
        counts = _counts(rows, FREE, workers, 1)
        _histogram(axes, counts, number, f"{amount(workers, 'worker')}: mean {mean_of(counts):.2f}")
        axes.axvline(workers - 1, color=figures.COLOURS[number], linewidth=1, linestyle=":")
        steps = runs[(runs.way == FREE) & (runs.workers == workers)].steps.iloc[0]
        parts.append(
            f"{amount(workers, 'worker')} {mean_of(counts):.2f} (expected {staleness_at_once(workers):.2f} "
            f"to {mean_staleness(workers, steps):.2f})"
        )
    axes.set(xlabel="staleness, versions", ylabel="share of updates")
    axes.set_xlim(-0.5, 3 * max(numbers))
    title = "Staleness over workers"
    caption = (
        f"How stale updates are, {FREE}, {DENSE}, none slow; all runs and shards together. Dotted: p - 1. "
        f"{3 * max(numbers)} versions are shown."
    )
    _add(result, figure, setup, "staleness", title, caption)
    result.find("staleness", f"The mean staleness, {FREE}, none slow: {', '.join(parts)}.")


def _bounds(rows: pd.DataFrame, runs: pd.DataFrame, setup: Setup, result: Section) -> None:
    """Draw histograms of staleness by bound, with the slowest worker that there is."""
    slow = runs[runs.workers == MOST].slow.max()
    ways = [way for way in WAYS if _counts(rows, way, MOST, slow).sum()]
    if not ways:
        return
    figure, axes = figures.canvas()
    for way in ways:
        _histogram(axes, _counts(rows, way, MOST, slow), _LOOKS.index(way), way)
    axes.set(xlabel="staleness, versions", ylabel="share of updates", xscale="symlog")
    axes.set_xlim(left=-0.2)
    who = "none slow" if slow == 1 else f"one slow by {slow:g}"
    title = "Staleness over bounds"
    caption = f"How stale updates of {MOST} workers are, {who}, {DENSE}; all runs and shards together."
    _add(result, figure, setup, "bounds", title, caption)
    parts = []
    for way in ways:
        counts = _counts(rows, way, MOST, slow)
        parts.append(f"{way} mean {mean_of(counts):.2f}, most {counts.nonzero()[0].max()}")
    result.find("bounds", f"Staleness of {MOST} workers, {who}: {'; '.join(parts)}.")


def _price(runs: pd.DataFrame, goal: float, setup: Setup, result: Section) -> None:
    """Draw the updates to the accuracy over the workers, by network and optimiser."""
    calm = runs[(runs.kind == COMPARED) & (runs.slow == 1)]
    calm = calm[calm.way.isin((FREE, HOGWILD)) | ((calm.way == SYNCHRONOUS) & (calm.workers == 1))]
    there = calm[calm.updates.notna()]
    groups = [
        (key, calm[(calm.net == key[0]) & (calm.optimiser == key[1])])
        for key, some in there.groupby(["net", "optimiser"])
        if some.workers.nunique() > 1 and some.workers.min() == 1
    ]
    if not groups:
        return
    figure, axes = figures.canvas()
    title = "Updates to the accuracy"
    curves = 0
    for (net, optimiser), some in groups:
        for way in (FREE, HOGWILD):
            curve = some[some.way.isin((way, SYNCHRONOUS)) & some.updates.notna()]
            if curve.workers.nunique() > 1:
                _repeated(axes, curve, "updates", curves, f"{net}, {optimiser}, {way}")
                curves += 1
        result.find("price", _price_of(f"{net}, {optimiser}", some, goal))
    axes.set(xlabel="workers", ylabel=f"updates to accuracy {goal:g}", xscale="log")
    figures.plain_ticks(axes, "x", sorted(set(calm.workers)))
    axes.set_ylim(bottom=0)
    caption = (
        "Updates of as many samples until the end of the first epoch with the validation accuracy: all runs "
        "that reach it, and their means with a standard deviation either way; one worker is sequential "
        "training. What rises with the workers is the cost of staleness. Where a point is missing, no run "
        "reaches it."
    )
    _add(result, figure, setup, "price", title, caption)


def _price_of(what: str, runs: pd.DataFrame, goal: float) -> str:
    """Say how many updates sequential training needs, and workers that do not wait."""
    alone = runs[(runs.workers == 1) & (runs.way == SYNCHRONOUS)].updates.mean()
    parts = []
    for (way, workers), some in runs[runs.workers > 1].groupby(["way", "workers"]):
        there = some.updates.dropna()
        needs = f"{_spread(there)} ({there.mean() / alone:.2f} times)" if len(there) else "never reaches it"
        parts.append(f"{way} with {workers} workers {needs}")
    first = "never reaches it" if math.isnan(alone) else f"needs {alone:.0f} updates"
    return f"{what}, accuracy {goal:g}: one worker {first}; {', '.join(parts)}."


def _rates(runs: pd.DataFrame, goal: float, setup: Setup, result: Section) -> None:
    """Draw a map of the updates to the accuracy over learning rate and workers, for each optimiser."""
    mine = runs[(runs.net == DENSE) & (runs.slow == 1)]
    mine = mine[(mine.way == FREE) | ((mine.way == SYNCHRONOUS) & (mine.workers == 1))]
    for optimiser in OPTIMISERS:
        some = mine[mine.optimiser == optimiser]
        if some.lr.nunique() < 2 or not some.updates.notna().any():
            continue
        title = f"Learning rates, {optimiser}"
        table = some.pivot_table(index="workers", columns="lr", values="updates", dropna=False)
        figure, axes = figures.canvas()
        table = table.rename_axis(index="workers", columns="learning rate")
        figures.heatmap(axes, table, "{:.0f}", f"updates to accuracy {goal:g}")
        caption = (
            f"Updates to the validation accuracy, {DENSE}, {optimiser}, {FREE}, over learning rate and "
            "workers; empty: not reached, or not tried. One worker is sequential training."
        )
        _add(result, figure, setup, f"rates-{optimiser.lower()}", title, caption, columns=0)
        result.find(f"rates-{optimiser.lower()}", _rates_of(optimiser, some))


def _rates_of(optimiser: str, runs: pd.DataFrame) -> str:
    """Say which largest rates reach the accuracy, beside the law of descent by stale gradients."""
    parts = []
    for workers, some in runs.groupby("workers"):
        if some.lr.nunique() < 2:
            continue
        there = some[some.updates.notna()].lr.max()
        tried = f"of {some.lr.min():g} to {some.lr.max():g}"
        most = f"none {tried} reaches the accuracy"
        if not math.isnan(there):
            most = f"the largest {tried} that reaches the accuracy is {there:g}"
        law = f" (a parabola: {rate_limit(workers - 1):.2f} of the largest)" if workers > 1 else ""
        parts.append(f"{amount(workers, 'worker')}: {most}{law}")
    return f"Learning rates, {optimiser}, {FREE}: {'; '.join(parts)}."


def _table(runs: pd.DataFrame, goal: float) -> Table:
    """List all runs that are compared, those of one way and case in a line."""
    import pandas

    lines = []
    for key, some in runs.groupby([name for name in runs.columns[:7] if name != "kind"], sort=False):
        net, optimiser, lr, way, workers, slow = key
        lines.append(
            {
                **{"network": net, "optimiser": optimiser, "rate": f"{lr:g}", "way": way},
                **{"workers": workers, "slow": slow, "runs": len(some)},
                "samples/s": _spread(some.rate),
                f"s to {goal:g}": _spread(some.seconds) if some.seconds.notna().any() else "never",
                "updates": _spread(some.updates) if some.updates.notna().any() else "",
                "best accuracy": _spread(some.best),
                "mean staleness": _spread(some.stale) if some.stale.notna().any() else "",
            }
        )
    return Table("All runs, from the least to the most where a run was repeated.", pandas.DataFrame(lines))
