"""What ranks should split, samples or weights: bytes and time of each plan over width and batch."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bench import plans as bench
from bench.counting import sent_in_run
from bench.timing import Times
from experiments import jobs, plans_figures
from experiments.plans_points import COUNTED, DATA, FILES, FORK_AND_JOIN, HERE, MAP, MIXED, MODEL, TIMED
from experiments.study import Point, Row, Section, Setup, Taken
from pyrt.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

    from nn.app.options import Options
    from nn.autotune.cost import Cost
    from nn.autotune.rates import Rates
    from nn.parallel.plan import Plan
    from pyrt.job import Job

TITLE = "Plans: data, model and mixed"
QUESTION = (
    "When should ranks split the batch (data), the weights (model) or both (mixed: groups of ranks, or some "
    "layers each way)? Every plan of 784-H-H-10 in float32 is predicted by the cost model of nn/autotune "
    "over H and the batch; some are trained, and their steps timed; of some the bytes are counted that they "
    "give to MPI."
)
COLUMNS = (
    *("kind", "rates", "planned", "grid", "ranks", "device", "hidden", "batch"),
    *("card", "plan", "family", "groups", "shards", "predicted_us", "sent", "messages"),
    *("weights", "activations", "measured_us", "least_us", "most_us", "counted", "counted_messages"),
)
"""``planned``: for how many ranks the plans are. ``sent``: bytes of a rank and step; ``weights``, gradients
with them, and ``activations``: bytes that a rank holds."""


class Grid(NamedTuple):
    """Of a map."""

    hidden: tuple[int, ...]
    batches: tuple[int, ...]


GRIDS = {
    "small": Grid((256, 2048, 16384), (256, 2048, 16384)),
    "full": Grid((512, 1024, 2048, 4096, 8192), (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)),
    "cpu": Grid((32, 128, 512, 2048), (32, 128, 512, 2048)),
}

CELLS_TIMED = {
    "small": [(2048, 256), (2048, 2048), (256, 2048)],
    "full": [
        *((hidden, batch) for hidden in (1024, 4096) for batch in (512, 2048, 8192)),
        *((8192, batch) for batch in (512, 8192)),
    ],
    "cpu": [(128, 512), (512, 32), (512, 128), (512, 512)],
}
"""H and batch of each map's cells that are measured, too. The widest networks take seconds to start."""

SPAN, EPOCHS, WARM_UP = 20e-3, 5, 1
"""Seconds that an epoch should take, epochs, and those of them that do not count at first."""

LEAST, MOST = 16, 96
"""Steps of an epoch."""

COUNTING_RANKS, COUNTED_HIDDEN = 4, 256
BATCHES_COUNTED = {"small": (16, 128, 1024), "full": (16, 64, 256, 1024, 4096)}


def points(setup: Setup) -> list[Point]:
    """List maps first. Ranks share their cells, each on a core of its own: those that wait take one, too."""
    predicting = {"ranks": min(COUNTING_RANKS, max(2, setup.cores)), "device": "cpu"}
    found: list[Point] = [
        {"kind": MAP, "rates": name, "planned": gpus, "grid": setup.size, **predicting}
        for name, gpus in FILES.items()
    ]
    ranks = setup.ranks[-1]
    if ranks > 1:
        grid = setup.size if setup.gpus else "cpu"
        here = {"rates": HERE, "planned": ranks, "ranks": ranks, "device": setup.device}
        found.append({"kind": MAP, **here, "grid": grid})
        found += [
            {"kind": TIMED, **here, "hidden": hidden, "batch": batch} for hidden, batch in CELLS_TIMED[grid]
        ]
    counting = {"planned": COUNTING_RANKS, "ranks": COUNTING_RANKS, "device": "cpu", "hidden": COUNTED_HIDDEN}
    return found + [{"kind": COUNTED, **counting, "batch": batch} for batch in BATCHES_COUNTED[setup.size]]


def take(points: Sequence[Point], setup: Setup) -> Iterator[Taken]:
    return jobs.measured(__name__, points, setup)


def missing(setup: Setup) -> list[str]:
    if setup.gpus == 0:
        return ["steps on GPUs: no GPU is used here; small networks are timed on the CPU instead"]
    if setup.gpus == 1:
        return ["measured steps: one GPU has nothing to split; maps are predicted, bytes counted on the CPU"]
    if setup.gpus != 4:
        return [f"measured groups of ranks that split weights: 2 x 2 takes 4 GPUs, here are {setup.gpus}"]
    return []


def measure(point: Point, job: Job, folder: Path) -> list[Row]:
    """Return a row a plan; for a map, a row for each plan of each cell."""
    return {MAP: _map, TIMED: _timed, COUNTED: _counted}[point["kind"]](point, job)


def _case(hidden: int, batch: int) -> bench.Case:
    return bench.Case((hidden, hidden), batch)


def _rates_of(name: str) -> Rates:
    """Read the rates of a file of nn/autotune/machines."""
    from nn.autotune import rates

    return rates.load(Path(rates.__file__).parent / "machines" / f"{name}.json")


def family_of(plan: Plan) -> str:
    """Tell whether it cuts samples alone, all weights over all ranks, or both."""
    from nn.parallel.plan import SAMPLES

    if plan.is_data:
        return DATA
    return MODEL if plan.groups == 1 and SAMPLES not in plan.splits else MIXED


def described(plan: Plan) -> str:
    """Describe in few words: ``mixed, 2 x 2: rows, columns, columns``."""
    if plan.is_data:
        return DATA
    return f"{family_of(plan)}, {plan.groups} x {plan.shards}: {', '.join(plan.splits)}"


def _row(plan: Plan, cost: Cost) -> Row:
    memory = cost.memory
    return {
        "plan": described(plan),
        "family": family_of(plan),
        "groups": plan.groups,
        "shards": plan.shards,
        "predicted_us": cost.seconds * 1e6,
        "sent": cost.sent,
        "messages": cost.messages,
        "weights": memory.weights + memory.gradients,
        "activations": memory.activations,
    }


def _map(point: Point, job: Job) -> list[Row]:
    """Each rank predicts some of the cells."""
    name, grid = point["rates"], GRIDS[point["grid"]]
    rates = bench.rates_here(point["device"], job) if name == HERE else _rates_of(name)
    cells = [(hidden, batch) for hidden in grid.hidden for batch in grid.batches]
    mine = [row for cell in cells[job.rank :: job.size] for row in _cell(*cell, point["planned"], rates)]
    return [row for part in job.comm.allgather(mine) for row in part]


def _cell(hidden: int, batch: int, ranks: int, rates: Rates) -> Iterator[Row]:
    """Yield all plans that fit a rank's memory; none if none fits."""
    search = bench.search_of(_case(hidden, batch), ranks, rates)
    common = {"card": rates.device.name, "hidden": hidden, "batch": batch}
    try:
        best = search.best()
    except UserError:
        return
    for _, plan, cost in bench.candidates(search, best):
        yield {**common, **_row(plan, cost)}
    forked = search.fork_and_join()
    if forked is not None:
        names = {"plan": FORK_AND_JOIN, "family": FORK_AND_JOIN}
        yield {**common, **names, "predicted_us": forked.seconds * 1e6, "sent": forked.sent}


def steps_of(seconds: float) -> int:
    """Return how many steps of ``seconds`` seconds an epoch has: a multiple of `READ_EVERY`, the steps after
    which a run on a device looks at the clock."""
    from nn.train.training import READ_EVERY

    steps = min(max(SPAN / seconds, LEAST), MOST)
    return READ_EVERY * round(steps / READ_EVERY)


def _timed(point: Point, job: Job) -> list[Row]:
    device, case = point["device"], _case(point["hidden"], point["batch"])
    rates = bench.rates_here(device, job)
    search, rows = bench.search_of(case, job.size, rates), []
    with tempfile.TemporaryDirectory() as scratch:
        shared = job.comm.bcast(scratch)
        for _, plan, cost in bench.candidates(search, job.comm.bcast(search.best())):
            length = bench.Length(EPOCHS, WARM_UP, steps_of(cost.seconds))
            times = Times.of(bench.seconds(case, plan, shared, job, device, length))
            us = {"measured_us": times.median, "least_us": times.least, "most_us": times.most}
            rows.append({"card": rates.device.name, **_row(plan, cost), **us})
    return rows


def _plans_counted(ranks: int) -> list[Plan]:
    """List plans of three layers: one of each sort."""
    from nn.parallel.plan import COLUMNS, ROWS, SAMPLES, Plan

    return [
        Plan.data(ranks, 3),
        Plan.model(1, ranks, 3),
        Plan(1, ranks, (ROWS, ROWS, COLUMNS)),
        Plan.model(ranks // 2, 2, 3),
        Plan(1, ranks, (ROWS, SAMPLES, SAMPLES)),
    ]


def _counted(point: Point, job: Job) -> list[Row]:
    """Count one step of a run through host memory on the CPU, beside what the formulas say of it."""
    from pyrt.driver.null import DeviceProperties

    case, rows = _case(point["hidden"], point["batch"]), []
    # Bytes depend on the way of the exchange, not on how fast anything is.
    rates = replace(_rates_of("h200"), device=DeviceProperties(), exchange="host", gemm="auto")
    search = bench.search_of(case, job.size, rates)
    with tempfile.TemporaryDirectory() as scratch:
        shared = Path(job.comm.bcast(scratch))
        options = _counted_options(case, shared / "images.npz")
        if job.rank == 0:
            _save_images(case, shared / "images.npz")
        itemsize = np.dtype(options.dtype).itemsize
        for plan in _plans_counted(job.size):
            cost, counted = search.cost(plan), sent_in_run(options, plan, shared, job)
            assert cost is not None
            numbers = {"counted": counted["elements"] * itemsize, "counted_messages": counted["messages"]}
            rows.append({**_row(plan, cost), "predicted_us": None, **numbers})
    return rows


def _counted_options(case: bench.Case, data: Path) -> Options:
    """Return options of one step."""
    from nn.app.options import Options

    return Options(
        data=str(data),
        hidden=case.hidden,
        batch=case.batch,
        epochs=1,
        lr=bench.RATE,
        momentum=0.0,
        val_fraction=0.0,
        device="cpu",
        exchange="host",
    )


def _save_images(case: bench.Case, data: Path) -> None:
    """Save a batch of random images, and no test set: its scores would be counted."""
    images = np.random.default_rng(0).integers(0, 256, (case.batch, 1, bench.INPUTS), np.uint8)
    np.savez(data, x_train=images, y_train=np.arange(case.batch) % bench.CLASSES)


def section(rows: pd.DataFrame, setup: Setup) -> Section:
    return plans_figures.section(rows, setup)
