"""One step as a timeline: who computes, copies and sends when, on all ranks and on one clock."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments import figures, jobs
from experiments.profile import group_of
from experiments.profile_figures import COLOURS, MILLISECONDS_FROM
from experiments.profile_groups import BACKWARD, COPIES, FORWARD, MERGED, NETWORK, OTHER, REST, SUMS, UPDATE
from experiments.study import Figure, Point, Row, Section, Setup, Table, Taken, amount

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

TITLE = "Timeline of a step"
QUESTION = (
    "What follows what in a training step, what overlaps, and what waits? Some steps of train.py are "
    "recorded (--timeline), kernel by kernel, and the one of median length is drawn: the course's network, "
    "784-512-10, batch 3000 over all ranks, float32."
)
COLUMNS = (
    *("exchange", "words", "ranks", "step", "rank", "track"),
    *("kind", "name", "phase", "bytes", "start_us", "stop_us"),
)

STEPS = 10, 14
"""The first and the last step recorded; no epoch ends between them."""

EXCHANGES = ("blocking", "host", "peer")
"""Exchanges from the plain one to the fast one; the last needs GPUs."""

ALONE = "local"
"""The exchange of one rank."""

COMPUTING = (FORWARD, BACKWARD, MERGED, OTHER, UPDATE)
"""Groups of phases in which a rank works on its own."""

Interval = tuple[float, float]


def points(setup: Setup) -> list[Point]:
    """List two ranks, which share a GPU where there is one, and before them that one by itself."""
    ways = EXCHANGES if setup.gpus else EXCHANGES[:-1]
    found = []
    for exchange in (ALONE, *ways) if setup.gpus == 1 else ways:
        ranks = 1 if exchange == ALONE else 2
        named = f"--exchange {exchange} " if ranks > 1 else ""
        words = f"--device {setup.device} --placement stream {named}{NETWORK}"
        words += f" --samples {3000 * (STEPS[1] + 2)} --epochs 1"
        found.append({"exchange": exchange, "words": words, "ranks": ranks})
    return found


def take(points: Sequence[Point], setup: Setup) -> Iterator[Taken]:
    """Run a job a point, as a user would."""
    for point in points:
        file = setup.folder / f"timeline-{point['exchange']}.json"
        recorded = ["--timeline", str(file), "--timeline-steps", f"{STEPS[0]}:{STEPS[1]}"]
        report = jobs.train(point["ranks"], [*point["words"].split(), *recorded], setup)
        yield point, jobs.failed_rows(report) or rows_of(json.loads(file.read_text()))


def rows_of(content: dict[str, Any]) -> list[Row]:
    """List the spans of the step of median length, in microseconds from its start."""
    from pyrt.timeline.chrome import spans_of

    found = spans_of(content)
    ends = {}
    for step in {span.step for _, span in found}:
        mine = [span for _, span in found if span.step == step]
        ends[step] = (min(span.start for span in mine), max(span.stop for span in mine))
    lengths = {step: stop - start for step, (start, stop) in ends.items()}
    middle = statistics.median_low(lengths.values())
    step = next(step for step, length in lengths.items() if length == middle)
    return [
        {
            **{"step": step, "rank": rank, "track": span.track, "kind": span.kind, "name": span.name},
            **{"phase": span.phase, "bytes": span.nbytes},
            **{"start_us": span.start - ends[step][0], "stop_us": span.stop - ends[step][0]},
        }
        for rank, span in found
        if span.step == step and span.kind != "step"
    ]


def missing(setup: Setup) -> list[str]:
    if setup.gpus > 1:
        return []
    if setup.gpus:
        return ["a GPU for each of two ranks: they share one, and their kernels may wait for each other"]
    return ["kernels beside copies and sums: there is no GPU, and NumPy computes on the host's track"]


def section(rows: pd.DataFrame, setup: Setup) -> Section:
    result = Section()
    shares = []
    for exchange, run in rows.groupby("exchange", sort=False):
        shares.append(shares_of(run))
        result.find(f"step-{exchange}", _finding(str(exchange), run, shares[-1]))
        result.figures.append(_figure(str(exchange), run, setup))
    if shares:
        result.tables.append(_table(list(rows.exchange.unique()), shares))
    return result


class Shares(NamedTuple):
    """Microseconds of a step on rank 0."""

    step: float
    computing: float
    sums: float
    """The time in which messages, or a kernel of an exchange, are under way."""
    hidden: float
    """The part of ``sums`` in which the rank computes too."""
    copies: float
    idle: float
    """The time in which the rank computes nothing."""


def shares_of(run: pd.DataFrame) -> Shares:
    """Add up what rank 0 does in a step; moments in which two things happen count once for each kind."""
    mine = run[run["rank"] == 0]
    step = float(run.stop_us.max() - run.start_us.min())
    kernels = mine[mine.kind == "kernel"]
    if not len(kernels):
        kernels = mine[(mine.kind == "phase") & mine.name.map(group_of).isin(COMPUTING)]
    computing = union(_intervals(kernels))
    sums = union(_intervals(mine[mine.kind.isin(("mpi", "exchange"))]))
    copies = union(_intervals(mine[mine.kind == "copy"]))
    busy = length(computing)
    return Shares(step, busy, length(sums), length(common(sums, computing)), length(copies), step - busy)


def _intervals(spans: pd.DataFrame) -> list[Interval]:
    return list(zip(spans.start_us, spans.stop_us, strict=True))


def union(intervals: Sequence[Interval]) -> list[Interval]:
    """Merge intervals that touch, in order."""
    merged: list[Interval] = []
    for start, stop in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        else:
            merged.append((start, stop))
    return merged


def common(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    """Return the intersection of two unions."""
    return union(
        [
            (max(start, other), min(stop, end))
            for start, stop in first
            for other, end in second
            if max(start, other) < min(stop, end)
        ]
    )


def length(intervals: Sequence[Interval]) -> float:
    """Add up the lengths of a union."""
    return float(sum(stop - start for start, stop in intervals))


def _finding(exchange: str, run: pd.DataFrame, shares: Shares) -> str:
    from experiments.page import cell

    ranks = run["rank"].max() + 1
    scale, unit = _unit(shares.step)
    launched = " when it is launched kernel by kernel" if (run.kind == "kernel").any() else ""
    step, computing, sums = (cell(us / scale) for us in (shares.step, shares.computing, shares.sums))
    text = (
        f"On {amount(ranks, 'rank')}{f' with --exchange {exchange}' if ranks > 1 else ''} the step takes "
        f"{step} {unit}{launched}; rank 0 computes for {computing} {unit} of it "
        f"({shares.computing / shares.step:.0%})"
    )
    if shares.sums:
        text += (
            f", and sums over ranks are under way for {sums} {unit}, of which "
            f"{shares.hidden / shares.sums:.0%} are hidden behind computation"
        )
    return f"{text}."


def _unit(us: float) -> tuple[float, str]:
    return (1000.0, "ms") if us > MILLISECONDS_FROM else (1.0, "us")


def _table(exchanges: Sequence[str], shares: Sequence[Shares]) -> Table:
    import pandas as pd

    names = {
        "step us": "step",
        "computes": "computing",
        "sums": "sums",
        "of these hidden": "hidden",
        "copies": "copies",
        "computes nothing": "idle",
    }
    rows = {name: [getattr(one, field) for one in shares] for name, field in names.items()}
    return Table(
        "Rank 0 in a recorded step, microseconds. What happens at the same time counts in each column.",
        pd.DataFrame({"exchange": list(exchanges), **rows}),
    )


def _figure(exchange: str, run: pd.DataFrame, setup: Setup) -> Figure:
    figure, axes = figures.canvas()
    scale, unit = _unit(run.stop_us.max())
    lanes = [
        (rank, track)
        for rank, mine in run.groupby("rank")
        for track in sorted(mine.track.unique(), key=lambda track: (track != "host", track != "MPI", track))
    ]
    figure.set_size_inches(2 * figures.SIZE[0], 0.8 + 0.55 * (len(lanes) + 1))
    groups: dict[str, Any] = {}
    for place, (rank, track) in enumerate(lanes):
        spans = _innermost(run[(run["rank"] == rank) & (run.track == track)])
        groups |= _draw(axes, len(lanes) - 1 - place, spans, scale)
    axes.set_yticks(range(len(lanes)), [f"rank {rank}, {track}" for rank, track in reversed(lanes)])
    axes.set_xlabel(unit)
    axes.set_xlim(0, run.stop_us.max() / scale)
    axes.grid(axis="y", visible=False)
    handles = [groups[name] for name in COLOURS if name in groups]
    figure.legend(handles, [name for name in COLOURS if name in groups], ncols=4, loc="outside upper center")
    ways = f", --exchange {exchange}" if run["rank"].max() else ""
    caption = (
        f"Step {run.step.iloc[0]} of {amount(run['rank'].max() + 1, 'rank')}{ways}, from --timeline: a line "
        "for the host of each rank (its innermost phases), its MPI calls from post to completion, and its "
        "streams. Ranks of one machine read the same clock."
    )
    return Figure(figures.save(figure, setup.folder, f"step-{exchange}"), caption, wide=True)


def _innermost(spans: pd.DataFrame) -> pd.DataFrame:
    """Leave out the phases that contain others."""
    groups = spans.name.map(group_of)
    return spans[(spans.kind != "phase") | (groups.notna() & (groups != REST))]


def _draw(axes: Axes, lane: int, spans: pd.DataFrame, scale: float) -> dict[str, Any]:
    """Draw the spans of a lane; return a handle for each group of them."""
    handles = {}
    for span in spans.itertuples():
        group = SUMS if span.kind in ("mpi", "exchange") else group_of(span.phase) or REST
        if span.kind == "copy" and group == REST:
            group = COPIES
        place = [(span.start_us / scale, (span.stop_us - span.start_us) / scale)]
        handles[group] = axes.broken_barh(
            place, (lane - 0.38, 0.76), color=COLOURS[group], edgecolor="white", linewidth=0.4
        )
    return handles
