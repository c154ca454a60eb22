"""The ladder of exchanges: each way to sum gradients and update parameters, over sizes, beside NCCL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from bench import exchange as bench
from bench.timing import ROUNDS, Times
from experiments import figures, jobs
from experiments.noise import noisy
from experiments.study import FAILED, Figure, Point, Row, Section, Setup, Table, Taken

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from pyrt.driver import Driver
    from pyrt.job import Job

TITLE = "Exchanges"
QUESTION = (
    "How long does it take to sum gradients over all ranks, update the parameters and have them on every "
    "rank, and which way is the fastest when? Each way of docs/explain/exchange.md is checked and then timed "
    "alone, in one bucket, from latency to bandwidth; on GPUs beside NCCL, whose sum comes without an update."
)
COLUMNS = ("device", "ranks", "way", "bytes", "us", "least", "most", "gbps")

NCCL = "NCCL"
ON_CPU = ("root", "blocking", "host")
"""The ways without kernels."""

NETWORK = 1628200
"""Bytes: all gradients of 784-512-10."""

SMALL, LARGE = bench.SIZES[0], bench.SIZES[-1]
FEW = tuple(nbytes for nbytes in bench.SIZES if nbytes <= 16 << 20)
"""Sizes of the small report, and those of two ranks where there are more."""

LONGEST = 0.5
"""Seconds that the repetitions of a step may take, where they are more than a few."""

_open: dict[str, Driver] = {}
"""This process's devices, by name."""


def points(setup: Setup) -> list[Point]:
    """List all ways and sizes among all GPUs, fewer sizes among two of several; else among CPU ranks."""
    if setup.gpus > 1:
        return [
            {"device": "cuda", "ranks": ranks, "way": way, "bytes": nbytes}
            for ranks in sorted({2, setup.gpus})
            for way in (*bench.WAYS, NCCL)
            for nbytes in _sizes(setup, ranks == setup.gpus)
        ]
    ranks = replace(setup, gpus=0).ranks[-1]  # one GPU has nothing to exchange
    return [
        {"device": "cpu", "ranks": ranks, "way": way, "bytes": nbytes}
        for way in ON_CPU
        for nbytes in _sizes(setup, True)
    ]


def _sizes(setup: Setup, are_all: bool) -> Sequence[int]:
    return bench.SIZES if are_all and not setup.is_small else FEW


def take(points: Sequence[Point], setup: Setup) -> Iterator[Taken]:
    """Ours in jobs; NCCL by a program of its own, while no rank of ours has a GPU."""
    yield from jobs.measured(__name__, [point for point in points if point["way"] != NCCL], setup)
    by_nccl = [point for point in points if point["way"] == NCCL]
    for ranks, group in groupby(by_nccl, key=lambda point: point["ranks"]):
        asked = list(group)
        times, why = bench.nccl(ranks, [point["bytes"] for point in asked])
        for point in asked:
            found = times.get(point["bytes"])
            yield point, [_row(point, found) if found else {FAILED: f"NCCL: {why}"}]


def measure(point: Point, job: Job, folder: Path) -> list[Row]:
    """Return the times of the slowest rank."""
    from bench.overlap import slowest
    from pyrt.exchange import Bucket

    driver = _driver(point["device"], job)
    if point["way"] == "device":
        _require_proof(job, driver)
    buckets = [Bucket(0, point["bytes"] // 4)]
    return [_row(point, slowest(job, bench.measure(point["way"], driver, job, buckets, LONGEST)))]


def _row(point: Point, times: Times) -> Row:
    rate = point["bytes"] / times.median * 1e-3
    return {"us": times.median, "least": times.least, "most": times.most, "gbps": rate}


def _driver(device: str, job: Job) -> Driver:
    """Open for all points of the job: it closes itself when the process ends. Collective."""
    from pyrt.devices import open_device

    if device not in _open:
        _open[device] = open_device(device, job, share_gpus=True).driver
    return _open[device]


def _require_proof(job: Job, driver: Driver) -> None:
    """AgreedError unless a probe has found that MPI takes device buffers: others may hang. Collective."""
    from pyrt.exchange.device import verdict
    from pyrt.job import AgreedError
    from pyrt.mpi_probe.libraries import PROBE

    decided = verdict(job, driver)
    if not decided.is_proven:
        why = decided.refusal or f"no probe has found that this MPI takes device buffers: {PROBE} finds out"
        raise AgreedError(f"the exchange device: {why}")


def missing(setup: Setup) -> list[str]:
    if setup.gpus > 1:
        return []
    there = "there is one GPU" if setup.gpus else "there is no GPU"
    return [f"the exchanges between GPUs, and NCCL: {there}; sums are of ranks on the CPU"]


def section(rows: pd.DataFrame, setup: Setup) -> Section:
    result = Section()
    for ranks in sorted(set(rows.ranks), reverse=True):
        mine = rows[rows.ranks == ranks]
        where = f"{ranks} GPUs" if mine.device.iloc[0] == "cuda" else f"{ranks} ranks on the CPU"
        ways = [way for way in (*bench.WAYS, NCCL) if way in set(mine.way)]
        times, least, most, rates = (
            mine.pivot(index="bytes", columns="way", values=name)[ways]
            for name in ("us", "least", "most", "gbps")
        )
        ends = least, most
        if ranks == rows.ranks.max():
            _against_nccl(times, where, result)
            _through_mpi(times, where, result)
            _ours(times, where, result)
            result.find("times", *noisy(mine.least, mine.us, mine.most))
            _draw_times(times, ends, where, "times", setup, result)
            _draw_rates(rates, [rates * times / end for end in (most, least)], where, setup, result)
            table = times.rename(index=size_name).rename_axis("size").reset_index()
            caption = f"Microseconds of sum, update and spread, {where}{_of_nccl(times)}."
            result.tables.append(Table(caption, table))
        else:
            _more_ranks(rows, ranks, result)
            _draw_times(times, ends, where, "times-of-two", setup, result)
    return result


def size_name(nbytes: int) -> str:
    """Name a size as people say it: powers of two in kB and MB, others in millions of bytes."""
    if nbytes % 1024:
        return f"{nbytes / 1e6:.2f} MB"
    return f"{nbytes >> 20} MB" if nbytes >> 20 else f"{nbytes >> 10} kB"


def _against_nccl(times: pd.DataFrame, where: str, result: Section) -> None:
    both = times.reindex(columns=["peer", NCCL]).dropna()
    meanings = {NETWORK: "all gradients of 784-512-10", SMALL: "latency", LARGE: "bandwidth"}
    for nbytes, what in meanings.items():
        if nbytes in both.index:
            peer, nccl = both.loc[nbytes]
            rate = f" ({nbytes / peer * 1e-3:.3g} GB/s)" if nbytes == LARGE else ""
            result.find(
                "times",
                f"{size_name(nbytes)} ({what}), {where}: peer sums, updates and spreads in {peer:.4g} us"
                f"{rate}; NCCL's sum alone takes {nccl:.4g} us, {nccl / peer:.2f} times as long.",
            )


def _through_mpi(times: pd.DataFrame, where: str, result: Section) -> None:
    """Which of the ways through MPI is the fastest at which sizes."""
    through_mpi = times[[way for way in (*ON_CPU, "device") if way in times]].dropna(how="all")
    if through_mpi.shape[1] < 2:
        return
    fastest = through_mpi.idxmin(axis=1)
    segments = [
        (way, [size_name(nbytes) for nbytes, _ in group])
        for way, group in groupby(fastest.items(), key=lambda pair: pair[1])
    ]
    said = "; ".join(f"{way} {_segment(names)}" for way, names in segments)
    result.find("times", f"The fastest way through MPI, {where}: {said}.")


def _segment(names: Sequence[str]) -> str:
    return f"at {names[0]}" if len(names) == 1 else f"from {names[0]} to {names[-1]}"


def _ours(times: pd.DataFrame, where: str, result: Section) -> None:
    """Report the fastest and the slowest of all ways."""
    ours = times.drop(columns=NCCL, errors="ignore").dropna(how="all")
    for nbytes, what in ((NETWORK, ", all gradients of 784-512-10"), (LARGE, "")):
        if nbytes in ours.index and ours.shape[1] > 1:
            here = ours.loc[nbytes]
            best, worst = here.idxmin(), here.idxmax()
            result.find(
                "times",
                f"{size_name(nbytes)}{what}, {where}: {best} is the fastest way, {here[best]:.4g} us "
                f"({nbytes / here[best] * 1e-3:.3g} GB/s); {worst} takes {here[worst] / here[best]:.3g} "
                "times as long.",
            )


def _more_ranks(rows: pd.DataFrame, few: int, result: Section) -> None:
    """Report what more ranks cost at the network's size."""
    most = rows.ranks.max()
    here = rows[(rows.bytes == NETWORK) & rows.way.isin(["host", "peer", NCCL])]
    both = here.pivot(index="way", columns="ranks", values="us").reindex(columns=[few, most]).dropna()
    parts = [f"{way} {both.loc[way, few]:.4g} and {both.loc[way, most]:.4g} us" for way in both.index]
    if parts:
        result.find("times", f"{size_name(NETWORK)} among {few} and among {most} GPUs: {'; '.join(parts)}.")


Ends = Sequence["pd.DataFrame"]
"""The least and the largest of the repeats of each value."""


def _draw_times(
    times: pd.DataFrame, ends: Ends, where: str, name: str, setup: Setup, result: Section
) -> None:
    figure, axes = figures.canvas()
    _curves(axes, times, ends)
    axes.set(ylabel="time of a step, us")
    figures.plain_log(axes, "y")
    figure.legend(loc="outside upper center", ncols=4)
    caption = (
        f"Time to sum gradients, update parameters and spread them, {where}, over the bytes of gradients"
        f"{_of_nccl(times)}. Medians of {ROUNDS} repetitions, of {bench.LEAST_ROUNDS} or more where those "
        f"would take longer than {LONGEST:g} s; bars reach from the least to the largest. The dotted line "
        f"is at {size_name(NETWORK)}, all gradients of 784-512-10."
    )
    result.figures.append(Figure(figures.save(figure, setup.folder, name), caption))


def _draw_rates(rates: pd.DataFrame, ends: Ends, where: str, setup: Setup, result: Section) -> None:
    figure, axes = figures.canvas()
    _curves(axes, rates, ends)
    axes.set(ylabel="bytes over time, GB/s")
    figures.plain_log(axes, "y")
    figure.legend(loc="outside upper center", ncols=4)
    caption = (
        f"The rate of an exchange, {where}: bytes of gradients over the time of a step{_of_nccl(rates)}. It "
        "grows as long as a step is latency, and is level where it is bandwidth; the dotted line is at "
        f"{size_name(NETWORK)}, all gradients of 784-512-10."
    )
    result.figures.append(Figure(figures.save(figure, setup.folder, "rates"), caption))


def _of_nccl(table: pd.DataFrame) -> str:
    return " (NCCL: the sum alone)" if NCCL in table else ""


def _curves(axes: Axes, values: pd.DataFrame, ends: Ends) -> None:
    """Draw a curve for each way over the bytes, its look the same in all figures; bars from end to end."""
    order = (*bench.WAYS, NCCL)
    for way in values:
        curve = values[way].dropna()
        axes.plot(curve.index, curve, label=way, **figures.style(order.index(way)))
        least, most = (table[way].dropna() for table in ends)
        figures.error_bars(axes, curve.index, least, curve, most, order.index(way))
    axes.axvline(NETWORK, color="#777777", linestyle=":")
    axes.set(xlabel="gradients", xscale="log")
    ticks = [nbytes for nbytes in values.index if nbytes != NETWORK]
    figures.plain_ticks(axes, "x", ticks, [size_name(nbytes) for nbytes in ticks])
