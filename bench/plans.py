"""Steps under all plans that one would think of, measured and predicted, beside PyTorch's tensor parallelism.

    mpirun -n 4 python3 bench/plans.py

Ours is the loop as `train.py` runs it. What is predicted comes from nn/autotune/cost.py and the rates that
`--plan auto` measures here. Rank 0 runs the baseline while the other ranks sleep.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tabulate import tabulate

from bench.program import require_gpu
from bench.step import reason, sleep_until_all_are_here
from bench.timing import Times
from pyrt.arguments import Parser
from pyrt.errors import UserError
from pyrt.job import Job, run

if TYPE_CHECKING:  # at run time only once MPI has started: they load NumPy
    from nn.app.options import Options
    from nn.autotune.cost import Cost
    from nn.autotune.rates import Rates
    from nn.autotune.search import Search
    from nn.parallel.plan import Plan

DEVICE = "cuda"
INPUTS, CLASSES = 784, 10
"""Of the embedded digits."""

RATE = 1e-4
"""So small that no wide network diverges: it is time that is measured."""

BASELINE = Path(__file__).parent / "baselines" / "torch_tensor_parallel.py"
TIMEOUT = 300
"""Seconds that it may take for a network."""

CLOSE = 0.1
"""How much more than the fastest measured plan the one that is predicted best may take."""


class Length(NamedTuple):
    """Of a run."""

    epochs: int
    warm_up: int
    """Epochs that do not count at first."""
    steps: int
    """Of each epoch."""


LENGTH = Length(epochs=13, warm_up=2, steps=20)


class Case(NamedTuple):
    """A network of these hidden layers, and a batch over all ranks."""

    hidden: tuple[int, ...]
    batch: int

    def __str__(self) -> str:
        return f"{'-'.join(map(str, (INPUTS, *self.hidden, CLASSES)))}, batch {self.batch}"


CASES = tuple(Case((width, width), batch) for width in (4096, 8192) for batch in (512, 1024, 8192))

WITH_PYTORCH = (Case((4096, 4096), 1024), Case((4096, 4096), 8192), Case((8192, 8192), 512))
"""Of these; it takes half a minute for each."""


@dataclass(frozen=True)
class Row:
    """A plan: what the model says, and microseconds of its steps."""

    name: str
    predicted: Cost
    measured: Times

    @property
    def ratio(self) -> float:
        return self.predicted.seconds * 1e6 / self.measured.median


def plan_options(case: Case, path: Path, device: str, length: Length) -> Options:
    """Under the plan in this file; no validation between steps."""
    from nn.app.options import Options

    return Options(
        hidden=case.hidden,
        batch=case.batch,
        samples=case.batch * length.steps,
        epochs=length.epochs,
        lr=RATE,
        momentum=0.0,
        val_fraction=0.0,
        device=device,
        plan=str(path),
    )


def rates_here(device: str, job: Job) -> Rates:
    """Return this machine's rates; measure them if it is new. Collective."""
    from nn.autotune.listed_step import Task
    from nn.autotune.probe import ProbeContext, measured
    from nn.model.network import Network
    from pyrt.devices import open_device
    from pyrt.exchange.choose import choose

    with closing(open_device(device, job, share_gpus=False).driver) as driver:
        task = Task(Network.dense((INPUTS, CLASSES), "sigmoid", "softmax"), 1)  # whatever it is
        return measured(ProbeContext(job, driver, choose("auto", driver, job), task))


def search_of(case: Case, ranks: int, rates: Rates) -> Search:
    """Make the plan search of a case for so many ranks."""
    from nn.autotune.listed_step import Task
    from nn.autotune.search import Search
    from nn.model.network import Network

    network = Network.dense((INPUTS, *case.hidden, CLASSES), "sigmoid", "softmax")
    task = Task(network, case.batch, rates.dtype, gemm=rates.gemm, math=rates.math)
    return Search(task, ranks, rates)


def candidates(search: Search, best: Plan) -> Iterator[tuple[str, Plan, Cost]]:
    """Yield the plans that people would think of, and the best one, with their costs, where they fit."""
    from nn.autotune.table import named

    for name, plan in named(search, best).items():
        predicted = search.cost(plan)
        if predicted is not None and search.fits(predicted):
            yield name, plan, predicted


def seconds(case: Case, plan: Plan, folder: str, job: Job, device: str, length: Length) -> list[float]:
    """Return the seconds of a step in each epoch that counts: not in the last one, whose losses are read
    sooner than those of others. Collective."""
    from nn.parallel import plan_files
    from train import train

    path = Path(folder) / "plan.json"
    if job.rank == 0:
        plan_files.save(path, plan)
    report = train(plan_options(case, path, device, length), job)
    return [epoch.seconds / length.steps for epoch in report.epochs[length.warm_up : -1]]


def measure(case: Case, folder: str, job: Job, device: str = DEVICE, length: Length = LENGTH) -> list[Row]:
    """Measure all plans of a case. Collective."""
    search = search_of(case, job.size, rates_here(device, job))
    return [
        Row(name, predicted, Times.of(seconds(case, plan, folder, job, device, length)))
        for name, plan, predicted in candidates(search, job.comm.bcast(search.best()))
    ]


def table(rows: Sequence[Row], baseline: Sequence[Line]) -> str:
    """Tabulate a line for each plan, and for each way of PyTorch."""
    body: list[list[object]] = [
        [
            f"best: {row.predicted.what}" if row.name == "best" else row.name,
            row.predicted.seconds * 1e6,
            row.measured.median,
            row.measured.spread,
            row.ratio,
            row.predicted.sent * 1e-6,
            (row.predicted.memory.weights + row.predicted.memory.gradients) * 1e-6,
            row.predicted.memory.activations * 1e-6,
        ]
        for row in rows
    ]
    body += [[line.mode, None, line.times.median, line.times.spread] for line in baseline]
    headers = [
        *("plan", "predicted us", "measured us", "min to max", "ratio", "MB sent"),
        *("weights, gradients MB", "activations MB"),
    ]
    formats = ("", ".0f", ".0f", "", ".2f", ".2f", ".1f", ".1f")
    return tabulate(body, headers=headers, floatfmt=formats, missingval="-")


def verdict(rows: Sequence[Row]) -> str:
    """Say whether the plan predicted best is the fastest, and what splitting weights gains."""
    fastest = min(rows, key=lambda row: row.measured.median)
    best = min(rows, key=lambda row: row.predicted.seconds)
    more = best.measured.median / fastest.measured.median - 1
    said = f"predicted best: {best.name}; fastest: {fastest.name}; {more:.0%} apart, to be below {CLOSE:.0%}"
    data = next(row for row in rows if row.name == "data")
    gains = [
        f"{row.name} {data.measured.median / row.measured.median:.2f} x" for row in rows if row is not data
    ]
    off = max(abs(row.ratio - 1) for row in rows)
    return f"{said}; predictions within {off:.0%}\nas fast as data: {', '.join(gains)}"


class Line(NamedTuple):
    """A way of PyTorch."""

    mode: str
    times: Times


def run_baseline(case: Case, gpus: int) -> list[Line]:
    """Run PyTorch, return its lines; say why if it fails."""
    words = ["--gpus", gpus, "--hidden", ",".join(map(str, case.hidden)), "--batch", case.batch]
    done = subprocess.run(
        [sys.executable, BASELINE, *map(str, words)], capture_output=True, text=True, timeout=TIMEOUT
    )
    if done.returncode != 0:
        print(f"PyTorch: left out: {reason(done.stderr)}", flush=True)
    return list(parse_lines(done.stdout))


def parse_lines(text: str) -> Iterator[Line]:
    """Parse the baseline's output lines."""
    for line in text.splitlines():
        if line.startswith("{"):
            content = json.loads(line)
            yield Line(content["mode"], Times(*content["us"]))


def main(job: Job) -> int:
    with job.agree():
        Parser("plans.py", __doc__).parse_args(sys.argv[1:])
        require_gpu()
        if job.size == 1:
            raise UserError("one rank has nothing to split: mpirun -n 4 python3 bench/plans.py")
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            rows = measure(case, job.comm.bcast(folder), job)
            if job.rank == 0:
                print(f"\nA step of {case}, {job.size} ranks")
                print(table(rows, run_baseline(case, job.size) if case in WITH_PYTORCH else []))
                print(verdict(rows), flush=True)
            sleep_until_all_are_here(job)
    return 0


if __name__ == "__main__":
    run(main)
