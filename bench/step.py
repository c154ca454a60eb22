"""A training step of this project against the same step in PyTorch and JAX, on the same GPUs, in one run.

    python3 bench/step.py                  one GPU, batches of 3000 and of 750
    mpirun -n 4 python3 bench/step.py      four GPUs, a global batch of 3000

Ours is the loop as `train.py` runs it, data and losses included, first and last: its spread shows what the
machine did in between. The baselines (bench/baselines) have their samples in GPU memory. Both are checked
against NumPy first. Rank 0 runs the baselines while the other ranks sleep.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tabulate import tabulate

from bench.program import require_gpu
from bench.timing import Times
from pyrt.arguments import Parser
from pyrt.errors import UserError
from pyrt.job import Job, run

if TYPE_CHECKING:  # at run time only once MPI has started: they load NumPy
    from bench.baselines.work import Line
    from nn.app.options import Options
    from nn.app.report import Report

BASELINES = {"PyTorch": "torch_step.py", "JAX": "jax_step.py"}
MATHS = ("float32", "tf32")
"""The arithmetic that ours and the baselines are timed with."""

DEVICE = "cuda"
SAMPLES = 60000
EPOCHS, WARM_UP, WINDOW = 102, 2, 10
"""Of a run, of which some do not count; the others are timed by so many: an epoch ends when its last loss is
read, and by then the device may be some steps into the next one."""

TIMEOUT = 300
"""Seconds that a baseline may take for all that it times."""

_NAP = 0.05
"""Seconds between two looks of a rank that waits for the baselines."""


class Case(NamedTuple):
    """A way in which ours takes its steps."""

    batch: int
    math: str = "float32"
    placement: str = "resident"
    hidden: tuple[int, ...] = (512,)
    exchange: str = "auto"
    share_gpus: bool = False

    def __str__(self) -> str:
        return "this project" + (", rows streamed" if self.placement == "stream" else "")


@dataclass
class Ours:
    """Our steps of one case, in all runs: seconds a step of each window, and of each run on the device."""

    wall: list[float] = field(default_factory=list)
    device: list[float] = field(default_factory=list)
    machine: str = ""

    def add(self, report: Report, steps: int, window: int) -> None:
        """Take the times of a run with so many steps an epoch, in windows of so many epochs.

        The device's time is that of the phase `batch iteration`, a mean over the run, which rank 0 alone
        knows.
        """
        self.machine = report.environment["devices"][0]
        seconds = [epoch.seconds for epoch in report.epochs[WARM_UP:]]
        windows = range(0, len(seconds) - window + 1, window)
        self.wall += [sum(seconds[first : first + window]) / (window * steps) for first in windows]
        for phase in report.phases:
            if phase.name == "batch iteration" and phase.device is not None:
                self.device.append(phase.device / phase.calls)


@dataclass(frozen=True)
class Row:
    """A way to take a step: microseconds by the host's clock, and on the device where that is known."""

    what: str
    math: str
    times: Times
    device: float | None = None
    is_ours: bool = False


def our_options(case: Case, steps: int, epochs: int, check: bool = False) -> Options:
    """Return options for so many steps an epoch, without validation."""
    from nn.app.options import Options

    return Options(
        hidden=case.hidden,
        batch=case.batch,
        math=case.math,
        exchange=case.exchange,
        share_gpus=case.share_gpus,
        placement=case.placement if DEVICE == "cuda" else "auto",
        samples=case.batch * steps,
        epochs=epochs,
        lr=0.1,
        momentum=0.0,
        val_fraction=0.0,
        device=DEVICE,
        check=check,
    )


def run_ours(job: Job, ours: dict[Case, Ours]) -> None:
    """Train some epochs in each case, as `train.py` does, and add the times. Collective."""
    from train import train

    for case, times in ours.items():
        steps = -(-SAMPLES // case.batch)
        times.add(train(our_options(case, steps, EPOCHS), job), steps, WINDOW)


def wrong_results(job: Job, cases: Sequence[Case]) -> Iterator[str]:
    """Yield what differs from the NumPy reference after three steps. Collective."""
    from train import train

    for case in cases:
        report = train(our_options(case, 3, 1, check=True), job)
        if not report.passed:
            exchange = report.environment["exchange"]
            hidden = ",".join(map(str, case.hidden))
            yield f"our step, hidden {hidden}, batch {case.batch}, exchange {exchange}\n{report.check}"


@dataclass(frozen=True)
class Outcome:
    """What a baseline printed; why nothing more, in a line; whether that is a failure."""

    lines: list[Line]
    why: str = ""
    failed: bool = False


def run_baseline(
    framework: str,
    gpus: int,
    batches: Sequence[int],
    hidden: Sequence[int] = (512,),
    maths: Sequence[str] = MATHS,
) -> Outcome:
    """Run the program of that framework; it fails unless it ends well or something is missing."""
    from bench.baselines.work import parse_lines

    program = Path(__file__).parent / "baselines" / BASELINES[framework]
    words = ["--gpus", gpus, "--hidden", *hidden, "--batch", *batches, "--math", *maths]
    with _all_cores():
        process = subprocess.Popen(
            [sys.executable, program, *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    try:
        output, errors = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        process.terminate()  # torchrun ends its ranks
        output, _ = process.communicate()
        return Outcome(parse_lines(output), f"not done after {TIMEOUT} s", failed=True)
    lines, code = parse_lines(output), process.returncode
    if code == 0:
        return Outcome(lines)
    return Outcome(lines, reason(errors), failed=code != UserError.code)


def reason(errors: str) -> str:
    """Find the line of a program's error output that tells most: the last of ours, else the last."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()] or ["no message"]
    ours = [line for line in lines if ": error: " in line]
    return ours[-1].split(": error: ", 1)[1] if ours else lines[-1]


@contextmanager
def _all_cores() -> Iterator[None]:
    """Give all cores to children that start within: mpirun may have bound this rank to a core of its own."""
    bound = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # the system takes those that are allowed
    try:
        yield
    finally:
        os.sched_setaffinity(0, bound)


def sleep_until_all_are_here(job: Job) -> None:
    """Sleep until all ranks are here, so as not to disturb what is measured meanwhile."""
    request = job.comm.Ibarrier()
    while not request.Test():
        time.sleep(_NAP)


def rows(ours: dict[Case, Ours], lines: Sequence[Line]) -> list[Row]:
    """Ours, then the baselines of the same batch."""
    return [
        *(_our_row(case, times) for case, times in ours.items()),
        *(
            Row(
                f"{line.framework} {line.version}, {line.mode}",
                line.math,
                Times(line.median_us, line.min_us, line.max_us),
            )
            for line in lines
        ),
    ]


def _our_row(case: Case, times: Ours) -> Row:
    device = 1e6 * statistics.median(times.device) if times.device else None
    return Row(str(case), case.math, Times.of(times.wall), device, is_ours=case.placement == "resident")


def table(rows: Sequence[Row]) -> str:
    """Tabulate a line for each row; ``x ours``: its time in steps of ours with the same arithmetic."""
    ours = {row.math: row.times.median for row in rows if row.is_ours}
    body = [
        [
            row.what,
            row.math,
            row.times.median,
            row.times.spread,
            row.device,
            row.times.median / ours[row.math] if row.math in ours else None,
        ]
        for row in rows
    ]
    headers = ["step", "math", "us", "min to max", "device us", "x ours"]
    return tabulate(body, headers=headers, floatfmt=("", "", ".1f", "", ".1f", ".2f"), missingval="-")


def run_baselines(
    gpus: int,
    batches: Sequence[int],
    failures: list[str],
    hidden: Sequence[int] = (512,),
    maths: Sequence[str] = MATHS,
) -> list[Line]:
    """Run all baselines and return their lines; say what is left out, and add what failed."""
    lines: list[Line] = []
    for framework in BASELINES:
        outcome = run_baseline(framework, gpus, batches, hidden, maths)
        lines += outcome.lines
        if outcome.failed:
            failures.append(f"{framework}: {outcome.why}")
        elif outcome.why:
            print(f"{framework}: left out: {outcome.why}", flush=True)
    return lines


def main(job: Job) -> int:
    with job.agree():
        Parser("step.py", __doc__).parse_args(sys.argv[1:])
        require_gpu()
    batches = (3000, 750) if job.size == 1 else (3000,)
    cases = [Case(batch, math) for batch in batches for math in MATHS]
    cases += [Case(batch, placement="stream") for batch in batches]
    ours = {case: Ours() for case in cases}
    lines: list[Line] = []
    failures = list(wrong_results(job, cases))
    if not failures:
        run_ours(job, ours)
        if job.rank == 0:
            lines = run_baselines(job.size, batches, failures)
        sleep_until_all_are_here(job)
        run_ours(job, ours)
    if job.rank == 0:
        for batch in batches:
            mine = {case: times for case, times in ours.items() if case.batch == batch and times.wall}
            if mine:
                machine = next(iter(mine.values())).machine
                print(f"\nA step of 784-512-10, batch {batch}, {job.size} x {machine}")
                print(table(rows(mine, [line for line in lines if line.batch == batch])), flush=True)
        for failure in failures:
            print(f"step.py: error: {failure}", file=sys.stderr)
    return job.comm.bcast(1 if failures else 0)


if __name__ == "__main__":
    run(main)
