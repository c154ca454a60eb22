"""A step on paper, counted and measured: effective rates, rooflines, and which model holds where."""

from __future__ import annotations

import math
import shutil
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments import counting, jobs, roofline_figures
from experiments.roofs import COUNTED, COUNTERS, RATES, STEP, STREAMED, TRANSFERS
from experiments.study import Point, Row, Section, Setup, Taken
from pyrt.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

    from nn.app.report import PhaseRow, Report
    from nn.autotune.rates import Rates
    from pyrt.job import Job

TITLE = "Roofline"
QUESTION = (
    "How many flops and bytes does a step take by its list of operations, and as counted; at which rates of "
    "products, copies and links does it run; and which model says best how long it takes? One hidden layer "
    "of H units (784-H-10), float32; ranks share the samples of a batch, which come in the set's order."
)
COLUMNS = (
    *("kind", "hidden", "batch", "ranks", "threads", "device", "placement", "exchange", "steps"),
    *("what", "unit", "listed", "counted"),
    *("peak_gflop_s", "memory_gb_s", "operation_us", "way", "link_us", "link_message_us", "link_gb_s"),
    *("us", "least_us", "most_us", "std_us", "predicted_us"),
    *("flops", "traffic", "uploaded", "staged", "sent", "product_flops", "product_us", "product_std_us"),
    "bytes",
)
"""``us`` of a step is the median of some windows, with the least and the most of them; of a transfer the mean
of some calls. ``std_us`` and ``product_std_us`` are standard deviations, of a transfer and of the products of
a step."""

WINDOW, WINDOWS = 2, 3
"""Epochs in which steps are timed together, and how many times; the median counts."""

LONG = 10
"""Steps in which transfers are timed."""


class Extent(NamedTuple):
    """What is varied: hidden sizes H and batches B, together or in pairs."""

    hidden: tuple[int, ...]
    batches: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]
    """Streamed steps."""
    transfers: tuple[tuple[int, int], ...]
    counted: tuple[int, int]
    samples: int
    """Of an epoch, about;"""
    least: int
    """and steps of it, at least."""

    def steps(self, batch: int) -> int:
        """Return steps an epoch: fewer where they are long."""
        return max(self.least, self.samples // batch)


SMALL = Extent((64, 256), (200, 1000), ((256, 1000),), ((16, 50), (64, 200), (256, 1000)), (64, 200), 1000, 3)
FULL = Extent(
    (128, 256, 512, 1024, 2048, 4096),
    (750, 3000, 12000, 48000),
    tuple((hidden, batch) for hidden in (128, 512, 2048) for batch in (750, 3000, 12000)),
    ((16, 100), (128, 750), (512, 3000), (1024, 12000), (2048, 24000), (4096, 48000)),
    (512, 3000),
    240_000,
    20,
)
CPU = Extent(
    (64, 256, 1024),
    (200, 1000, 4000),
    (),
    ((16, 50), (64, 200), (256, 1000), (1024, 4000)),
    (64, 200),
    4000,
    3,
)
"""All that a machine without a GPU does in a minute."""


def _extent(setup: Setup) -> Extent:
    if setup.is_small:
        return SMALL
    return FULL if setup.gpus else CPU


def points(setup: Setup) -> list[Point]:
    """List points of the most ranks first, all for one job, rates first; then points of one rank."""
    extent, most = _extent(setup), setup.ranks[-1]
    # A core for each rank, so that the rates of all at once are those of one alone, too.
    threads = {} if setup.gpus else {"threads": 1}

    def point(kind: str, ranks: int, hidden: int, batch: int, **others: Any) -> Point:
        ways = {"device": setup.device, "placement": "auto", "exchange": "auto", **others}
        return {"kind": kind, "hidden": hidden, "batch": batch, "ranks": ranks, **threads, **ways}

    by_host: dict[str, Any] = {"placement": "stream", "exchange": "host"}

    def steps(ranks: int) -> list[Point]:
        grid = [(hidden, batch) for hidden in extent.hidden for batch in extent.batches]
        return [point(STEP, ranks, *pair, steps=extent.steps(pair[1])) for pair in grid]

    found = [point(RATES, most, *extent.counted), *steps(most)]
    if setup.gpus:  # on the CPU all steps are such; each may take milliseconds
        found += [point(STREAMED, most, *pair, steps=extent.least, **by_host) for pair in extent.pairs]
    found += [point(TRANSFERS, most, *pair, **by_host) for pair in extent.transfers]
    found += [
        point(COUNTED, most, *extent.counted, device=device, placement="stream", exchange=exchange)
        for device, exchange in _counted(setup)
    ]
    if most > 1:
        found += steps(1)
    if setup.gpus and shutil.which("ncu"):
        found.append(point(COUNTERS, 1, *FULL.counted))
    return found


def _counted(setup: Setup) -> list[tuple[str, str]]:
    """Devices and exchanges of runs that are counted; NumPy's products are those of its own device."""
    found = [("cpu", "host")]
    if setup.ranks[-1] > 1:
        found.append(("cpu", "device"))
    if setup.gpus:
        found.append(("cuda", "host"))
    return found


def take(points: Sequence[Point], setup: Setup) -> Iterator[Taken]:
    return jobs.measured(__name__, points, setup)


def measure(point: Point, job: Job, folder: Path) -> list[Row]:
    """Measure; rank 0's count."""
    kind = point["kind"]
    if kind == RATES:
        return _rates(point, job, folder)
    if kind in (STEP, STREAMED):
        return _step(point, job, folder)
    if kind == TRANSFERS:
        return _transfers(point, job)
    if kind == COUNTED:
        return counting.measure_counts(point, job)
    return counting.measure_counters(point, job, _known_rates(job, folder).device)


def _rates_file(folder: Path) -> Path:
    return folder / "rates.json"


def _rates(point: Point, job: Job, folder: Path) -> list[Row]:
    """Measured anew: those that are kept for `--plan auto` may be of other code. Collective."""
    from contextlib import closing

    from nn.autotune.probe import ProbeContext, probe
    from nn.autotune.rates import EXCHANGE, Link
    from pyrt.devices import open_device
    from pyrt.exchange.choose import choose

    if job.rank == 0:
        _rates_file(folder).unlink(missing_ok=True)
    task = counting.listed_step(point, job.size).task
    with closing(open_device(point["device"], job, share_gpus=False).driver) as driver:
        rates = probe(ProbeContext(job, driver, choose("auto", driver, job), task))
    if job.rank == 0:
        rates.save("--out", _rates_file(folder))
    link = rates.node.get(EXCHANGE, Link(0.0, 0.0, 0.0))
    return [
        {
            "peak_gflop_s": _peak(rates),
            "memory_gb_s": rates.memory_gb_s,
            "operation_us": rates.operation_us,
            "way": rates.exchange,
            "link_us": link.us,
            "link_message_us": link.message_us,
            "link_gb_s": link.gb_s,
        }
    ]


def _peak(rates: Rates) -> float:
    """GFLOP/s of the fastest of the products that were measured."""
    import numpy as np

    assert rates.products is not None
    sizes = np.array(rates.products.sizes, float)
    flops = 2 * np.multiply.outer(np.multiply.outer(sizes, sizes), sizes)
    return max(float((flops / np.array(us)).max()) for us in rates.products.us.values()) * 1e-3


def _known_rates(job: Job, folder: Path) -> Rates:
    """Load the rates that the job's first point has left. Collective."""
    from nn.autotune.rates import load

    with job.agree():
        if not _rates_file(folder).exists():
            raise UserError("the machine's rates could not be measured")
        return load(_rates_file(folder))


def _step(point: Point, job: Job, folder: Path) -> list[Row]:
    """Measure a step: its time, its products' time, its work, and the cost model's forecast. Collective."""
    from bench.step import WARM_UP, Ours
    from nn.autotune.cost import Costing
    from train import train

    rates, steps = _known_rates(job, folder), point["steps"]
    # And one more: at the end all losses are waited for, and the last ones follow each other at once.
    report = train(counting.options_of(point, steps, WARM_UP + WINDOW * WINDOWS + 1), job)
    if job.rank > 0:
        return []
    ours = Ours()
    ours.add(report, steps, WINDOW)
    way = report.environment["exchange"]
    listed = counting.listed_step(point, job.size, rates.device, way)
    cost = Costing(listed, replace(rates, exchange=way)).cost
    plain = counting.transfers(counting.listed_step(point, job.size), job.size)
    by_host = way == "host"
    us = [1e6 * seconds for seconds in ours.wall[:WINDOWS]]
    return [
        {
            **{"us": statistics.median(us), "least_us": min(us), "most_us": max(us)},
            # Links were measured with one exchange alone, and nothing is known of copies.
            "predicted_us": 1e6 * cost.seconds if point["kind"] == STEP else None,
            "way": way,
            "flops": cost.flops,
            "traffic": cost.traffic,
            "uploaded": plain[counting.UPLOAD] if report.environment["placement"] == "stream" else 0,
            "staged": plain[counting.DOWN] + plain[counting.UP] if by_host else 0,
            "sent": cost.sent,
            **_products(report, listed),
        }
    ]


def _products(report: Report, listed: Any) -> Row:
    """Return flops, microseconds and their deviation, of the operations of a step that do products."""
    from nn.program.operations import Operation

    steps = report.phase("batch iteration").calls
    mine = [item for item in listed.items if isinstance(item, Operation) and item.work.products]
    phases = [report.phase(name) for name in dict.fromkeys(item.name for item in mine)]
    return {
        "product_flops": sum(item.flops for item in mine),
        "product_us": 1e6 * sum(map(_seconds, phases)) / steps,
        "product_std_us": math.hypot(*(_deviation_us(phase, phase.calls / steps) for phase in phases)),
    }


def _seconds(phase: PhaseRow) -> float:
    """Return all seconds of a phase: the device's, where it was timed there."""
    return phase.host if phase.device is None else phase.device


def _deviation_us(phase: PhaseRow, calls: float) -> float:
    """Return the standard deviation of so many calls together, in microseconds."""
    each = phase.on_host if phase.on_device is None else phase.on_device
    return 1e6 * each.std * math.sqrt(calls) if each is not None else 0.0


PHASES = {
    counting.UPLOAD: "copying images host -> device",
    counting.DOWN: "gradients device -> host",
    counting.UP: "gradients host -> device",
    counting.SUM: "MPI_Iallreduce",
}
"""In which transfers are timed."""


def _transfers(point: Point, job: Job) -> list[Row]:
    """Bytes of a call, and its time while nothing else happens. Collective.

    An epoch is one step, so that a batch's rows go up by themselves. Of MPI's sums the bytes are those that a
    rank of a ring sends, all of a step in one.
    """
    from train import train

    report = train(counting.options_of(point, 1, LONG, profile=True), job)
    if job.rank > 0:
        return []
    moved = counting.transfers(counting.listed_step(point, job.size), job.size)
    rows = []
    for what, name in PHASES.items():
        if what in moved:
            phase = report.phase(name)
            calls, nbytes = phase.calls, moved[what] * LONG
            if what == counting.SUM:
                calls, nbytes = LONG, nbytes * 2 * (job.size - 1) // job.size
            us, std_us = 1e6 * _seconds(phase) / calls, _deviation_us(phase, phase.calls / calls)
            rows.append({"what": what, "bytes": nbytes / calls, "us": us, "std_us": std_us})
    return rows


def missing(setup: Setup) -> list[str]:
    found = []
    if not setup.gpus:
        found.append("hardware counters, and the rooflines of a GPU: there is none; rates are the CPU's")
    elif not shutil.which("ncu"):
        found.append("hardware counters: Nsight Compute (ncu) is not installed")
    if setup.gpus == 1:
        found.append("links between GPUs, and what MPI reaches: there is one GPU")
    return found


def section(rows: pd.DataFrame, setup: Setup) -> Section:
    result = Section()
    roofline_figures.counts(rows, result)
    roofline_figures.measured_rates(rows, setup, result)
    roofline_figures.models(rows, setup, result)
    return result
