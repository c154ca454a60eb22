"""Where the time goes: the phases of a step, up the ladder of what made it faster, and those of a start."""

from __future__ import annotations

import itertools
import re
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments import figures, jobs
from experiments.study import Figure, Point, Row, Section, Setup, Table, Taken
from pyrt.cache import VARIABLE

if TYPE_CHECKING:
    import pandas as pd

TITLE = "Profile of a step and of a start"
QUESTION = (
    "Where does the time of a training step go, and what did each rung buy: faster products, sums that "
    "overlap, fewer launches, sums between GPUs? Each rung is a run of train.py from the shell (the "
    "course's network, 784-512-10, batch 3000 over all ranks, float32), whose table of phases is drawn here."
)
COLUMNS = ("part", "rung", "words", "ranks", "exchange", "phase", "group", "host_us", "device_us")

ITERATION, START = "iteration", "start-up"
"""Parts: rows of the first are microseconds a step, of the second of the whole run."""

WALL = "step (wall)"
"""What stands for the phase in the row that has a step's wall time."""

IMAGES = "copying images host -> device"
"""A phase of each step, or of the start."""

NETWORK = "--hidden 512 --batch 3000 --val-fraction 0"


class Rung(NamedTuple):
    """A run, by what it has that the one before has not."""

    name: str
    words: str
    exchange: str
    epochs: int
    """So many that the first, slow steps count for little; of 60,000 samples."""


LADDER = (
    Rung("naive products", "--gemm naive --no-graph", "blocking", 20),
    Rung("tiled products", "--gemm tiled --no-graph", "blocking", 60),
    Rung("sums that overlap", "--gemm tiled --no-graph", "host", 60),
    Rung("fused on tensor cores", "--no-graph", "host", 60),
    Rung("graphs", "", "host", 100),
    Rung("peer exchange", "", "peer", 400),
)
"""On GPUs."""

ON_CPU = (
    Rung("rank 0 sums", "", "root", 5),
    Rung("blocking sums", "", "blocking", 5),
    Rung("sums that overlap", "", "host", 5),
)

FEW_SAMPLES, FEW_EPOCHS = 6000, 12
"""Of the small size on the CPU."""

EMPTY, CACHED = "an empty kernel cache", "kernels in the cache"
"""Starts on GPUs."""

OTHER, FORWARD, BACKWARD = "pixels, activations and loss", "forward products", "backward products"
MERGED = "output layer in one kernel"
ROWS = "rows of the batch"
COPIES, SUMS, UPDATE = "copies of gradients", "sums over ranks", "update"
REST = "host and launches"
"""Groups of phases."""

_COLOURS = {
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

_GROUP_OF = (
    (r"forward GEMM \d+ to .*", MERGED),
    (r"forward GEMM \d+", FORWARD),
    (r"backward GEMM \d+", BACKWARD),
    (r"scale pixels|split operands|bias and activation \d+|activation gradient \d+|bias gradient \d+", OTHER),
    (r"head, loss and gradient|sum of losses|sums of the blocks|output bias", OTHER),
    (r"(copying images|row order) host -> device", ROWS),
    (r"(gradients|parameters) (device -> host|host -> device)", COPIES),
    (r"MPI_\w+|sum of gradients|sum, update and spread", SUMS),
    (r"step", UPDATE),
    (r"batch iteration|graph replay|forward|backward|losses device -> host", REST),
)
"""Names of phases (nn/step.py, nn/fuse.py, pyrt/exchange) and their groups. Those of the rest have others
within them, which their device times are of, too."""

_IN_STREAM = (FORWARD, BACKWARD, MERGED, OTHER, UPDATE)
"""Groups of which all is in the compute stream, one after another."""

START_GROUPS = {
    "start mpirun": "mpirun",
    "start Python and MPI": "Python and MPI",
    "import packages": "imports",
    "start device": "device",
    "load data": "data",
    "distribute data": "data",
    "compile kernels": "kernels",
    "count memory": "network, exchange and graphs",
    "train setup": "network, exchange and graphs",
    IMAGES: "data",
    "other": "in no phase",
}
"""Phases of a start, in their order, and what they are called in the figure."""


def ladder(setup: Setup) -> list[Rung]:
    """The rungs that there are here: with one GPU those alone that are more than another exchange."""
    if not setup.gpus:
        return list(ON_CPU)
    if setup.gpus > 1:
        return list(LADDER)
    return list({rung.words: rung for rung in reversed(LADDER)}.values())[::-1]


def points(setup: Setup) -> list[Point]:
    """The rungs first: they leave their kernels in the cache for the starts."""
    ranks, rungs = setup.gpus or setup.ranks[-1], ladder(setup)
    starts = [(EMPTY, ranks), (CACHED, ranks)] if setup.gpus else [(_ranks(1), 1), (_ranks(ranks), ranks)]
    return [
        *(
            {"part": ITERATION, "rung": rung.name, "words": _words(rung, ranks, setup), "ranks": ranks}
            for rung in rungs
        ),
        *(
            {"part": START, "rung": name, "words": _start_words(rungs[-1], on, setup), "ranks": on}
            for name, on in starts
        ),
    ]


def _ranks(count: int) -> str:
    return f"{count} ranks" if count > 1 else "1 rank"


def _options(rung: Rung, ranks: int, setup: Setup) -> str:
    exchange = f"--exchange {rung.exchange}" if ranks > 1 else ""
    return " ".join(filter(None, [f"--device {setup.device}", rung.words, exchange, NETWORK]))


def _words(rung: Rung, ranks: int, setup: Setup) -> str:
    few = setup.is_small and not setup.gpus
    samples, epochs = (FEW_SAMPLES, FEW_EPOCHS) if few else (60000, rung.epochs)
    return f"{_options(rung, ranks, setup)} --samples {samples} --epochs {epochs}"


def _start_words(rung: Rung, ranks: int, setup: Setup) -> str:
    return f"{_options(rung, ranks, setup)} --samples 3000 --epochs 1"


def take(points: Sequence[Point], setup: Setup) -> Iterator[Taken]:
    """A job a point: what a user would see."""
    for point in points:
        report = _run(point, setup)
        failed = jobs.failed_rows(report)
        yield point, failed or (step_rows if point["part"] == ITERATION else start_rows)(report)


def _run(point: Point, setup: Setup) -> dict[str, Any]:
    words = point["words"].split()
    if point["rung"] != EMPTY:
        return jobs.train(point["ranks"], words, setup)
    with tempfile.TemporaryDirectory() as cache:
        return jobs.train(point["ranks"], words, setup, {VARIABLE: cache})


def step_rows(report: dict[str, Any]) -> list[Row]:
    """The phases of a step, and its wall time."""
    phases = {phase["name"]: phase for phase in report["phases"]}
    if _is_resident(report):
        del phases[IMAGES]
    steps = phases["batch iteration"]["calls"]
    rows = [
        _row(report, name, group, phase, steps)
        for name, phase in phases.items()
        if (group := group_of(name)) is not None
    ]
    wall = {"host": _wall(report["epochs"]), "device": None}
    return [*rows, _row(report, WALL, "", wall, steps // len(report["epochs"]))]


def start_rows(report: dict[str, Any]) -> list[Row]:
    """The phases before the first step."""
    return [
        _row(report, name, START_GROUPS[name], phase, 1)
        for phase in report["phases"]
        if (name := phase["name"]) in START_GROUPS and (name != IMAGES or _is_resident(report))
    ]


def _is_resident(report: dict[str, Any]) -> bool:
    """Whether all images are copied once, before the first step; else each step's are, in it."""
    return bool(report["environment"]["placement"] == "resident")


def _row(report: dict[str, Any], name: str, group: str, seconds: dict[str, Any], steps: int) -> Row:
    host, device = seconds["host"], seconds["device"]
    return {
        "exchange": report["environment"]["exchange"],
        "phase": name,
        "group": group,
        "host_us": 1e6 * host / steps,
        "device_us": 1e6 * device / steps if device is not None else None,
    }


def _wall(epochs: Sequence[dict[str, Any]]) -> float:
    """Seconds of an epoch: the median, without the first two."""
    return statistics.median(epoch["seconds"] for epoch in epochs[2:])


def group_of(phase: str) -> str | None:
    """The group of a phase of the steps; None for those of a start, of the test, and of the end."""
    return next((group for names, group in _GROUP_OF if re.fullmatch(names, phase)), None)


def missing(setup: Setup) -> list[str]:
    there = ladder(setup)
    left = ", ".join(rung.name for rung in LADDER if rung not in there)
    if not setup.gpus:
        return [f"the rungs of GPUs ({left}): there is no GPU; the CPU's step is profiled in their place"]
    return [f"the rungs {left}: on one GPU there is nothing to sum"] if left else []


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
    own = run[run.group.isin(_COLOURS) & (run.group != REST)]  # that is what is left of the wall time
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


ALIKE = 0.05
"""Relative difference of two steps below which neither is called faster."""

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


def _steps(rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    runs = {str(rung): run for rung, run in rows.groupby("rung", sort=False)}
    bars = {rung: parts(run) for rung, run in runs.items()}
    walls = {rung: float(run[run.phase == WALL].host_us.sum()) for rung, run in runs.items()}
    result.findings += [*_bought(bars, walls), _largest(bars)]
    _draw_steps(bars, walls, rows, setup, result)
    result.tables.append(_table(runs, walls))


def _bought(bars: dict[str, dict[str, float]], walls: dict[str, float]) -> list[str]:
    """What each rung bought, and all together."""
    found = [
        f"{after.capitalize()}: a step takes {_time(walls[after])}, {_times(walls[before], walls[after])} "
        f"with {before}{_most_changed(bars, walls, before, after)}."
        for before, after in itertools.pairwise(walls)
    ]
    if len(walls) > 2:
        first, *_, last = walls
        found.append(
            f"All together: from {_time(walls[first])} with {first} to {_time(walls[last])} with {last}, "
            f"{_times(walls[first], walls[last])} at first."
        )
    return found


def _time(us: float) -> str:
    return f"{us:.0f} us" if us < MILLISECONDS_FROM else f"{us / 1000:.1f} ms"


def _is_alike(before: float, after: float) -> bool:
    return abs(before - after) < ALIKE * before


def _times(before: float, after: float) -> str:
    if _is_alike(before, after):
        return "about as long as"
    if after < before:
        return f"{before / after:.1f} times as fast as"
    return f"{after / before:.1f} times as slow as"


def _most_changed(bars: dict[str, dict[str, float]], walls: dict[str, float], before: str, after: str) -> str:
    """The group in which most was gained, or lost."""
    if _is_alike(walls[before], walls[after]):
        return ""
    sign, what = (1, "gained") if walls[after] < walls[before] else (-1, "lost")
    then, now = (_with_copies_in_sums(bars[rung]) for rung in (before, after))
    most = max(then, key=lambda group: sign * (then[group] - now[group]))
    return f"; most is {what} in {most} ({_time(then[most])} before, {_time(now[most])} now)"


def _with_copies_in_sums(bar: dict[str, float]) -> dict[str, float]:
    """All groups; where copies overlap they cannot be told from the sums."""
    found = {group: bar.get(group, 0.0) for group in _COLOURS}
    found["sums over ranks and their copies"] = found.pop(SUMS) + found.pop(COPIES)
    return found


def _largest(bars: dict[str, dict[str, float]]) -> str:
    """Of which groups the last rung's step is."""
    rung, bar = list(bars.items())[-1]
    whole = sum(bar.values())
    largest = sorted(bar.items(), key=lambda part: -part[1])[:3]
    shares = ", ".join(f"{100 * us / whole:.0f}% {group}" for group, us in largest)
    return f"What is left, with {rung}, is mostly: {shares}."


def _draw_steps(
    bars: dict[str, dict[str, float]],
    walls: dict[str, float],
    rows: pd.DataFrame,
    setup: Setup,
    result: Section,
) -> None:
    """Bars as long as the step, and bars of shares beside them, in which the short ones can be read."""
    figure, (lengths, shares) = figures.canvas(1, 2, sharey=True)
    wholes = {rung: sum(bar.values()) for rung, bar in bars.items()}
    in_ms = max(wholes.values()) >= MILLISECONDS_FROM
    scale = 1e-3 if in_ms else 1.0
    _stack(lengths, _scaled(bars, dict.fromkeys(bars, scale)), _COLOURS)
    _mark_walls(lengths, walls, wholes, scale)
    lengths.set(xlabel=f"{'ms' if in_ms else 'us'} a step", xlim=(0, 1.25 * scale * max(wholes.values())))
    parted = _scaled(bars, {rung: 100 / whole for rung, whole in wholes.items()})
    _stack(shares, parted, _COLOURS)
    _write_shares(shares, parted)
    shares.set(xlabel="% of the parts", xlim=(0, 100))
    figure.legend(*lengths.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    caption = (
        f"A training step on {_ranks(rows.ranks.iloc[0])}, batch 3000 over all, rung by rung: times "
        f"(left; the black line is the wall time, the median over epochs) and shares (right). "
        f"{ON_DEVICE if rows.device_us.notna().any() else ON_HOST}"
    )
    result.figures.append(Figure(figures.save(figure, setup.folder, "step"), caption, wide=True))


def _scaled(bars: dict[str, dict[str, float]], by: dict[str, float]) -> dict[str, dict[str, float]]:
    return {rung: {group: us * by[rung] for group, us in bar.items()} for rung, bar in bars.items()}


def _mark_walls(axes: Any, walls: dict[str, float], wholes: dict[str, float], scale: float) -> None:
    for place, (rung, wall) in enumerate(walls.items()):
        name = "wall time of the step" if place == 0 else None
        at = [wall * scale] * 2
        axes.plot(at, [place - 0.42, place + 0.42], "-", color="black", linewidth=3, label=name)
        end = max(wall, wholes[rung]) * scale
        axes.annotate(_time(wall), (end, place), (6, 0), textcoords="offset points", va="center")


def _stack(axes: Any, bars: dict[str, dict[str, float]], colours: dict[str, str]) -> None:
    """A lying bar for each, the first on top; groups that no bar has are left out."""
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
    """The number into each part that has room for it."""
    for place, bar in enumerate(bars.values()):
        left = 0.0
        for group in _COLOURS:
            share = bar.get(group, 0.0)
            if share >= 8:
                colour = "white" if group in _DARK else "black"
                axes.text(left + share / 2, place, f"{share:.0f}", ha="center", va="center", color=colour)
            left += share


def _table(runs: dict[str, pd.DataFrame], walls: dict[str, float]) -> Table:
    import pandas as pd

    us = pd.Series(walls)
    words = [run.words.iloc[0].partition(NETWORK)[0].strip() for run in runs.values()]
    table = pd.DataFrame(
        {
            "rung": list(walls),
            f"options, beside {NETWORK}": words,
            "step, us": us.to_numpy(),
            "times as fast as the one before": (us.shift() / us).to_numpy(),
            "as the first": (us.iloc[0] / us).to_numpy(),
        }
    )
    return Table("The rungs: options of train.py, and the wall time of a step (median over epochs).", table)


def _starts(rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    bars = {
        str(start): {str(group): us / 1e6 for group, us in run.groupby("group").host_us.sum().items()}
        for start, run in rows.groupby("rung", sort=False)
    }
    result.findings += [_mostly(start, bar) for start, bar in bars.items()]
    if bars.keys() >= {EMPTY, CACHED}:
        compiled, cached = (bars[start]["kernels"] for start in (EMPTY, CACHED))
        result.findings.append(
            f"The first start compiles the kernels, {compiled:.1f} s; later ones find them in {cached:.2f} s."
        )
    figure, axes = figures.canvas()
    _stack(axes, bars, dict(zip(dict.fromkeys(START_GROUPS.values()), figures.COLOURS, strict=True)))
    axes.set(xlabel="s, from the start of mpirun to the first step")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    ranks = " and ".join(str(count) for count in sorted(set(rows.ranks)))
    caption = (
        f"What train.py does before its first step, on {ranks} rank(s): the host's own time in each phase, "
        "means over ranks. What is in no phase lies between these, and a little of it behind the training."
    )
    result.figures.append(Figure(figures.save(figure, setup.folder, "start"), caption))


def _mostly(start: str, bar: dict[str, float]) -> str:
    whole = sum(bar.values())
    largest = sorted(bar.items(), key=lambda part: -part[1])[:3]
    shares = ", ".join(f"{group} {seconds:.2f} s" for group, seconds in largest)
    return f"A start with {start} takes {whole:.2f} s until the first step, most of it: {shares}."
