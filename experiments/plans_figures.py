"""The figures, tables and findings of `experiments.plans`, drawn from its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bench.plans import CLOSE
from experiments import figures
from experiments.noise import noisy
from experiments.plans_points import COUNTED, DATA, FAMILIES, FILES, FORK_AND_JOIN, HERE, MAP, MODEL, TIMED
from experiments.study import Figure, Section, Setup, Table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

CELL = ["hidden", "batch"]
"""The columns that tell one case from another."""


def section(rows: pd.DataFrame, setup: Setup) -> Section:
    """Make the section; show each kind that has rows."""
    result = Section()
    rows = rows.astype(dict.fromkeys(("planned", *CELL), int))  # floats where a failed point has none
    maps, timed, counted = (rows[rows.kind == kind] for kind in (MAP, TIMED, COUNTED))
    of_rates = [mine for name in (HERE, *FILES) if len(mine := maps[maps.rates == name])]
    for mine in of_rates:
        _map(mine, _timed_on(mine, timed), setup, result)
    if of_rates:
        _crossover(of_rates[0], _timed_on(of_rates[0], timed), setup, result)
    if len(timed):
        _times(timed, setup, result)
    if len(counted):
        _bytes(counted, setup, result)
    return result


def _timed_on(mapped: pd.DataFrame, timed: pd.DataFrame) -> pd.DataFrame:
    """Keep rows of the map's machine."""
    return timed[timed.rates == mapped.rates.iloc[0]]


def best_of(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return each cell's plan that takes least by this column, with ``gain``: how many times as fast as data
    it is, empty where data does not fit."""
    plans = rows[rows.family != FORK_AND_JOIN]
    best = plans.loc[plans.groupby(CELL)[column].idxmin()].set_index(CELL)
    data = plans[plans.family == DATA].set_index(CELL)[column]
    return best.assign(gain=data / best[column]).reset_index()


def borders(best: pd.DataFrame) -> str:
    """Say up to which batch, the largest here at most, another plan than data is best, by width."""
    others = best[best.family != DATA].groupby("hidden").batch.max()
    of_border: dict[int, list[int]] = {}
    for hidden in sorted(best.hidden.unique()):
        of_border.setdefault(int(others.get(hidden, 0)), []).append(hidden)
    words = {0: "at no batch", best.batch.max(): f"up to the largest batch here, {best.batch.max()},"}
    return "; ".join(
        f"{words.get(border, f'up to batch {border}')} at H {', '.join(map(str, widths))}"
        for border, widths in of_border.items()
    )


def judged(timed: pd.DataFrame) -> pd.DataFrame:
    """Return each measured cell's plan predicted best, the fastest, and by what part the first is slower."""
    predicted = best_of(timed, "predicted_us").set_index(CELL)
    fastest = best_of(timed, "measured_us").set_index(CELL)
    return predicted.assign(
        fastest=fastest.plan,
        fastest_us=fastest.measured_us,
        fastest_gain=fastest.gain,
        more=predicted.measured_us / fastest.measured_us - 1,
    ).reset_index()


def relative(rows: pd.DataFrame, family: str, column: str) -> pd.Series:
    """Least time of the family's plans over that of data, by batch."""
    least = rows[rows.family == family].groupby("batch")[column].min()
    return (least / rows[rows.family == DATA].groupby("batch")[column].min()).dropna()


def _end(timed: pd.DataFrame, family: str, column: str) -> pd.Series:
    """Return an end of the repeats of the family's fastest plan over the median of data, by batch."""
    mine = timed[timed.family == family]
    best = mine.loc[mine.groupby("batch").measured_us.idxmin()].set_index("batch")[column]
    return best / timed[timed.family == DATA].groupby("batch").measured_us.min()


def _ranks(rows: pd.DataFrame) -> str:
    """Name ranks and card."""
    first = rows.iloc[0]
    if first.rates == HERE and first.device == "cpu":
        return f"{first.planned} ranks of this CPU"
    return f"{first.planned} x {first.card}"


def _machine(rows: pd.DataFrame) -> str:
    """Name the ranks, and the source of their rates."""
    name = rows.rates.iloc[0]
    source = "rates measured here" if name == HERE else f"rates of nn/autotune/machines/{name}.json"
    return f"{_ranks(rows)} ({source})"


def _mb(nbytes: float) -> str:
    """Three digits that count."""
    return f"{nbytes * 1e-6:,.0f}" if nbytes >= 1e8 else f"{nbytes * 1e-6:.3g}"


def _plain_logarithms(axes: Axes, x: list[Any], room: float = 1.0) -> None:
    """Plain numbers at both axes, and room for a legend at the top, ``room`` times the largest value."""
    figures.plain_ticks(axes, "x", x)
    low, high = axes.get_ylim()
    leading = (1, 2, 5) if high < 300 * low else (1,)
    steps = [step * 10.0**power for power in range(-6, 7) for step in leading]
    figures.plain_ticks(axes, "y", [step for step in steps if low <= step <= high])
    axes.set_ylim(low, high * room)


def _map_name(rows: pd.DataFrame) -> str:
    return f"map_{rows.rates.iloc[0]}"


def _map(rows: pd.DataFrame, timed: pd.DataFrame, setup: Setup, result: Section) -> None:
    """Show the best plan of each cell by the cost model; ``timed`` are steps on the same machine."""
    best, machine = best_of(rows, "predicted_us"), _machine(rows)
    counts = best.family.value_counts()
    wins = ", ".join(f"{family} in {counts.get(family, 0)}" for family in FAMILIES)
    result.find(
        _map_name(rows),
        f"{machine}: predicted best is {wins} of {len(best)} cases; by more than {CLOSE:.0%} over data in "
        f"{(best.gain > 1 + CLOSE).sum()}. Another plan than data is best {borders(best)}.",
    )
    if best.gain.notna().any():
        result.find(_map_name(rows), _most_gained(rows, best))
    caption = (
        f"Which plan should be fastest on {machine}, how its ranks are grouped (groups x shards; mixed in "
        "one group: some layers by samples), and how many times as fast as data it is. Below the dashed line "
        "the batch has fewer samples than a layer has units: there to split weights sends less."
    )
    figure, axes = figures.canvas()
    _draw_cells(axes, best)
    if len(timed):
        _frame(axes, best, timed)
        caption += (
            " Framed cells were measured: the plan predicted best was the fastest or within a tenth of it "
            "(solid frame), or it was not (dotted)."
        )
    result.figures.append(Figure(figures.save(figure, setup.folder, _map_name(rows)), caption))


def _most_gained(rows: pd.DataFrame, best: pd.DataFrame) -> str:
    most = best.loc[best.gain.idxmax()]
    cell = rows[(rows.hidden == most.hidden) & (rows.batch == most.batch)]
    data = cell[cell.family == DATA].iloc[0]
    return (
        f"{_machine(rows)}: most is gained at H {most.hidden}, batch {most.batch}, by {most.plan}: "
        f"{most.gain:.2f} x as fast as data, {most.predicted_us:,.0f} against {data.predicted_us:,.0f} us; "
        f"{_mb(most.sent)} against {_mb(data.sent)} MB sent; {_mb(most.weights)} against {_mb(data.weights)} "
        "MB of weights and gradients a rank."
    )


def _sides(best: pd.DataFrame) -> tuple[list[int], list[int]]:
    """List the widths and the batches of a map, in the order in which they are drawn."""
    return sorted(best.hidden.unique()), sorted(best.batch.unique())


def _draw_cells(axes: Axes, best: pd.DataFrame) -> None:
    from matplotlib.colors import ListedColormap

    hidden, batches = _sides(best)
    numbers = best.assign(number=best.family.map(FAMILIES.index)).pivot(
        index="batch", columns="hidden", values="number"
    )
    colours = ListedColormap(figures.COLOURS[: len(FAMILIES)])
    axes.imshow(numbers.to_numpy(float), cmap=colours, vmin=0, vmax=2, aspect="auto", origin="lower")
    axes.grid(False)
    axes.set_xticks(range(len(hidden)), [f"{size}" for size in hidden])
    axes.set_yticks(range(len(batches)), [f"{size}" for size in batches])
    axes.set(xlabel="units H of both hidden layers", ylabel="batch, samples")
    for row in best.itertuples():
        place = hidden.index(row.hidden), batches.index(row.batch)
        box = {"facecolor": figures.COLOURS[FAMILIES.index(row.family)], "edgecolor": "none", "pad": 1}
        middle = {"ha": "center", "va": "center", "size": 10, "color": "white", "weight": "bold"}
        axes.text(*place, _cell_text(row), bbox=box, **middle)
    _draw_diagonal(axes, hidden, batches)


def _cell_text(row: Any) -> str:
    """Family, grid, and how many times as fast as data."""
    if row.family == DATA:
        return DATA
    gain = f"{row.gain:.2f} x" if row.gain == row.gain else "data: no room"
    return f"{row.family} {row.groups:.0f}x{row.shards:.0f}\n{gain}"


def _draw_diagonal(axes: Axes, hidden: list[int], batches: list[int]) -> None:
    """Draw where the batch has as many samples as a layer has units; both go up by a factor."""
    if len(hidden) < 2 or len(batches) < 2:
        return
    limits = axes.axis()
    equal = np.log([min(hidden[0], batches[0]) / 4, max(hidden[-1], batches[-1]) * 4])
    places = [(equal - np.log(sizes[0])) / np.log(sizes[1] / sizes[0]) for sizes in (hidden, batches)]
    axes.plot(*places, "--", color="black", linewidth=1.5)
    axes.axis(limits)


def _frame(axes: Axes, best: pd.DataFrame, timed: pd.DataFrame) -> None:
    """Frame the cells that were measured."""
    from matplotlib.patches import Rectangle

    hidden, batches = _sides(best)
    for row in judged(timed).itertuples():
        if row.hidden in hidden and row.batch in batches:
            corner = hidden.index(row.hidden) - 0.46, batches.index(row.batch) - 0.44
            line = "-" if row.more <= CLOSE else ":"
            axes.add_patch(Rectangle(corner, 0.92, 0.88, fill=False, linewidth=3, linestyle=line, zorder=4))


def _crossover(rows: pd.DataFrame, timed: pd.DataFrame, setup: Setup, result: Section) -> None:
    """Times of each sort of plan by those of data, of one width of a map."""
    best = best_of(rows, "predicted_us")
    result.find("crossover", *_fork_and_join(rows, best))
    hidden = _most_changing(best, timed)
    figure, axes = figures.canvas()
    _draw_relative(axes, rows[rows.hidden == hidden], timed[timed.hidden == hidden])
    caption = (
        f"Step time of the best plan of each sort over that of data, H = {hidden}, on {_machine(rows)}: "
        "lines are predicted, large points measured. Below 1 data is beaten. Fork and join: one rank sends "
        "out and collects each product (predicted only)."
    )
    result.figures.append(Figure(figures.save(figure, setup.folder, "crossover"), caption))


def _fork_and_join(rows: pd.DataFrame, best: pd.DataFrame) -> list[str]:
    """Say what the course's way would take, where it fits."""
    forked = rows[rows.family == FORK_AND_JOIN].merge(best, on=CELL)
    if not len(forked):
        return []
    ratio = forked.predicted_us_x / forked.predicted_us_y
    return [
        f"The course's fork and join around every product would take {ratio.min():.1f} to "
        f"{ratio.max():.1f} times as long as the best plan on {_ranks(rows)}."
    ]


def _most_changing(best: pd.DataFrame, timed: pd.DataFrame) -> int:
    """Return the width at which the best plan changes most over the batch; of measured widths, if there are
    any."""
    measured = best[best.hidden.isin(timed.hidden)]
    changes = (measured if len(measured) else best).groupby("hidden").family.nunique()
    return int(changes[changes == changes.max()].index[-1])


def _draw_relative(axes: Axes, predicted: pd.DataFrame, timed: pd.DataFrame) -> None:
    """Step times of each sort as multiples of data's, over the batch."""
    for number, family in enumerate((*FAMILIES, FORK_AND_JOIN)):
        curve = relative(predicted, family, "predicted_us")
        if len(curve):
            axes.plot(curve.index, curve, label=family, **figures.style(number) | {"marker": "."})
        measured = relative(timed, family, "measured_us")
        if len(measured) and family != DATA:
            label = f"{family}, measured"
            axes.plot(measured.index, measured, label=label, markersize=11, **figures.dots(number))
            least, most = (_end(timed, family, column)[measured.index] for column in ("least_us", "most_us"))
            figures.error_bars(axes, measured.index, least, measured, most, number)
    axes.set(xlabel="batch, samples", ylabel="step time over that of data", xscale="log", yscale="log")
    _plain_logarithms(axes, sorted(predicted.batch.unique()), room=2.0)
    axes.legend(ncols=2)


def _times(rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    """Predicted beside measured times."""
    cases, machine = judged(rows), _machine(rows)
    result.find("times", _accuracy(rows, cases), *_most_measured(cases))
    result.find("crossover", *noisy(rows.least_us, rows.measured_us, rows.most_us))
    figure, axes = figures.canvas()
    _draw_times(axes, rows)
    caption = (
        f"Predicted against measured step times, {len(rows)} plans in {len(cases)} cases, on {machine}. "
        "Below the line a step took longer than predicted. Bars: from the least to the largest repetition."
    )
    result.figures.append(Figure(figures.save(figure, setup.folder, "times"), caption))
    result.tables.append(_table(rows, cases))


def _accuracy(rows: pd.DataFrame, cases: pd.DataFrame) -> str:
    """Say how often the plan predicted best is the fastest, and how far predicted times are off."""
    ratio, exact, close = rows.predicted_us / rows.measured_us, cases.more == 0, cases.more <= CLOSE
    return (
        f"Measured on {_machine(rows)}: the plan predicted best is the fastest in {exact.sum()} of "
        f"{len(cases)} cases, and within {CLOSE:.0%} of it in {close.sum()}; predicted times are "
        f"{ratio.min():.2f} to {ratio.max():.2f} of measured ones (median {ratio.median():.2f}, {len(rows)} "
        "plans)."
    )


def _most_measured(cases: pd.DataFrame) -> list[str]:
    """Say where the fastest plan gained most over data."""
    if not cases.fastest_gain.notna().any():
        return []
    most = cases.loc[cases.fastest_gain.idxmax()]
    return [
        f"The most that was measured over data: {most.fastest_gain:.2f} x at H {most.hidden}, batch "
        f"{most.batch} ({most.fastest})."
    ]


def _draw_times(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw a point for each plan, and the line on which it should lie."""
    for number, family in enumerate(FAMILIES):
        mine = rows[rows.family == family]
        if len(mine):
            ms = mine.measured_us * 1e-3, mine.predicted_us * 1e-3
            axes.plot(*ms, label=family, **figures.dots(number))
            around = [mine.measured_us - mine.least_us, mine.most_us - mine.measured_us]
            axes.errorbar(*ms, xerr=1e-3 * np.array(around), fmt="none", ecolor=figures.COLOURS[number])
    both = [*rows.measured_us * 1e-3, *rows.predicted_us * 1e-3]
    ends = [min(both) * 0.8, max(both) * 1.25]
    axes.plot(ends, ends, color="black", linewidth=1, label="equal")
    axes.set(xlabel="measured, ms a step", ylabel="predicted, ms a step", xscale="log", yscale="log")
    ticks = [tick for tick in (0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300) if ends[0] <= tick <= ends[1]]
    _plain_logarithms(axes, ticks)
    axes.legend()


def _table(rows: pd.DataFrame, cases: pd.DataFrame) -> Table:
    data = rows[rows.family == DATA].set_index(CELL).measured_us
    ratios = (rows.predicted_us / rows.measured_us).groupby([rows.hidden, rows.batch])
    spread = ratios.min().map("{:.2f}".format) + " to " + ratios.max().map("{:.2f}".format)
    columns = {
        "hidden": "H",
        "batch": "batch",
        "data_us": "data us",
        "plan": "predicted best",
        "measured_us": "its us",
        "fastest": "fastest",
        "fastest_us": "fastest us",
        "spread": "predicted / measured",
    }
    table = cases.set_index(CELL).assign(data_us=data, spread=spread).reset_index()
    return Table(
        "Measured cases, medians of a step: data, the plan predicted best and the fastest (groups x shards: "
        "how W1, W2, W3 are split); and predicted over measured times of all plans of the case.",
        table[list(columns)].rename(columns=columns),
    )


def _bytes(rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    """Show what a rank sends, counted and by the formulas."""
    ranks, hidden = rows.planned.iloc[0], rows.hidden.iloc[0]
    same = ((rows.counted == rows.sent) & (rows.counted_messages == rows.messages)).sum()
    result.find(
        "bytes",
        f"Bytes and messages that a rank of {ranks} gives to MPI in a step, counted, are exactly those of "
        f"the formulas in {same} of {len(rows)} runs (H {hidden}, {rows.plan.nunique()} plans).",
    )
    result.find("bytes", *_leanest(rows))
    figure, axes = figures.canvas()
    _draw_bytes(axes, rows)
    caption = (
        f"What rank 0 of {ranks} sends in a step of 784-{hidden}-{hidden}-10 in float32, by the formulas "
        "(lines) and counted at MPI (points); groups x shards, and how each layer is split. Data moves "
        "gradients, whatever the batch, model activations, mixed both."
    )
    result.figures.append(Figure(figures.save(figure, setup.folder, "bytes"), caption))


def _leanest(rows: pd.DataFrame) -> list[str]:
    """Data beside the model plan that sends least, at the smallest and the largest batch."""
    ends = rows[rows.family.isin([DATA, MODEL])].groupby(["batch", "family"]).counted.min().unstack() * 1e-6
    if not {DATA, MODEL} <= set(ends.columns):
        return []
    model, batches = ends[MODEL], ends.index
    return [
        f"Counted, data sends {ends[DATA].max():.2f} MB a step at any batch; the leanest model plan "
        f"{model.iloc[0]:.3f} MB at batch {batches[0]}, {model.iloc[-1]:.2f} MB at {batches[-1]}."
    ]


def _draw_bytes(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw a line and points for each plan, over the batch."""
    for number, (plan, mine) in enumerate(rows.groupby("plan", sort=False)):
        dots, ordered = figures.dots(number), mine.sort_values("batch")
        axes.plot(ordered.batch, ordered.sent * 1e-6, color=dots["color"])
        axes.plot(ordered.batch, ordered.counted * 1e-6, label=plan, markersize=9, **dots)
    axes.set(xlabel="batch, samples", ylabel="MB that a rank sends a step", xscale="log", yscale="log")
    _plain_logarithms(axes, sorted(rows.batch.unique()), room=8.0)
    axes.legend(loc="upper left", fontsize=10)
