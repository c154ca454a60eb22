"""What a run tells afterwards: results, and where the time went, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nn.app.options import Options
from nn.files.write import write_whole
from nn.problem.problem import Problem
from nn.problem.progress import Epoch
from nn.train.check import Check
from nn.train.environment import describe
from nn.train.evaluation import Scores
from nn.train.latency import Latency
from nn.train.memory_needs import Needs, largest
from nn.train.prepare import Prepared
from nn.train.workers import AsynchronousReport
from pyrt.durations import Statistics, statistics
from pyrt.exchange.registry import exchanges
from pyrt.job import Job
from pyrt.phases import PhaseTimes
from pyrt.runtime import Runtime
from pyrt.tables import table

VERSION = 1
"""Of the JSON file: another one where a field goes or means something else, not where one is added."""


@dataclass(frozen=True)
class RankCalls:
    """Statistics of a phase's calls on one rank, on the host and on the device; None where none was timed."""

    rank: int
    on_host: Statistics | None
    on_device: Statistics | None


@dataclass(frozen=True)
class PhaseRow:
    """A phase over all ranks; times in seconds. A rank that never entered the phase counts as 0 s.

    ``calls`` is the largest number of calls on one rank. ``host`` is self-time, the mean over all ranks, so
    the rows add up to ``wall``, of which ``share`` is this row's part; ``least`` and ``most`` are the
    smallest and the largest self-time of a rank. ``device`` is the mean over all ranks, None for phases that
    are not timed there. ``mean`` is the time from enter to leave of one call, the phases within it included,
    the mean over the calls of all ranks; None where the host spent no time in the phase, as in steps replayed
    from graphs. The statistics are of the calls of all ranks that were timed, from enter to leave and on the
    device.
    """

    name: str
    calls: int
    host: float
    device: float | None
    mean: float | None
    share: float
    least: float
    most: float
    on_host: Statistics | None = None
    on_device: Statistics | None = None
    ranks: list[RankCalls] = field(default_factory=list)
    """The same for each rank that entered the phase."""


@dataclass(frozen=True)
class Report:
    """All of a run, the same on every rank but for ``phases``, which rank 0 has."""

    options: dict[str, Any]
    environment: dict[str, Any]
    epochs: list[Epoch] = field(default_factory=list)
    losses: list[tuple[int, float]] = field(default_factory=list)
    """Step, counted from 1, and loss, of the steps that ``--print-every`` printed."""
    test: Scores | None = None
    latency: list[Latency] = field(default_factory=list)
    """For each number of images at a time that ``--latency`` has timed."""
    check: Check | None = None
    asynchronous: AsynchronousReport | None = None
    """Figures of workers that did not wait for each other, where such have trained."""
    preempted: bool = False
    """Whether the run was asked to stop, and left a checkpoint to go on from."""
    phases: list[PhaseRow] = field(default_factory=list)
    memory: Needs | None = None
    """Of the rank that needs most, counted before the run."""

    @property
    def passed(self) -> bool:
        """Whether the check, if there was one, passed."""
        return self.check is None or self.check.passed

    @property
    def wall(self) -> float:
        """Seconds from the start of the processes until the phases were read."""
        return sum(row.host for row in self.phases)

    def phase(self, name: str) -> PhaseRow:
        """Return the row of that name. Raises KeyError if the run had no such phase."""
        for row in self.phases:
            if row.name == name:
                return row
        raise KeyError(name)

    def write_json(self, path: Path) -> None:
        """Write the report as one JSON object, whole or not at all."""
        content = {"version": VERSION, **asdict(self), "wall": self.wall, "passed": self.passed}
        text = json.dumps(content, indent=1, allow_nan=False)
        write_whole("--json", path, lambda file: file.write(f"{text}\n".encode()))


def report_of(options: Options, prepared: Prepared, runtime: Runtime) -> Report:
    """Make the report of a run that has not begun: its options, what it uses, its memory. Collective."""
    needs, environment = largest(prepared.rehearsal.needs, runtime.job), describe(prepared, runtime)
    environment["header"] = header(environment, prepared.problem, has_layers=options.net is not None)
    return Report(options.as_json(), environment, memory=needs)


def gather_phases(job: Job, times: Sequence[PhaseTimes]) -> list[PhaseRow]:
    """Rows for all phases in the order of their first use, rank 0's first; empty on others. Collective."""
    ranks = job.comm.gather({phase.name: phase for phase in times})
    if ranks is None:
        return []
    wall = sum(phase.host for rank in ranks for phase in rank.values()) / len(ranks)
    names = dict.fromkeys(name for rank in ranks for name in rank)
    return [
        _row({rank: phases[name] for rank, phases in enumerate(ranks) if name in phases}, len(ranks), wall)
        for name in names
    ]


def _row(entered: Mapping[int, PhaseTimes], ranks: int, wall: float) -> PhaseRow:
    """Make a phase's row from the times of the ranks that entered it; ``ranks`` counts all."""
    times = list(entered.values())
    absent = [0.0] * (ranks - len(times))
    hosts = [*absent, *(phase.host for phase in times)]
    host = sum(hosts) / ranks
    # A call that was not timed on the device is taken to be as long as the others.
    timed = [phase.device / phase.device_calls * phase.calls for phase in times if phase.device_calls]
    devices = [*absent, *timed] if timed else []
    elapsed = sum(phase.elapsed for phase in times)
    return PhaseRow(
        times[0].name,
        max(phase.calls for phase in times),
        host,
        sum(devices) / len(devices) if devices else None,
        elapsed / sum(phase.calls for phase in times) if elapsed else None,
        host / wall,
        min(hosts),
        max(hosts),
        statistics([phase.on_host for phase in times]),
        statistics([phase.on_device for phase in times]),
        [
            RankCalls(rank, statistics([phase.on_host]), statistics([phase.on_device]))
            for rank, phase in entered.items()
        ],
    )


def phase_table(rows: Sequence[PhaseRow], width: int | None = None) -> str:
    """Lay out the per-phase table, in lines of at most ``width`` characters (None: with all columns)."""
    headers = ["phase", "calls", "host self ms", "device ms", "mean us", "share %", "min ms", "max ms"]
    dispensable = ["min ms", "max ms", "mean us", "share %", "calls", "device ms"]
    body = [
        [
            row.name,
            row.calls,
            row.host * 1e3,
            row.device * 1e3 if row.device is not None else None,
            row.mean * 1e6 if row.mean is not None else None,
            row.share * 100,
            row.least * 1e3,
            row.most * 1e3,
        ]
        for row in rows
    ]
    total = sum(row.host for row in rows) * 1e3
    body.append(["total (wall)", None, total, None, None, 100.0, None, None])
    formats = ("", "d", ".2f", ".2f", ".1f", ".1f", ".2f", ".2f")
    return table(headers, body, formats, dispensable, width)


def stats_table(rows: Sequence[PhaseRow], rank: int | None = None, width: int | None = None) -> str:
    """Lay out the statistics of the calls of each phase: of all ranks together, or of one.

    A phase that was timed on the host and on the device has a line for each.
    """
    headers = ["phase", "on", "calls", "total ms", "mean us", "median us", "std us", "min us", "max us"]
    body = [
        [name, clock, found.count, found.total * 1e3, *(value * 1e6 for value in _spread(found))]
        for name, clock, found in _timed_calls(rows, rank)
    ]
    formats = ("", "", "d", ".2f", *5 * (".1f",))
    return table(headers, body, formats, ["std us", "min us", "max us", "total ms", "mean us"], width)


def _timed_calls(rows: Sequence[PhaseRow], rank: int | None) -> Iterator[tuple[str, str, Statistics]]:
    """Yield the phase, the clock and the statistics of each line."""
    for row in rows:
        calls: Sequence[PhaseRow | RankCalls] = [row]
        if rank is not None:
            calls = [one for one in row.ranks if one.rank == rank]
        for one in calls:
            if one.on_host is not None:
                yield row.name, "host", one.on_host
            if one.on_device is not None:
                yield row.name, "device", one.on_device


def _spread(found: Statistics) -> tuple[float, ...]:
    return found.mean, found.median, found.std, found.min, found.max


def header(environment: dict[str, Any], problem: Problem, has_layers: bool = False) -> list[str]:
    """List what a run uses, a line each, for people to read before it starts; perhaps with all layers."""
    settings, dataset, schedule = problem.settings, problem.dataset, problem.schedule
    test = len(dataset.test_images) if dataset.test_images is not None else 0
    samples = f"{schedule.samples} training"
    if schedule.samples != schedule.available:
        samples += f" (of {schedule.available} in the set)"
    samples += f", {len(dataset.images) - schedule.available} validation, {test} test"
    lines = [
        ("ranks", _ranks(environment)),
        ("device", _devices(environment)),
        ("plan", environment["plan"]),
        ("exchange", _exchange(environment, problem)),
        ("data", f"{dataset.name}: {samples} samples of {' x '.join(map(str, dataset.image_shape))} pixels"),
        ("network", f"{environment['network']}: {environment['parameters']} parameters, {settings.dtype}"),
    ]
    if problem.light is not None:
        lines.append(("weights", problem.light.text))
    if has_layers:
        lines += [("", line) for line in layer_table(environment["layers"]).splitlines()]
    if problem.trains:
        plan = f"{schedule.epochs} epochs of {schedule.batches} batches of {schedule.batch}"
        if schedule.batch < settings.batch:
            plan += f" (--batch {settings.batch} is more than the training set: one batch an epoch)"
        plan += f", {problem.optimiser}"
        if not schedule.epochs:
            plan = "none: --epochs 0 leaves the initial parameters as they are"
        lines.append(("training", plan))
        lines.append(("batches", _batches(environment)))
    return [f"{word:9s} {text}" for word, text in lines]


def _ranks(environment: dict[str, Any]) -> str:
    text = f"{environment['ranks']} on {environment['nodes']} node(s), {environment['mpi']}"
    helpers = environment["helpers"]
    return f"{text}; {helpers} more compute parts of its products" if helpers else text


def layer_table(layers: Sequence[dict[str, Any]]) -> str:
    """Lay out a row for each layer: what it is, the shape of its output for a sample, its parameters."""
    names = ["layer", "output", "parameters"]
    return table(names, [[one[name] for name in names] for one in layers], ("", "", "d"))


_PLACEMENTS = {
    "resident": "resident: the training set is on the device, and rows are gathered there",
    "stream": "stream: rows are gathered on the host and copied up through pinned buffers",
}


def _batches(environment: dict[str, Any]) -> str:
    text = _PLACEMENTS[environment["placement"]]
    if environment["device"] == "cpu":
        return text
    return f"{text}; {'graphs are replayed' if environment['graphs'] else 'kernels are launched one by one'}"


def _devices(environment: dict[str, Any]) -> str:
    kinds = ", ".join(f"{count} x {name}" for name, count in environment["device_counts"].items())
    text = f"{environment['device']}: {kinds}"
    if environment["device"] == "cpu":
        text += f", {environment['blas_threads']} BLAS thread(s) a rank"
    else:
        text += f", gemm {environment['gemm']}"
    return f"{text} ({environment['device_why']})" if environment["device_why"] else text


def _exchange(environment: dict[str, Any], problem: Problem) -> str:
    if environment["ranks"] == 1:
        return "none: one rank has nothing to sum"
    name, reason = environment["exchange"], environment["exchange_why"]
    text = f"{name}: {exchanges()[name].description}{f' ({reason})' if reason else ''}"
    asynchrony = problem.settings.asynchrony
    return f"{text}; {asynchrony.text(environment['ranks'])}" if asynchrony.servers else text
