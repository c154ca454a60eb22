"""The work that is compared: what a baseline trains, how it is checked and timed, what it prints.

A dense network, 784-512-10 or of other hidden layers, sigmoid, softmax cross-entropy, L2 on the weights,
plain gradient descent, on 60,000 random samples that lie in GPU memory. A global batch is split evenly over
the GPUs. In bf16 the products are in bf16; parameters and their update are in float32.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from itertools import pairwise
from typing import Protocol

import numpy as np

from bench.program import WrongResult
from bench.timing import Times, wall
from nn.model import reference
from nn.model.network import Network
from nn.model.reference import Arrays
from nn.optimisers import Sgd
from pyrt.arguments import Parser
from pyrt.errors import UserError

INPUTS, CLASSES = 784, 10
HIDDEN = (512,)
SAMPLES = 60000
RATE = 0.1
REG = 1e-4

CHECKED = 3
"""Steps that are compared with NumPy before any is timed."""

TOLERANCES = {"float32": 1e-3, "tf32": 3e-2, "bf16": 1e-1}
"""Relative max norm of the error in what `CHECKED` steps change, by the kind of arithmetic.

It is beside the rounding of the parameters to float32, twice in a step, which in the first of four hidden
layers is 4e-3 of the change. In bf16, one to four hidden layers were off by 2.4e-2 at most on the CPU.
"""

GAIN = 4.0
"""The scale of a sigmoid layer's first weights, times the square root of its inputs.

A sigmoid's derivative is 1/4 at most: with less, hardly a gradient comes through four layers, and the check
would see little more than the L2 term.
"""

ROUNDS = 20
ROUND_STEPS = 200
"""Steps that a round of the clock has: waiting for the device costs the time of a part of one."""

ROUND_SECONDS = 0.2
"""A round of slow steps ends with the epoch in which it has lasted so long."""


@dataclass(frozen=True)
class Setting:
    """What all lines of one mathematics and batch share."""

    framework: str
    version: str
    math: str
    gpus: int
    device: str


@dataclass(frozen=True)
class Line(Setting):
    """One way of running the training, timed: microseconds a step, over rounds of `ROUND_STEPS` steps."""

    batch: int
    mode: str
    median_us: float
    min_us: float
    max_us: float

    def __str__(self) -> str:
        return json.dumps(asdict(self))


def parse_lines(text: str) -> list[Line]:
    """Parse the `Line` objects among the lines of a program's output; pass over other lines."""
    lines = []
    for text_line in text.splitlines():
        try:
            content = json.loads(text_line)
        except json.JSONDecodeError:
            continue
        if isinstance(content, dict) and content.keys() == {field.name for field in fields(Line)}:
            lines.append(Line(**content))
    return lines


@dataclass(frozen=True)
class Arguments:
    """The command line of a baseline: it times every math at every global batch, with these hidden layers."""

    gpus: int
    batches: list[int]
    maths: list[str]
    hidden: tuple[int, ...] = HIDDEN


def parse(program: str, description: str | None, arguments: Sequence[str]) -> Arguments:
    """Parse the command line of a baseline. Raises UserError for what makes no sense."""
    parser = Parser(program, description)
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="GPUs of this machine (default: 1)")
    parser.add_argument(
        "--batch", type=int, nargs="+", default=[3000], metavar="N", help="over all GPUs (default: 3000)"
    )
    parser.add_argument(
        "--math", nargs="+", default=["float32"], choices=list(TOLERANCES), help="(default: float32)"
    )
    parser.add_argument(
        "--hidden", type=int, nargs="+", default=list(HIDDEN), metavar="N", help="their units (default: 512)"
    )
    given = parser.parse_args(arguments)
    if given.gpus < 1:
        raise UserError(f"--gpus {given.gpus}: must be 1 or more")
    if min(given.hidden) < 1:
        raise UserError(f"--hidden {min(given.hidden)}: must be 1 or more")
    for batch in given.batch:
        if not 1 <= batch <= SAMPLES // CHECKED or batch % given.gpus:
            raise UserError(
                f"--batch {batch}: must be 1 to {SAMPLES // CHECKED}, and a multiple of {given.gpus} GPU(s)"
            )
    return Arguments(given.gpus, given.batch, given.math, tuple(given.hidden))


@dataclass(frozen=True)
class Task:
    """The data in whole batches X (n, batch, 784) and labels (n, batch), and where training begins."""

    X: np.ndarray
    labels: np.ndarray
    parameters: Arrays

    @property
    def batches(self) -> int:
        return len(self.X)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return (inputs, hidden..., classes)."""
        return INPUTS, *(
            len(self.parameters[f"b{layer}"]) for layer in range(1, len(self.parameters) // 2 + 1)
        )

    def part(self, rank: int, ranks: int) -> Task:
        """Return one rank's share: an even, contiguous part of each batch."""
        share = self.X.shape[1] // ranks
        rows = slice(rank * share, (rank + 1) * share)
        return Task(self.X[:, rows], self.labels[:, rows], self.parameters)

    @cached_property
    def expected(self) -> Arrays:
        """The parameters after `CHECKED` steps, in float64."""
        first = {name: array.astype(np.float64) for name, array in self.parameters.items()}
        batches = ((self.X[i].astype(np.float64), self.labels[i]) for i in range(CHECKED))
        network = Network.dense(self.sizes, "sigmoid", "softmax")
        return reference.train(first, batches, network, Sgd(RATE, 0.0, REG))


def make_task(batch: int, hidden: Sequence[int] = HIDDEN, samples: int = SAMPLES) -> Task:
    """Make the same random task everywhere, float32 and int64."""
    rng = np.random.default_rng(0)
    count = samples // batch
    X = rng.random((count, batch, INPUTS), np.float32)
    labels = rng.integers(0, CLASSES, (count, batch))
    parameters: Arrays = {}
    for layer, (inputs, units) in enumerate(pairwise((INPUTS, *hidden, CLASSES)), start=1):
        gain = GAIN if layer <= len(hidden) else 1.0
        weights = rng.standard_normal((units, inputs), np.float32)
        parameters[f"W{layer}"] = weights * (gain / np.sqrt(inputs))
        parameters[f"b{layer}"] = rng.standard_normal(units, np.float32) * 0.1
    return Task(X, labels, {name: array.astype(np.float32) for name, array in parameters.items()})


class Mode(Protocol):
    """One way of running the training in a framework, with parameters of its own."""

    name: str

    def queue(self, steps: int) -> None:
        """Begin a step on each of the first ``steps`` batches in turn: `CHECKED` of them, or all."""

    def wait(self) -> None:
        """Return when all that was queued is done, on every GPU."""

    def parameters(self) -> Arrays:
        """Copies of the parameters as they are now."""


def check(mode: Mode, task: Task, math: str) -> None:
    """Compare the first steps with NumPy; WrongResult where they differ.

    ``task`` is the whole one, with all ranks' samples.
    """
    mode.queue(CHECKED)
    mode.wait()
    found = mode.parameters()
    for name, expected in task.expected.items():
        change = np.abs(expected - task.parameters[name]).max()
        rounding = 2 * CHECKED * 2.0**-24 * np.abs(expected).max()
        error = (np.abs(found[name] - expected).max() - rounding) / change
        if not error <= TOLERANCES[math]:
            raise WrongResult(
                f"{mode.name}, {math}: {name} is off by {error:.1e} of what {CHECKED} steps change"
            )


def time(mode: Mode, batches: int) -> Times:
    """Time rounds of whole epochs of so many batches."""
    once = min(wall(lambda: mode.queue(batches), mode.wait, 1, 1))
    epochs = min(-(-ROUND_STEPS // batches), 1 + int(ROUND_SECONDS / once))

    def work() -> None:
        for _ in range(epochs):
            mode.queue(batches)

    times = Times.of(wall(work, mode.wait, epochs * batches, ROUNDS))
    if not all(np.isfinite(array).all() for array in mode.parameters().values()):
        raise WrongResult(f"{mode.name}: parameters that are not finite")
    return times


def run(mode: Mode, task: Task, setting: Setting, printing: bool = True) -> None:
    """Check a mode, time it and print its line; on every rank, of which one prints."""
    check(mode, task, setting.math)
    times = time(mode, task.batches)
    line = Line(
        **asdict(setting),
        batch=task.X.shape[1],
        mode=mode.name,
        median_us=round(times.median, 2),
        min_us=round(times.least, 2),
        max_us=round(times.most, 2),
    )
    if printing:
        print(line, flush=True)
