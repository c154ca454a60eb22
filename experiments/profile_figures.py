"""The figures, tables and findings of `experiments.profile`, drawn from its rows."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments import figures
from experiments.noise import noisy
from experiments.profile_groups import (
    BACKWARD,
    CACHED,
    COPIES,
    EMPTY,
    FORWARD,
    ITERATION,
    MERGED,
    NETWORK,
    OTHER,
    REST,
    ROWS,
    START,
    START_GROUPS,
    SUMS,
    UPDATE,
    WALL,
)
from experiments.study import Figure, Section, Setup, Table, amount

if TYPE_CHECKING:
    import pandas as pd

COLOURS = {
    FORWARD: figures.COLOURS[0],
    BACKWARD: figures.COLOURS[5],
    MERGED: figures.COLOURS[2],
    ROWS: figures.COLOURS[2],
    OTHER: figures.COLOURS[4],
    COPIES: figures.COLOURS[3],
    SUMS: figures.COLOURS[1],
    UPDATE: figures.COLOURS[7],
    REST: "#e4e4e4",
}
"""Of the groups, as they are stacked. Two share one, of which a report has one alone: only the CPU's steps
gather their rows themselves, and only kernels are merged. Black is the wall time's."""

_DARK = (FORWARD, MERGED, ROWS, SUMS)
"""Colours that are written on in white."""

_IN_STREAM = (FORWARD, BACKWARD, MERGED, OTHER, UPDATE)
"""Groups of which all is in the compute stream, one after another."""

ALIKE = 0.05
"""Relative difference of two steps below which neither is called faster."""

STEADY = 0.1
"""Relative difference of the time of the same products up to which nothing is said."""

MILLISECONDS_FROM = 10_000
"""Microseconds that are told and drawn as milliseconds."""

ON_HOST = "NumPy computes: parts are the host's own times, means over ranks and steps."

ON_DEVICE = (
    "Parts are times between events on the device, means over ranks and steps. Of sums by MPI they are what "
    "the device waits for: a late rank is in it and, where they overlap, the copies are. Events slow a graph "
    "down, so that its parts may add up to more than the step takes."
)
"""How parts were measured."""


def section(rows: pd.DataFrame, setup: Setup) -> Section:
    result = Section()
    iterations, starts = rows[rows.part == ITERATION], rows[rows.part == START]
    if len(iterations):
        _steps(iterations, setup, result)
    if len(starts):
        _starts(starts, setup, result)
    return result


def parts(run: pd.DataFrame) -> dict[str, float]:
    """Microseconds of a step by group, of one rung's rows; nothing is counted twice.

    The CPU's are host times of phases: at any moment one is charged. On a device they are times between
    events in the compute stream, whose work is done in order. What it waits for sums on the host is what
    its events leave between the end of the backward pass and the update; copies that pass beside it are in
    that. The rest is what is between the kernels, and what the step's wall time has beyond all of these.
    """
    found = _on_device(run) if run.device_us.notna().any() else _on_host(run)
    wall = float(run[run.phase == WALL].host_us.sum())
    found[REST] = found.get(REST, 0.0) + max(0.0, wall - sum(found.values()))
    return found


def _on_host(run: pd.DataFrame) -> dict[str, float]:
    own = run[run.group.isin(COLOURS) & (run.group != REST)]  # that is what is left of the wall time
    return {str(group): float(us) for group, us in own.groupby("group").host_us.sum().items()}


def _on_device(run: pd.DataFrame) -> dict[str, float]:
    exchange = run.exchange.iloc[0]
    in_stream = (*_IN_STREAM, COPIES) if exchange in ("root", "blocking") else _IN_STREAM
    times = run[run.group.isin(in_stream)].groupby("group").device_us.sum()
    found = {str(group): float(us) for group, us in times.items()}
    whole = {str(phase): float(us) for phase, us in run.set_index("phase").device_us.fillna(0).items()}
    passes = whole["forward"] + whole["backward"]
    after = found.get(UPDATE, 0.0) + found.get(COPIES, 0.0)
    kernels = sum(found.values()) - after
    found[REST] = max(0.0, passes - kernels)
    if exchange in ("root", "blocking", "host"):
        found[SUMS] = max(0.0, whole["batch iteration"] - passes - after)
    else:
        found[SUMS] = whole.get("sum, update and spread", 0.0)
    return found


class Wall(NamedTuple):
    """Microseconds of a step: the median of all epochs, and the ends of the middle eight tenths of them."""

    us: float
    low: float
    high: float

    @classmethod
    def of(cls, run: pd.DataFrame) -> Wall:
        """Take those of a rung's rows."""
        (row,) = run[run.phase == WALL].itertuples()
        return cls(row.host_us, row.low_us, row.high_us)

    def is_like(self, other: Wall) -> bool:
        """Return whether neither is to be called faster."""
        return abs(self.us - other.us) < ALIKE * self.us

    def overlaps(self, other: Wall) -> bool:
        """Return whether some epochs of the faster one are slower than some of the other."""
        return self.low <= other.high and other.low <= self.high


def _noise(walls: dict[str, Wall]) -> list[str]:
    import pandas as pd

    times = pd.DataFrame(list(walls.values()))
    return noisy(times.low, times.us, times.high)


def _unsteady(runs: dict[str, pd.DataFrame], bars: dict[str, dict[str, float]]) -> list[str]:
    """Say where the same products took other times: the machine, not the rung, made the difference."""
    found = []
    for before, after in itertools.pairwise(runs):
        words = (re.sub(" --exchange [a-z]+", "", runs[rung].words.iloc[0]) for rung in (before, after))
        then, now = (bars[rung].get(FORWARD, 0.0) + bars[rung].get(BACKWARD, 0.0) for rung in (before, after))
        if len(set(words)) == 1 and then > 0 and abs(now / then - 1) > STEADY:
            found.append(
                f"This machine was not steady: products, the same in both, take {now / then:.2f} times as "
                f"long with {after} as with {before}, so that less of the difference comes from the rung."
            )
    return found


def _steps(rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    runs = {str(rung): run for rung, run in rows.groupby("rung", sort=False)}
    bars = {rung: parts(run) for rung, run in runs.items()}
    walls = {rung: Wall.of(run) for rung, run in runs.items()}
    steady = [*_noise(walls), *_unsteady(runs, bars)]
    result.find("step", *_bought(bars, walls), _largest(bars), *steady)
    _draw_steps(bars, walls, rows, setup, result)
    result.tables.append(_table(runs, walls))


def _bought(bars: dict[str, dict[str, float]], walls: dict[str, Wall]) -> list[str]:
    """Say what each rung gained, and all together."""
    found = [
        f"{after.capitalize()}: a step takes {_time(walls[after].us)}, {_times(walls[before], walls[after])} "
        f"with {before}{_most_changed(bars, walls, before, after)}."
        for before, after in itertools.pairwise(walls)
    ]
    if len(walls) > 2:
        first, *_, last = walls
        found.append(
            f"All together: from {_time(walls[first].us)} with {first} to {_time(walls[last].us)} with "
            f"{last}, {_times(walls[first], walls[last])} at first."
        )
    return found


def _time(us: float) -> str:
    return f"{us:.0f} us" if us < MILLISECONDS_FROM else f"{us / 1000:.1f} ms"


def _times(before: Wall, after: Wall) -> str:
    if before.is_like(after):
        return "about as long as"
    ratio = before.us / after.us
    return f"{ratio:.1f} times as fast as" if ratio > 1 else f"{1 / ratio:.1f} times as slow as"


def _most_changed(bars: dict[str, dict[str, float]], walls: dict[str, Wall], before: str, after: str) -> str:
    """Say in which group most was gained, or lost; or that the difference may be none."""
    if walls[before].is_like(walls[after]):
        return ""
    if walls[before].overlaps(walls[after]):
        return "; epochs of both scatter so much that this may be chance"
    sign, what = (1, "gained") if walls[after].us < walls[before].us else (-1, "lost")
    then, now = (_with_copies_in_sums(bars[rung]) for rung in (before, after))
    most = max(then, key=lambda group: sign * (then[group] - now[group]))
    return f"; most is {what} in {most} ({_time(then[most])} before, {_time(now[most])} now)"


def _with_copies_in_sums(bar: dict[str, float]) -> dict[str, float]:
    """Return all groups, copies joined to sums: where they overlap they cannot be told apart."""
    found = {group: bar.get(group, 0.0) for group in COLOURS}
    found["sums over ranks and their copies"] = found.pop(SUMS) + found.pop(COPIES)
    return found


def _largest(bars: dict[str, dict[str, float]]) -> str:
    """Say which groups make up the last rung's step."""
    rung, bar = list(bars.items())[-1]
    whole = sum(bar.values())
    largest = sorted(bar.items(), key=lambda part: -part[1])[:3]
    shares = ", ".join(f"{100 * us / whole:.0f}% {group}" for group, us in largest)
    return f"What is left, with {rung}, is mostly: {shares}."


def _draw_steps(
    bars: dict[str, dict[str, float]],
    walls: dict[str, Wall],
    rows: pd.DataFrame,
    setup: Setup,
    result: Section,
) -> None:
    """Bars as long as the step, and bars of shares beside them, in which the short ones can be read."""
    figure, (lengths, shares) = figures.canvas(1, 2, sharey=True)
    wholes = {rung: sum(bar.values()) for rung, bar in bars.items()}
    in_ms = max(wholes.values()) >= MILLISECONDS_FROM
    scale = 1e-3 if in_ms else 1.0
    _stack(lengths, _scaled(bars, dict.fromkeys(bars, scale)), COLOURS)
    _mark_walls(lengths, walls, wholes, scale)
    lengths.set(xlabel=f"{'ms' if in_ms else 'us'} a step", xlim=(0, 1.25 * scale * max(wholes.values())))
    parted = _scaled(bars, {rung: 100 / whole for rung, whole in wholes.items()})
    _stack(shares, parted, COLOURS)
    _write_shares(shares, parted)
    shares.set(xlabel="% of the parts", xlim=(0, 100))
    figure.legend(*lengths.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    caption = (
        f"A training step on {amount(rows.ranks.iloc[0], 'rank')}, batch 3000 over all, rung by rung: times "
        "(left; the black line is the wall time, the median over epochs, its bar the middle eight tenths of "
        "them) and shares (right). "
        f"{ON_DEVICE if rows.device_us.notna().any() else ON_HOST}"
    )
    result.figures.append(Figure(figures.save(figure, setup.folder, "step"), caption, wide=True))


def _scaled(bars: dict[str, dict[str, float]], by: dict[str, float]) -> dict[str, dict[str, float]]:
    return {rung: {group: us * by[rung] for group, us in bar.items()} for rung, bar in bars.items()}


def _mark_walls(axes: Any, walls: dict[str, Wall], wholes: dict[str, float], scale: float) -> None:
    for place, (rung, wall) in enumerate(walls.items()):
        name = "wall time of the step" if place == 0 else None
        at = [wall.us * scale] * 2
        axes.plot(at, [place - 0.42, place + 0.42], "-", color="black", linewidth=3, label=name)
        around = [[scale * (wall.us - wall.low)], [scale * (wall.high - wall.us)]]
        axes.errorbar(at[:1], [place + 0.42], xerr=around, fmt="none", ecolor="black", capsize=3)
        end = max(wall.high, wholes[rung]) * scale
        axes.annotate(_time(wall.us), (end, place), (6, 0), textcoords="offset points", va="center")


def _stack(axes: Any, bars: dict[str, dict[str, float]], colours: dict[str, str]) -> None:
    """Draw a horizontal bar for each, the first on top; leave out groups that no bar has."""
    names = list(bars)
    left = [0.0] * len(names)
    for group, colour in colours.items():
        widths = [bars[name].get(group, 0.0) for name in names]
        if any(widths):
            axes.barh(range(len(names)), widths, left=left, height=0.7, color=colour, label=group)
            left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(False, axis="y")


def _write_shares(axes: Any, bars: dict[str, dict[str, float]]) -> None:
    """Write the number into each part that has room for it."""
    for place, bar in enumerate(bars.values()):
        left = 0.0
        for group in COLOURS:
            share = bar.get(group, 0.0)
            if share >= 8:
                colour = "white" if group in _DARK else "black"
                axes.text(left + share / 2, place, f"{share:.0f}", ha="center", va="center", color=colour)
            left += share


def _table(runs: dict[str, pd.DataFrame], walls: dict[str, Wall]) -> Table:
    import pandas as pd

    us = pd.Series({rung: wall.us for rung, wall in walls.items()})
    words = [run.words.iloc[0].partition(NETWORK)[0].strip() for run in runs.values()]
    table = pd.DataFrame(
        {
            "rung": list(walls),
            f"options, beside {NETWORK}": words,
            "step, us": us.to_numpy(),
            "of epochs": [f"{wall.low:,.0f} to {wall.high:,.0f}" for wall in walls.values()],
            "times as fast as the one before": (us.shift() / us).to_numpy(),
            "as the first": (us.iloc[0] / us).to_numpy(),
        }
    )
    caption = (
        "The rungs: options of train.py, and the wall time of a step: the median over all epochs but the "
        "first two, and the range of the middle eight tenths of them."
    )
    return Table(caption, table)


def _starts(rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    bars = {
        str(start): {str(group): us / 1e6 for group, us in run.groupby("group").host_us.sum().items()}
        for start, run in rows.groupby("rung", sort=False)
    }
    result.find("start", *(_mostly(start, bar) for start, bar in bars.items()))
    if bars.keys() >= {EMPTY, CACHED}:
        compiled, cached = (bars[start]["kernels"] for start in (EMPTY, CACHED))
        result.find(
            "start",
            f"The first start compiles the kernels, {compiled:.1f} s; later ones find them in "
            f"{cached:.2f} s.",
        )
    figure, axes = figures.canvas()
    groups = list(dict.fromkeys(START_GROUPS.values()))
    _stack(axes, bars, dict(zip(groups, figures.COLOURS[: len(groups)], strict=True)))
    axes.set(xlabel="s, from the start of mpirun to the first step")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    ranks = " and ".join(str(count) for count in sorted(set(rows.ranks)))
    caption = (
        f"What train.py does before its first step, on {ranks} rank(s), one start each: the host's own time "
        "in each phase, means over ranks. What is in no phase lies between these, and a little of it behind "
        "the training."
    )
    result.figures.append(Figure(figures.save(figure, setup.folder, "start"), caption))


def _mostly(start: str, bar: dict[str, float]) -> str:
    whole = sum(bar.values())
    largest = sorted(bar.items(), key=lambda part: -part[1])[:3]
    shares = ", ".join(f"{group} {seconds:.2f} s" for group, seconds in largest)
    return f"A start with {start} takes {whole:.2f} s until the first step, most of it: {shares}."
