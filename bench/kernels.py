"""Where a training step's time goes, kernel by kernel, beside what arithmetic and memory would allow.

A time is taken from nsys's trace of `train.py --no-graph`: from the start of a kernel, or from the end of the
one before where that is later, to its end. So what overlaps counts once, and to wait for the kernel before is
no kernel's work. A step's own time is that of steps in graphs, without nsys: what the sum of its kernels
leaves of it are the gaps between them. Where the device is faster than the host launches, as with small
batches, no kernel's start hides behind the end of another as it does in a graph, and the sum may be more than
the step.

The floors are those of the step's list of operations (nn/program/passes.py, nn/program/fuse.py): flops by the
rate of the unit that does them, and the bytes of each array, read or written once, by that of the memory. An
operation of several kernels has them beside its first.
"""

from __future__ import annotations

import csv
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tabulate import tabulate

from bench.program import require_gpu
from bench.step import Case, Ours, our_options, reason, run_ours, wrong_results
from bench.timing import Times
from pyrt.arguments import Parser
from pyrt.errors import UserError
from pyrt.job import Job, run

if TYPE_CHECKING:  # at run time only once MPI has started: it loads NumPy
    from nn.app.options import Options
    from nn.launch.kernels import Kernels
    from nn.program.operations import Operation

TRAIN = Path(__file__).resolve().parents[1] / "train.py"

BATCHES = (3000, 750)

STEPS, EPOCHS = 50, 4
"""Of the run that is traced."""

TIMEOUT = 300
"""Seconds that it may take."""

MOST_GAPS = 0.1
"""The part of a step in which no kernel runs should be less."""


class Peaks(NamedTuple):
    """What a device can do: TFLOP/s of float32 and, on tensor cores, of bf16; TB/s of its memory."""

    float32: float
    bf16: float
    memory: float


PEAKS = {
    "NVIDIA H200": Peaks(67, 990, 4.8),
    "NVIDIA H100 80GB HBM3": Peaks(67, 990, 3.35),
    "NVIDIA A100-SXM4-80GB": Peaks(19.5, 312, 2.04),
    "NVIDIA A100-SXM4-40GB": Peaks(19.5, 312, 1.555),
}
"""By the data sheets, dense; under the names that CUDA gives the devices."""


@dataclass(frozen=True)
class Part:
    """An operation of a step: the kernels that it runs as, and what it costs at least."""

    name: str
    kernels: tuple[str, ...]
    flops: int
    tensor_flops: int
    bytes: int

    @classmethod
    def of(cls, operation: Operation, kernels: Kernels) -> Part:
        """Make the part as an open device runs it."""
        names = operation.on_device(kernels).kernels
        return cls(operation.name, names, operation.flops, operation.tensor_flops, operation.bytes)

    def arithmetic(self, peaks: Peaks | None) -> float | None:
        """Microseconds of its flops; those of a product on tensor cores are theirs."""
        if peaks is None:
            return None
        rate, flops = (peaks.bf16, self.tensor_flops) if self.tensor_flops else (peaks.float32, self.flops)
        return flops / rate * 1e-6

    def traffic(self, peaks: Peaks | None) -> float | None:
        """Microseconds of its bytes."""
        return self.bytes / peaks.memory * 1e-6 if peaks is not None else None


class Span(NamedTuple):
    """A kernel that ran: nanoseconds on the device's clock; the number of its launch."""

    kernel: str
    start: int
    end: int
    launch: int = 0


@dataclass(frozen=True)
class Row:
    """A kernel of an operation: launches a step, microseconds a step; floors beside the operation's first."""

    operation: str
    kernel: str
    launches: int
    us: float
    arithmetic: float | None
    traffic: float | None


def parts_of(options: Options, job: Job) -> tuple[str, list[Part]]:
    """Return the device, and one rank's operations of a step, as a run with these options has them."""
    from nn.app.load import problem_of
    from nn.input import load as load_data
    from nn.launch.kernels import Kernels
    from nn.model.initial import initial_values
    from nn.parallel.shard import Shard
    from nn.problem.progress import Progress
    from nn.program.rank_model import Numbers, RankModel
    from nn.train.rank_resources import RankGroups, RankResources
    from nn.train.training import Training
    from pyrt.devices import open_device
    from pyrt.exchange.choose import choose
    from pyrt.kernels import KernelLibrary
    from pyrt.phases import Phases
    from pyrt.streams import Streams

    with closing(open_device(options.device, job, share_gpus=False).driver) as driver:
        kernels = Kernels(KernelLibrary(driver), options.dtype, options.gemm, options.math, options.conv)
        one_step = replace(options, samples=options.batch, epochs=1, val_fraction=0.0)
        problem = problem_of(one_step, load_data(options.data))
        phases, shard = Phases(time.perf_counter()), Shard.alone(problem.network)
        groups = RankGroups.of(choose("auto", driver, job), shard)
        resources = RankResources.make(
            job,
            Streams(driver),
            phases,
            kernels,
            groups,
            options.dtype,
            shard.largest_received(options.batch),
        )
        numbers = Numbers(options.dtype, kernels, options.profile, pixel_scale=options.pixel_scale)
        model = RankModel(driver, shard, numbers, options.batch)
        training = Training(problem, model, resources, "resident", graphs=False)
        model.start(initial_values(problem.network, options.dtype, options.seed))
        training.begin(Progress(), None)
        for _ in training.epochs(problem.schedule.steps):
            pass
        return driver.device_name, [Part.of(operation, kernels) for operation in training.operations()]


def trace(batch: int) -> list[Span]:
    """Trace the kernels of a `train.py` run under nsys. Raises UserError, with nsys's words, if it fails."""
    words = ["--batch", batch, "--samples", batch * STEPS, "--epochs", EPOCHS, "--val-fraction", 0]
    words += ["--lr", 0.1, "--momentum", 0, "--device", "cuda", "--placement", "resident", "--no-graph"]
    with tempfile.TemporaryDirectory() as folder:
        report = f"{folder}/step"
        profile = ["nsys", "profile", "--trace=cuda", "--sample=none", "--cpuctxsw=none", "-o", report]
        _output([*profile, sys.executable, str(TRAIN), *map(str, words)])
        stats = ["nsys", "stats", "-q", "-r", "cuda_gpu_trace", "--format", "csv"]
        return parse_trace(_output([*stats, f"{report}.nsys-rep"]))


def _output(command: Sequence[str]) -> str:
    # Without what MPI has added to this process's environment behind Python's back: it is for this one alone.
    try:
        done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        raise UserError(f"nsys: not done after {TIMEOUT} s") from None
    if done.returncode != 0:
        raise UserError(f"nsys: {reason(done.stderr or done.stdout)}")
    return done.stdout


def parse_trace(text: str) -> list[Span]:
    """Read the kernels from nsys's `cuda_gpu_trace` as CSV, sorted by start; leave out copies."""
    lines = text.splitlines()
    begin = next((number for number, line in enumerate(lines) if line.startswith("Start (ns)")), len(lines))
    spans = []
    for row in csv.DictReader(lines[begin:]):
        if not row["Name"].startswith("["):  # [CUDA memcpy Host-to-Device]
            start = int(row["Start (ns)"])
            end = start + int(row["Duration (ns)"])
            spans.append(Span(row["Name"].split("(")[0], start, end, int(row["CorrId"])))
    return sorted(spans, key=lambda span: span.start)


def own_times(spans: Sequence[Span]) -> list[float]:
    """Microseconds of each kernel in which none before it runs any more."""
    times, before = [], 0
    for span in spans:
        times.append(max(0, span.end - max(span.start, before)) * 1e-3)
        before = max(before, span.end)
    return times


def steps(spans: Sequence[Span], kernels: Sequence[str]) -> list[list[float]]:
    """List the kernels' times in each whole step: wherever these kernels are launched one after the other.

    Of two streams a kernel may start before one that was launched before it.
    """
    launched = sorted(zip(spans, own_times(spans), strict=True), key=lambda pair: pair[0].launch)
    times, names = [time for _, time in launched], [span.kernel for span, _ in launched]
    found, place, length = [], 0, len(kernels)
    while place + length <= len(names):
        if names[place : place + length] == list(kernels):
            found.append(times[place : place + length])
            place += length
        else:
            place += 1
    return found


def rows(parts: Sequence[Part], found: Sequence[Sequence[float]], peaks: Peaks | None) -> list[Row]:
    """Make a row for each kernel of each operation, its time the median over these steps."""
    result, place = [], 0
    for part in parts:
        for kernel in dict.fromkeys(part.kernels):
            places = [place + number for number, name in enumerate(part.kernels) if name == kernel]
            us = statistics.median(sum(step[number] for number in places) for step in found)
            first = kernel == part.kernels[0]
            result.append(
                Row(
                    part.name if first else "",
                    kernel,
                    len(places),
                    us,
                    part.arithmetic(peaks) if first else None,
                    part.traffic(peaks) if first else None,
                )
            )
        place += len(part.kernels)
    return result


def table(rows: Sequence[Row]) -> str:
    """Tabulate the kernels in the order in which they are launched, and their sum."""
    floors = (_sum(row.arithmetic for row in rows), _sum(row.traffic for row in rows))
    total = Row("sum", "", sum(row.launches for row in rows), sum(row.us for row in rows), *floors)
    headers = ["operation", "kernel", "launches", "us", "arithmetic us", "bytes us"]
    formats = ("", "", "", ".1f", ".1f", ".1f")
    body = [list(vars(row).values()) for row in (*rows, total)]
    return tabulate(body, headers=headers, floatfmt=formats, missingval="-")


def _sum(values: Iterable[float | None]) -> float | None:
    """Sum the known values; return None if none is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def gaps(rows: Sequence[Row], step: Times) -> str:
    """Describe the step in graphs, and the part of it that no kernel takes."""
    part = 1 - sum(row.us for row in rows) / step.median
    return (
        f"a step in graphs takes {step.median:.1f} us ({step.spread}); "
        f"launch gaps: 1 - sum / step = {part:.1%}, to be below {MOST_GAPS:.0%}"
    )


def caption(batch: int, device: str, count: int, peaks: Peaks | None) -> str:
    """Say what the table of a batch shows."""
    rates = "no floors: its rates are not known here"
    if peaks is not None:
        rates = (
            f"floors at {peaks.float32:g} TFLOP/s of float32, {peaks.bf16:g} of bf16 where tensor cores "
            f"multiply, {peaks.memory:g} TB/s"
        )
    return (
        f"The kernels of a step of 784-512-10, batch {batch}, float32, 1 x {device}\n"
        f"us: from a kernel's start, or from the end of the one before where that is later, to its end;\n"
        f"the median of {count} steps, launched kernel by kernel; {rates}"
    )


def breakdown(batch: int, device: str, parts: Sequence[Part], step: Times) -> str:
    """Return the table of a batch. Raises UserError where nsys has none of its steps."""
    kernels = [kernel for part in parts for kernel in part.kernels]
    found = steps(trace(batch), kernels)
    if not found:
        raise UserError(f"nsys: recorded no step of {', '.join(kernels)}")
    peaks = PEAKS.get(device)
    measured = rows(parts, found, peaks)
    return "\n".join([caption(batch, device, len(found), peaks), table(measured), gaps(measured, step)])


def main(job: Job) -> int:
    with job.agree():
        Parser("kernels.py", __doc__).parse_args(sys.argv[1:])
        require_gpu()
        if job.size > 1:
            raise UserError("takes one GPU apart: start it without mpirun")
    if shutil.which("nsys") is None:
        print("kernels: left out: nsys is not installed")
        return 0
    ours = {Case(batch): Ours() for batch in BATCHES}
    wrong = list(wrong_results(job, list(ours)))
    for what in wrong:
        print(f"kernels.py: error: {what}", file=sys.stderr)
    if wrong:
        return 1
    run_ours(job, ours)
    for case, times in ours.items():
        device, parts = parts_of(our_options(case, 1, 1), job)
        try:
            text = breakdown(case.batch, device, parts, Times.of(times.wall))
        except UserError as error:
            text = f"batch {case.batch}: left out: {error}"
        print(f"\n{text}", flush=True)
    return 0


if __name__ == "__main__":
    run(main)
