"""Where the time goes: the phases of a step, up the ladder of what made it faster, and those of a start."""

from __future__ import annotations

import re
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments import jobs, profile_figures
from experiments.profile_groups import (
    BACKWARD,
    CACHED,
    COPIES,
    EMPTY,
    FORWARD,
    IMAGES,
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
from experiments.study import Point, Row, Section, Setup, Taken, amount
from pyrt.cache import VARIABLE

if TYPE_CHECKING:
    import pandas as pd

TITLE = "Profile of a step and of a start"
QUESTION = (
    "Where does the time of a training step go, and what did each rung buy: faster products, sums that "
    "overlap, fewer launches, sums between GPUs? Each rung is a run of train.py from the shell (the "
    "course's network, 784-512-10, batch 3000 over all ranks, float32), whose table of phases is drawn here."
)
COLUMNS = (
    *("part", "rung", "words", "ranks", "exchange", "phase", "group"),
    *("host_us", "device_us", "low_us", "high_us"),
)
"""The last two are of a step's wall time alone: those of the middle eight tenths of all epochs."""


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

_GROUP_OF = (
    (r"(scale pixels|forward GEMM \d+) to .*", MERGED),
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
"""Names of phases (nn/program/passes.py, nn/program/fuse.py, pyrt/exchange) and their groups. Phases of
the rest contain others, whose device times they include."""


def ladder(setup: Setup) -> list[Rung]:
    """List the rungs here; with one GPU, leave out rungs that only change the exchange."""
    if not setup.gpus:
        return list(ON_CPU)
    if setup.gpus > 1:
        return list(LADDER)
    return list({rung.words: rung for rung in reversed(LADDER)}.values())[::-1]


def points(setup: Setup) -> list[Point]:
    """List the rungs first: they leave their kernels in the cache for the starts."""
    ranks, rungs = setup.gpus or setup.ranks[-1], ladder(setup)
    starts = (
        [(EMPTY, ranks), (CACHED, ranks)]
        if setup.gpus
        else [(amount(1, "rank"), 1), (amount(ranks, "rank"), ranks)]
    )
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
    """Run a job a point, as a user would."""
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
    """List the phases of a step, and its wall time."""
    phases = {phase["name"]: phase for phase in report["phases"]}
    if _is_resident(report):
        del phases[IMAGES]
    steps = phases["batch iteration"]["calls"]
    rows = [
        _row(report, name, group, phase, steps)
        for name, phase in phases.items()
        if (group := group_of(name)) is not None
    ]
    return [*rows, _wall_row(report, steps // len(report["epochs"]))]


def _wall_row(report: dict[str, Any], steps: int) -> Row:
    """Return the row of a step's wall time: over all epochs but the first two, of so many steps each."""
    seconds = [epoch["seconds"] for epoch in report["epochs"][2:]]
    low, *_, high = statistics.quantiles(seconds, n=10, method="inclusive")
    wall = {"host": statistics.median(seconds), "device": None}
    return {
        **_row(report, WALL, "", wall, steps),
        **{"low_us": 1e6 * low / steps, "high_us": 1e6 * high / steps},
    }


def start_rows(report: dict[str, Any]) -> list[Row]:
    """List the phases before the first step."""
    return [
        _row(report, name, START_GROUPS[name], phase, 1)
        for phase in report["phases"]
        if (name := phase["name"]) in START_GROUPS and (name != IMAGES or _is_resident(report))
    ]


def _is_resident(report: dict[str, Any]) -> bool:
    """Return whether all images are copied once, before the first step; else each step copies its own."""
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


def group_of(phase: str) -> str | None:
    """Return the group of a phase of the steps; None for phases of a start, of the test, and of the end."""
    return next((group for names, group in _GROUP_OF if re.fullmatch(names, phase)), None)


def missing(setup: Setup) -> list[str]:
    there = ladder(setup)
    left = ", ".join(rung.name for rung in LADDER if rung not in there)
    if not setup.gpus:
        return [f"the rungs of GPUs ({left}): there is no GPU; the CPU's step is profiled in their place"]
    return [f"the rungs {left}: on one GPU there is nothing to sum"] if left else []


def section(rows: pd.DataFrame, setup: Setup) -> Section:
    return profile_figures.section(rows, setup)
