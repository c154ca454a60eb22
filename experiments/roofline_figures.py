"""The figures, tables and findings of `experiments.roofline`, drawn from its rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from experiments import counting, figures
from experiments.noise import noisy
from experiments.roofs import (
    COUNTED,
    COUNTERS,
    STEP,
    STREAMED,
    TRANSFERS,
    Known,
    Level,
    course_rate,
    fitted,
    product_rates,
    roof,
)
from experiments.study import Figure, Section, Setup, Table, amount

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

COURSE, BETTER = "the course's model", "with launches and latencies"

WINDOWS = "Bars: from the least to the largest of the windows of which a step's time is the median."

SAME = 0.01
"""Counts that differ by less from the list are as it says."""


class Unit(NamedTuple):
    """In which rates are shown."""

    gflop_s: float
    name: str

    @classmethod
    def of(cls, peak_gflop_s: float) -> Unit:
        return cls(1e3, "TFLOP/s") if peak_gflop_s >= 1e3 else cls(1.0, "GFLOP/s")


def _windows(axes: Axes, x: pd.Series, values: pd.Series, steps: pd.DataFrame, number: int) -> None:
    """Draw bars from the least to the largest of a step's windows; the values are flops over its time."""
    least, most = (values * steps.us / steps[end] for end in ("most_us", "least_us"))
    figures.error_bars(axes, x, least, values, most, number)


def _run(row: pd.Series) -> str:
    """Name the run that was counted."""
    way = f", {row.exchange}" if row.ranks > 1 else ""
    return f"{'NumPy' if row.device == 'cpu' else 'GPU'}, {amount(row.ranks, 'rank')}{way}"


def _counts_table(rows: pd.DataFrame, caption: str) -> Table:
    import pandas as pd

    scale = rows.unit.map({counting.FLOP: 1e6, counting.BYTE: 1e3})
    table = {
        "step": rows.apply(_run, axis=1),
        "of": rows.what,
        "unit": rows.unit.map({counting.FLOP: "Mflop", counting.BYTE: "kB"}),
        "listed": rows.listed / scale,
        "counted": rows.counted / scale,
        "counted / listed": rows.counted / rows.listed,
    }
    return Table(caption, pd.DataFrame(table))


def counts(rows: pd.DataFrame, result: Section) -> None:
    """Listed beside counted."""
    counted, counters = rows[rows.kind == COUNTED], rows[rows.kind == COUNTERS]
    if len(counted):
        first = counted.iloc[0]
        result.find(None, f"{_agreement(counted, counting.FLOP)} {_agreement(counted, counting.BYTE)}")
        caption = (
            f"A step's flops and bytes as rank 0's list has them, and as a run had them: H = {first.hidden}, "
            f"batch {first.batch}. Products that NumPy is given, copies that the driver makes, bytes that "
            "MPI is given; losses come down as the whole ring that holds the last ones."
        )
        result.tables.append(_counts_table(counted, caption))
    if len(counters):
        _hardware(counters, result)


def _agreement(counted: pd.DataFrame, unit: str) -> str:
    """Which counts are as listed."""
    mine = counted[counted.unit == unit]
    apart = mine[(mine.counted - mine.listed).abs() > SAME * mine.listed]
    what = "products take the flops" if unit == counting.FLOP else "transfers move the bytes"
    text = f"{len(mine) - len(apart)} of {len(mine)} counted {what} of the list"
    differ = [f"{row.what}: {row.counted:,.0f} for {row.listed:,.0f}" for row in apart.itertuples()]
    return f"{text} ({'; '.join(dict.fromkeys(differ))})." if differ else f"{text}."


def _hardware(counters: pd.DataFrame, result: Section) -> None:
    ratios = counters.counted / counters.listed
    flops, nbytes = ratios[counters.unit == counting.FLOP], ratios[counters.unit == counting.BYTE]
    most = counters.loc[flops.idxmax()]
    result.find(
        None,
        f"The hardware counts {flops.min():.2f} to {flops.max():.2f} times the listed flops in products "
        f"of the plain tiled kernel (most in {most.what}: tiles reach over the edges of matrices), and "
        f"{nbytes.min():.2f} to {nbytes.max():.2f} times the listed bytes read from memory: what is still in "
        "the cache is not read, and what tiles share may be read again.",
    )
    first = counters.iloc[0]
    caption = (
        f"Products of a step by the kernel gemm_tiled, listed, and counted by Nsight Compute: H = "
        f"{first.hidden}, batch {first.batch}; bytes are those read from device memory."
    )
    table = _counts_table(counters, caption)
    table.rows["us"] = counters.us
    result.tables.append(table)


def measured_rates(rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    """Effective rates of products and transfers."""
    steps = rows[rows.kind == STEP]
    if len(steps):
        _products(steps[steps.ranks == steps.ranks.min()], setup, result)
    transfers = rows[rows.kind == TRANSFERS]
    if len(transfers):
        _transfers(transfers, setup, result)
    known = Known.of(rows, setup)
    if known:
        result.tables.append(_rates_table(known))


def _products(steps: pd.DataFrame, setup: Setup, result: Section) -> None:
    rates = product_rates(steps)
    unit = Unit.of(rates.max())
    most, least = steps.loc[rates.idxmax()], steps.loc[rates.idxmin()]
    result.find(
        "products",
        f"P_flops, flops of a step's products by their time on one {'GPU' if setup.gpus else 'core'}: "
        f"{rates.min() / unit.gflop_s:.3g} {unit.name} at H = {least.hidden}, batch {least.batch}, to "
        f"{rates.max() / unit.gflop_s:.3g} at H = {most.hidden}, batch {most.batch}.",
    )
    figure, axes = figures.canvas()
    for number, (batch, mine) in enumerate(steps.groupby("batch")):
        mine = mine.sort_values("hidden")
        curve = rates[mine.index] / unit.gflop_s
        axes.plot(mine.hidden, curve, label=f"{batch}", **figures.style(number))
        figures.deviations(axes, mine.hidden, curve, mine.product_std_us / mine.product_us, number)
    axes.set(xlabel="hidden units H", ylabel=f"products, {unit.name}", xscale="log", yscale="log")
    _room_above(axes, 0.3)
    _log_ticks(axes)
    figures.plain_ticks(axes, "x", sorted(steps.hidden.unique()))
    axes.legend(title="batch", ncols=4, loc="upper left")
    caption = (
        "Effective P_flops of one rank: flops of all products of a step by the time of the operations that "
        f"do them, over the hidden size, a curve for each batch ({unit.name}). Bars: one standard deviation "
        "of that time from step to step."
    )
    result.figures.append(Figure(figures.save(figure, setup.folder, "products"), caption))


def _log_ticks(axes: Axes) -> None:
    """Numbers as they are on logarithmic axes, few enough to be told apart."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        if high / low < 6:
            axis.set_major_locator(MaxNLocator(5))
        else:
            subs = (1.0,) if high / low > 300 else (1.0, 2.0, 5.0)
            axis.set_major_locator(LogLocator(subs=subs, numticks=12))
        axis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:,.8g}"))
        axis.set_minor_formatter(NullFormatter())


def _room_above(axes: Axes, part: float) -> None:
    """Make room for a legend on a logarithmic axis: this part of the height that data take."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** part)


def _transfers(transfers: pd.DataFrame, setup: Setup, result: Section) -> None:
    from experiments.page import cell

    said = []
    figure, axes = figures.canvas()
    for number, what in enumerate(dict.fromkeys(transfers.what)):
        mine = transfers[transfers.what == what].sort_values("bytes")
        size, rate = mine.bytes / 1e6, mine.bytes / mine.us * 1e-3
        axes.plot(size, rate, label=what, **figures.style(number))
        figures.deviations(axes, size, rate, mine.std_us / mine.us, number)
        latency, gb_s = fitted(mine.bytes, mine.us)
        said.append(f"{what} {cell(gb_s)} GB/s after {cell(latency)} us")
    axes.set(xlabel="MB of a call", ylabel="GB/s", xscale="log", yscale="log")
    _room_above(axes, 0.35)
    _log_ticks(axes)
    axes.legend(ncols=2, loc="upper left")
    copies = "P_pci" if setup.gpus else "Copies (with no GPU there is no P_pci)"
    if counting.SUM in set(transfers.what):
        copies += " and P_mpi"
    result.find("transfers", f"{copies}, by straight lines through the times: {'; '.join(said)}.")
    gathered = "" if setup.gpus else " Rows are gathered by the same thread, which counts."
    caption = (
        "Effective rates of transfers by themselves, GB/s over their size: copies between host and device, "
        "and gradients in MPI (bytes that a rank of a ring sends). Bars: one standard deviation of a "
        f"transfer's time.{gathered}"
    )
    result.figures.append(Figure(figures.save(figure, setup.folder, "transfers"), caption))


def _rates_table(known: Known) -> Table:
    import pandas as pd

    rates, lines = known.rates, list[tuple[str, float, str, float | None, str]]()
    unit = Unit.of(known.peak_gflop_s)
    where = "operations by themselves"
    lines.append(("P_flops, fastest of all", known.peak_gflop_s / unit.gflop_s, unit.name, None, "all"))
    lines.append(("P_flops, fastest alone", rates.peak_gflop_s / unit.gflop_s, unit.name, None, where))
    lines.append(("P_mem, the update", rates.memory_gb_s, "GB/s", rates.operation_us, where))
    if rates.link_gb_s > 0:
        lines.append((f"exchange {rates.way}, updates in it", rates.link_gb_s, "GB/s", rates.link_us, where))
    for what, mine in known.transfers.groupby("what", sort=False):
        latency, gb_s = fitted(mine.bytes, mine.us)
        lines.append((what, gb_s, "GB/s", latency, "steps whose phases are waited for"))
    names = ["what", "rate", "unit", "latency us", "measured in"]
    return Table("What the models reckon with.", pd.DataFrame(lines, columns=names))


def models(rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    """Measured steps against rooflines and times that models expect."""
    known, steps = Known.of(rows, setup), rows[rows.kind == STEP]
    if known is None or not len(steps):
        return
    _course(known, steps[steps.ranks == steps.ranks.min()], setup, result)
    _hierarchy(known, rows, setup, result)
    _ratios(known, steps, setup, result)


def _course(known: Known, steps: pd.DataFrame, setup: Setup, result: Section) -> None:
    """Show the course's curve for the bytes of device memory, and measured points of one rank.

    Its own roofline, of gradients through host memory: experiments/course_roofline.py.
    """
    import numpy as np

    peak, memory = known.peak_gflop_s, known.rates.memory_gb_s
    unit = Unit.of(peak)
    intensity, reached = steps.flops / steps.traffic, steps.flops / steps.us * 1e-3
    ridge = peak / memory  # flops a byte from which on memory is no limit
    line = np.geomspace(min(intensity.min(), ridge) / 3, max(intensity.max() * 3, ridge), 99)
    figure, axes = figures.canvas()
    roofs = [roof(each, peak, memory) / unit.gflop_s for each in line]
    axes.plot(line, roofs, color="#999999", linestyle="--", label="min(P, AI B)")
    expected = [course_rate(each, peak, memory) / unit.gflop_s for each in line]
    axes.plot(line, expected, color="black", label="AI / (AI / P + 1 / B)")
    for number, (batch, mine) in enumerate(steps.groupby("batch")):
        style = {**figures.style(number), "linestyle": ":"}
        x, y = intensity[mine.index], reached[mine.index] / unit.gflop_s
        axes.plot(x, y, label=f"batch {batch}", **style)
        _windows(axes, x, y, mine, number)
    axes.set(xlabel="AI, flops a byte of memory", ylabel=unit.name, xscale="log", yscale="log")
    _room_above(axes, 0.45)
    _log_ticks(axes)
    axes.legend(ncols=2, loc="upper left")
    caption = (
        f"The course's curve with bytes of device memory, of one rank, P = {peak / unit.gflop_s:.3g} "
        f"{unit.name} and B = {memory:,.4g} GB/s, and measured steps: along each dotted line H goes from "
        f"{steps.hidden.min()} (left) to {steps.hidden.max()}. {WINDOWS}"
    )
    result.figures.append(Figure(figures.save(figure, setup.folder, "roofline"), caption))


def _hierarchy(known: Known, rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    """Show a panel for steps as they run by default, and one for steps through host memory."""
    most = rows[rows.kind == STEP].ranks.max()
    kinds = {STEP: "rows on the device" if known.on_gpu else "NumPy", STREAMED: "all through host memory"}
    panels = {
        text: mine
        for kind, text in kinds.items()
        if len(mine := rows[(rows.kind == kind) & (rows.ranks == most)])
    }
    figure, all_axes = figures.canvas(1, len(panels), squeeze=False, sharey=True)
    for axes, (text, steps) in zip(all_axes[0], panels.items(), strict=True):
        levels = [level for level in known.levels(steps.way.iloc[0]) if level.is_used(steps)]
        _panel(axes, known, levels, steps)
        axes.set_title(f"{text}, exchange {steps.way.iloc[0]}" if most > 1 else text, size=14)
        bound = _bound(known, levels, steps).value_counts()
        result.find(
            "hierarchy",
            f"Hierarchical roofline, {amount(most, 'rank')}, {text}: the lowest roof is "
            f"{', '.join(f'{name} for {count}' for name, count in bound.items())} of {len(steps)} steps.",
        )
    caption = (
        f"Hierarchical roofline of a step of {f'one of {most} ranks' if most > 1 else 'one rank'}: a roof "
        "for each way that bytes take, its slope their rate, below the ceiling of products. Each step is a "
        "point for each roof, at its flops for each byte of that kind; H grows along a dotted line. "
        f"{WINDOWS}"
    )
    name = figures.save(figure, setup.folder, "hierarchy")
    result.figures.append(Figure(name, caption, wide=len(panels) > 1))


def _panel(axes: Axes, known: Known, levels: Sequence[Level], steps: pd.DataFrame) -> None:
    import numpy as np

    peak = known.peak_gflop_s
    unit, reached = Unit.of(peak), steps.flops / steps.us * 1e-3
    intensities = [level.intensity(steps) for level in levels]
    right = max(max(each.max() for each in intensities), *(peak / level.gb_s for level in levels)) * 3
    left = min(min(each.min() for each in intensities), peak / max(level.gb_s for level in levels)) / 3
    floor = reached.min() / 3
    for place, level in enumerate(levels):
        line = np.geomspace(max(left, floor / level.gb_s), right, 99)
        values = np.array([roof(each, peak, level.gb_s) for each in line]) / unit.gflop_s
        style = {"linestyle": figures.LINES[place], "marker": figures.MARKERS[place]}
        axes.plot(line, values, color="#555555", label=level.name, markevery=[], **style)
    for number, (batch, mine) in enumerate(steps.groupby("batch")):
        for place, intensity in enumerate(intensities):
            style = {**figures.style(number), "marker": figures.MARKERS[place], "linestyle": ":"}
            x, y = intensity[mine.index], reached[mine.index] / unit.gflop_s
            axes.plot(x, y, label=f"{batch}" if place == 0 else None, **style)
            _windows(axes, x, y, mine, number)
    axes.set(xlabel="AI, flops a byte", ylabel=unit.name, xscale="log", yscale="log")
    axes.set(xlim=(left, right), ylim=(floor / unit.gflop_s, peak / unit.gflop_s * 1.5))
    _room_above(axes, 0.5)
    _log_ticks(axes)
    _two_legends(axes)


def _two_legends(axes: Axes) -> None:
    """Add a legend of roofs, drawn before points, and one of batches; above the ceiling."""
    lines, names = axes.get_legend_handles_labels()
    batches = [place for place, name in enumerate(names) if name.isdigit()]
    first = axes.legend(lines[: batches[0]], names[: batches[0]], title="roof, points", loc="upper left")
    axes.add_artist(first)
    axes.legend(lines[batches[0] :], names[batches[0] :], title="batch", ncols=2, loc="upper right")


def _bound(known: Known, levels: Sequence[Level], steps: pd.DataFrame) -> pd.Series:
    """Name the lowest roof of each step."""
    import pandas as pd

    roofs = {level.name: level.intensity(steps) * level.gb_s for level in levels}
    roofs["products"] = known.peak_gflop_s
    return pd.DataFrame(roofs, index=steps.index).idxmin(axis=1)


def _ratios(known: Known, steps: pd.DataFrame, setup: Setup, result: Section) -> None:
    """Measured by predicted time of both models."""
    ratios = {COURSE: steps.us / known.course_us(steps), BETTER: steps.us / known.better_us(steps)}
    ranks = sorted(steps.ranks.unique())
    figure, all_axes = figures.canvas(len(ranks), 2, squeeze=False, sharex=True, sharey=True)
    for row, count in zip(all_axes, ranks, strict=True):
        mine = steps[steps.ranks == count]
        result.find("models", _errors(known, mine, ratios))
        for axes, (name, ratio) in zip(row, ratios.items(), strict=True):
            axes.axhline(1, color="#555555")
            for number, (hidden, curve) in enumerate(mine.groupby("hidden")):
                ratios_of_curve = ratio[curve.index]
                axes.plot(curve.batch, ratios_of_curve, label=f"{hidden}", **figures.style(number))
                least, most = (ratios_of_curve * curve[end] / curve.us for end in ("least_us", "most_us"))
                figures.error_bars(axes, curve.batch, least, ratios_of_curve, most, number)
            axes.set(xscale="log", yscale="log", title=f"{name}, {amount(count, 'rank')}")
            axes.title.set_size(14)
            _log_ticks(axes)
            figures.plain_ticks(axes, "x", sorted(steps.batch.unique()))
    for axes in all_axes[-1]:
        axes.set_xlabel("batch, samples")
    for axes in all_axes[:, 0]:
        axes.set_ylabel("measured / predicted")
    result.find("models", *noisy(steps.least_us, steps.us, steps.most_us))
    lines, names = all_axes[0][0].get_legend_handles_labels()
    figure.legend(lines, names, title="hidden units H", ncols=len(names), loc="outside lower center")
    caption = (
        "Measured by predicted time of a step over the batch, a curve for each hidden size; 1, the dark "
        f"line, is right, above it a step takes longer than predicted. Left {COURSE}: flops and bytes by the "
        "best rates; right the cost model of nn/autotune, which has times of products of all sizes, of a "
        f"launch and of a message. {WINDOWS}"
    )
    result.figures.append(Figure(figures.save(figure, setup.folder, "models"), caption, wide=True))


def _errors(known: Known, steps: pd.DataFrame, ratios: dict[str, pd.Series]) -> str:
    """Say how far each model is off on so many ranks, and where the course's is furthest off."""
    course = ratios[COURSE][steps.index]
    worst = steps.loc[course.map(lambda ratio: abs(math.log(ratio))).idxmax()]
    said = [
        f"{name}: median {mine.median():.2f}, from {mine.min():.2f} to {mine.max():.2f}"
        for name, mine in ((name, ratio[steps.index]) for name, ratio in ratios.items())
    ]
    chosen, largest = steps.loc[[worst.name]], steps.loc[steps.flops.idxmax()]
    return (
        f"Measured / predicted time on {amount(worst.ranks, 'rank')}: {'; '.join(said)}. The course's is "
        f"furthest off at H = {worst.hidden}, batch {worst.batch}: measured {worst.us:,.0f} us, expected "
        f"{known.course_us(chosen).iloc[0]:,.0f}, {BETTER} {known.better_us(chosen).iloc[0]:,.0f}. At H = "
        f"{largest.hidden}, batch {largest.batch} the course's ratio is {course[largest.name]:.2f}."
    )
