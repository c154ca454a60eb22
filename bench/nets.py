"""Training steps of networks against the same in PyTorch, dense ones also in JAX, on one GPU, in one run.

    python3 -m bench nets
    python3 bench/nets.py lenet5 784-512-10       some of them

Ours is the loop as `train.py` runs it, data, losses and SGD included, with momentum where there are
convolutions; PyTorch's step (bench/baselines/torch_nets.py) has its batch in GPU memory. A dense network also
has the ways of bench/step.py's baselines, hand-written steps among them, and the table has the fastest of
each framework. ``PyTorch / ours``: its time in steps of ours, so above 1 ours is faster.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tabulate import tabulate

from bench import step
from bench.baselines.work import CLASSES, INPUTS
from bench.program import read_names, require_gpu, start
from bench.timing import Times
from nn.model.net_text import IMAGES, make_network
from nn.model.network import Network
from pyrt.arguments import Parser
from pyrt.errors import UserError

if TYPE_CHECKING:
    from nn.app.report import Report

NETS: dict[str, tuple[int, ...]] = {
    "lenet5": (128, 3000),
    "mnist-conv": (128, 3000),
    "vgg-small": (128, 1024),
    "vgg16": (64,),
    "784-32-10": (64,),
    "784-128-10": (256,),
    "784-512-10": (3000,),
    "784-2048-10": (12000,),
    "784-1024-1024-1024-1024-10": (3000,),
    "784-4096-4096-10": (1024,),
    "784-8192-8192-10": (8192,),
}
"""The networks, and their batches. Dense ones are named by the sizes of their layers."""

MATHS = ("float32", "tf32", "bf16")
RATE = 1e-3
EPOCHS, WARM_UP = 12, 2
IMAGES_AN_EPOCH = 12000
"""At most so many, but four batches."""

WINDOWS = 20
"""Times that are taken of a dense network, each of several epochs of `bench.step.SAMPLES`."""

FLOPS = 1e13
"""A window has as many epochs as take so many operations, from one to `bench.step.WINDOW`."""

TIMEOUT = 600
"""Seconds that the baseline may take."""


@dataclass(frozen=True)
class Layer:
    """A convolution of 3 x 3 pixels."""

    batch: int
    side: int
    channels: int
    filters: int
    padding: int

    def __str__(self) -> str:
        return f"{self.batch} x {self.side}x{self.side}x{self.channels} -> {self.filters}"


LAYERS = (
    Layer(128, 32, 64, 64, 1),
    Layer(128, 16, 128, 128, 1),
    Layer(128, 8, 256, 256, 1),
    Layer(64, 56, 256, 256, 1),
    Layer(64, 224, 3, 64, 1),
    Layer(3000, 28, 1, 32, 0),
    Layer(3000, 26, 32, 64, 0),
)
"""Layers of these networks; bench/conv.py times them alone."""


def is_dense(name: str) -> bool:
    """Whether all layers of this network are dense."""
    return name not in IMAGES


def hidden_of(name: str) -> tuple[int, ...]:
    """Return the units of a dense network's hidden layers."""
    return tuple(map(int, name.split("-")[1:-1]))


def network_of(name: str) -> Network:
    """Make one of the networks."""
    if is_dense(name):
        return Network.dense((INPUTS, *hidden_of(name), CLASSES), "sigmoid", "softmax")
    return make_network(name, *IMAGES[name], "softmax")


class Mine(NamedTuple):
    """Our times of a step, and the bytes on the device.

    These are without the training set, in the place of which PyTorch's step has one batch.
    """

    times: Times
    nbytes: int


def ours(name: str, batch: int, math: str) -> Mine:
    """Train some epochs as train.py does."""
    times, report = (_dense if is_dense(name) else _convolutional)(name, batch, math)
    lines = report.memory.lines if report.memory is not None else []
    return Mine(times, sum(line.device for line in lines if line.name != "batches"))


def _dense(name: str, batch: int, math: str) -> tuple[Times, Report]:
    """Train as bench/step.py does, on samples that are all different, as the baselines' are."""
    from train import train

    steps, window = -(-step.SAMPLES // batch), window_of(name, batch)
    case = step.Case(batch, math, hidden=hidden_of(name))
    options = step.our_options(case, steps, step.WARM_UP + WINDOWS * window)
    report = train(dataclasses.replace(options, data=f"synthetic:28x28x1:10:{steps * batch}"))
    taken = step.Ours()
    taken.add(report, steps, window)
    return Times.of(taken.wall), report


def window_of(name: str, batch: int) -> int:
    """Return the epochs of a window: what `FLOPS` are enough for, from 1 to `bench.step.WINDOW`."""
    weights = sum(inputs * units for inputs, units in pairwise(network_of(name).sizes))
    epoch = 6 * weights * batch * -(-step.SAMPLES // batch)
    return max(1, min(step.WINDOW, int(FLOPS / epoch)))


def _convolutional(name: str, batch: int, math: str) -> tuple[Times, Report]:
    from nn.app.options import Options
    from train import train

    steps = max(4, min(20, IMAGES_AN_EPOCH // batch))
    shape, classes = IMAGES[name]
    image = "x".join(map(str, shape))
    report = train(
        Options(
            net=name,
            data=f"synthetic:{image}:{classes}:{steps * batch}",
            batch=batch,
            epochs=EPOCHS,
            math=math,
            lr=RATE,
            val_fraction=0.0,
            device="cuda",
            classes=classes,
        )
    )
    return Times.of([epoch.seconds / steps for epoch in report.epochs[WARM_UP:]]), report


def baseline(*words: str, program: str = "torch_nets.py") -> Iterator[dict[str, Any]]:
    """Run a program of PyTorch's and yield its lines. Raises UserError where it is missing or fails."""
    path = Path(__file__).parent / "baselines" / program
    done = subprocess.run(
        [sys.executable, str(path), *words], capture_output=True, text=True, timeout=TIMEOUT
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"PyTorch: {last}")
    return map(json.loads, filter(None, done.stdout.splitlines()))


def main(arguments: Sequence[str]) -> int:
    names = read_names(Parser("nets.py", __doc__), arguments, "NET", "network", NETS)
    require_gpu()
    failures: list[str] = []
    for name in names:
        mine = {(batch, math): ours(name, batch, math) for batch in NETS[name] for math in MATHS}
        rivals = theirs(name, failures)
        print(f"\n{table(name, mine, rivals)}", flush=True)
    for failure in failures:
        print(f"nets.py: error: {failure}", file=sys.stderr)
    return 1 if failures else 0


Key = tuple[int, str]
"""A batch and a kind of arithmetic."""


@dataclass
class Theirs:
    """The others' steps of a network.

    Microseconds of the fastest way, and the bytes of PyTorch's with modules.
    """

    pytorch: dict[Key, float] = field(default_factory=dict)
    nbytes: dict[Key, int] = field(default_factory=dict)
    jax: dict[Key, float] = field(default_factory=dict)


def theirs(name: str, failures: list[str]) -> Theirs:
    """Run the baselines; say what is left out, and add wrong results to the failures."""
    found = Theirs()
    try:
        for line in baseline(name):
            key = line["what"][1], line["math"]
            found.pytorch[key], found.nbytes[key] = line["us"], line["bytes"]
    except UserError as error:
        print(f"left out: {error}", flush=True)
    if is_dense(name):
        for one in step.run_baselines(1, NETS[name], failures, hidden_of(name), MATHS):
            times, key = found.jax if one.framework == "JAX" else found.pytorch, (one.batch, one.math)
            times[key] = min(one.median_us, times.get(key, one.median_us))
    return found


def table(name: str, mine: dict[Key, Mine], theirs: Theirs) -> str:
    """Tabulate a line for each batch and arithmetic of a network."""
    body = []
    for key, (times, nbytes) in mine.items():
        pytorch, their_bytes = theirs.pytorch.get(key), theirs.nbytes.get(key)
        body.append(
            [
                name,
                *key,
                times.median,
                times.spread,
                nbytes / 2**20,
                pytorch,
                their_bytes and their_bytes / 2**20,
                pytorch and pytorch / times.median,
                theirs.jax.get(key),
            ]
        )
    headers = [
        *("network", "batch", "math", "us a step", "min to max", "MiB"),
        *("PyTorch us", "MiB", "PyTorch / ours", "JAX us"),
    ]
    formats = ("", "", "", ".1f", "", ".0f", ".1f", ".0f", ".2f", ".1f")
    return tabulate(body, headers=headers, floatfmt=formats, missingval="-")


if __name__ == "__main__":
    start("nets.py", main)
