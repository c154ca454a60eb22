"""Asynchronous training: what workers gain that do not wait for each other, and what staleness costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments import asynchronous_figures, jobs
from experiments.asynchronous_points import (
    ADAM,
    BATCH,
    DENSE,
    HOGWILD,
    MOMENTUM,
    SCALED,
    WORKERS,
    numbers_of_workers,
    points_of,
)
from experiments.study import Point, Row, Section, Setup, Taken

if TYPE_CHECKING:
    import pandas as pd

    from nn.app.options import Options
    from nn.app.report import Report
    from nn.train.workers import AsynchronousReport
    from pyrt.job import Job

TITLE = "Asynchronous training"
QUESTION = (
    "What do workers gain that do not wait for each other, with all as fast and with one that is slow, and "
    "what do stale gradients cost? Synchronous training (exchange host) beside parameter servers whose "
    f"workers are at most K steps apart, and hogwild. A worker's step has {BATCH} samples of the embedded "
    "digits, whatever the number of workers; seed 0. Seconds are those of epochs, each with its validation, "
    "at whose ends all workers meet. Asynchronous runs differ from run to run."
)
COLUMNS = (
    *("kind", "net", "optimiser", "lr", "way", "workers", "slow", "run", "epochs", "samples"),
    *("servers", "ranks", "threads", "device"),
    *("epoch", "updates", "seconds", "loss", "accuracy", "test_accuracy"),
    *("staleness", "ahead", "lost", "least_seen", "most_seen"),
)
"""A row an epoch. ``slow``: how many times as long the steps of one worker take. ``updates`` and ``seconds``
are counted from the start. ``accuracy`` is that of validation. The last row of a run also has its counts:
``staleness``, updates that were stale by 0, 1, .. versions, of all shards; ``ahead``, the most steps that a
worker was ahead of the slowest; the share of updates that was ``lost``; how often a sample was seen."""


def points(setup: Setup) -> list[Point]:
    return points_of(setup)


def take(points: Sequence[Point], setup: Setup) -> Iterator[Taken]:
    return jobs.measured(__name__, points, setup)


def measure(point: Point, job: Job, folder: Path) -> list[Row]:
    """Return a row an epoch; if the training diverges, one row of infinite loss."""
    from nn.train.diverged import Diverged
    from train import train

    try:
        return rows_of(point, train(options_of(point), job))
    except Diverged:
        return [{"epoch": 1, "updates": 0, "seconds": 0.0, "loss": math.inf, "accuracy": 0.0}]


def options_of(point: Point) -> Options:
    """Return the options of a run of `train.py`."""
    from nn.app.options import Options

    workers, way = point["workers"], point["way"]
    what: dict[str, Any] = {"hidden": (128,)} if point["net"] == DENSE else {"net": point["net"]}
    if point["optimiser"] == ADAM:
        what["optimiser"] = "adam"
    else:
        what["momentum"] = 0.9 if point["optimiser"] == MOMENTUM else 0.0
    if way == HOGWILD:
        what["exchange"] = HOGWILD
    elif point["servers"]:
        what |= {"exchange": "server", "servers": point["servers"], "staleness": way.split()[-1]}
    else:
        what["exchange"] = "host" if workers > 1 else "local"
    if point["slow"] > 1:
        what["slow_rank"] = f"{point['ranks'] - 1}:{point['slow']}"
    return Options(
        lr=point["lr"] * (workers if way == SCALED else 1),
        batch=BATCH * workers,
        epochs=point["epochs"],
        samples=point["samples"],
        device=point["device"],
        **what,
    )


def rows_of(point: Point, report: Report) -> list[Row]:
    """Return a row for each epoch of a run."""
    updates = updates_an_epoch(point)
    rows: list[Row] = []
    seconds = 0.0
    for epoch in report.epochs:
        seconds += epoch.seconds
        row = {"epoch": epoch.epoch, "updates": updates * epoch.epoch, "seconds": seconds}
        rows.append({**row, "loss": epoch.loss, "accuracy": epoch.validation_precision})
    rows[-1]["test_accuracy"] = report.test.precision if report.test is not None else None
    if report.asynchronous is not None:
        rows[-1] |= _counted(report.asynchronous)
    return rows


def updates_an_epoch(point: Point) -> int:
    """Return the number of updates in an epoch: one for each worker and batch, or one a batch."""
    batches = math.ceil(point["samples"] / (BATCH * point["workers"]))
    is_synchronous = point["way"] == "server, K = 0" or not (point["servers"] or point["way"] == HOGWILD)
    return batches if is_synchronous else batches * int(point["workers"])


def _counted(told: AsynchronousReport) -> Row:
    shards = [sum(counts) for counts in zip(*told.staleness, strict=True)]
    has_servers = told.furthest is not None
    return {
        "staleness": " ".join(map(str, shards)),
        "ahead": told.furthest,
        "lost": None if has_servers else told.lost,
        "least_seen": told.least,
        "most_seen": told.most,
    }


def missing(setup: Setup) -> list[str]:
    """Say which numbers of workers are left out, and what the others share."""
    said = []
    there = numbers_of_workers(setup)
    if left := [str(workers) for workers in WORKERS if workers not in there]:
        said.append(f"{' and '.join(left)} workers: the CPU has {setup.cores} core(s), and two share one")
    if setup.is_small:
        said.append("all ways, numbers of workers and learning rates: the small size takes a few of them")
    if setup.gpus:
        cards = "one GPU" if setup.gpus == 1 else f"{setup.gpus} GPUs"
        said.append(f"a GPU for each rank: up to 10 ranks, servers among them, share {cards}")
    elif max(there) > setup.cores:
        said.append(
            f"a core for each of {max(there)} workers: they share {setup.cores}, and servers with them; a "
            "slow worker sleeps, and leaves its core to others"
        )
    return said


def section(rows: pd.DataFrame, setup: Setup) -> Section:
    return asynchronous_figures.section(rows, setup)
