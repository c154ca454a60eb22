"""Training steps of convolutional networks against the same in PyTorch, on one GPU, in one run.

    python3 -m bench nets
    python3 bench/nets.py lenet5 vgg-small        some of them

Ours is the loop as `train.py` runs it, data, losses and SGD with momentum included; PyTorch's step
(bench/baselines/torch_nets.py) has its batch in GPU memory. ``x ours``: its time in steps of
ours, so above 1 ours is faster.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tabulate import tabulate

from bench.program import require_gpu, start
from bench.timing import Times
from nn.model.net_text import IMAGES, make_network
from nn.model.network import Network
from pyrt.arguments import Parser
from pyrt.errors import UserError

NETS = {"lenet5": (128, 3000), "mnist-conv": (128, 3000), "vgg-small": (128, 1024), "vgg16": (64,)}
"""The networks, and their batches."""

MATHS = ("float32", "tf32", "bf16")
RATE = 1e-3
EPOCHS, WARM_UP = 12, 2
IMAGES_AN_EPOCH = 12000
"""At most so many, but four batches."""

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


def network_of(name: str) -> Network:
    """Make one of the networks."""
    return make_network(name, *IMAGES[name], "softmax")


def ours(name: str, batch: int, math: str) -> tuple[Times, int]:
    """Train some epochs as train.py does; return the times of a step, and the bytes on the device.

    These are without the training set, in the place of which PyTorch's step has one batch.
    """
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
    seconds = [epoch.seconds / steps for epoch in report.epochs[WARM_UP:]]
    lines = report.memory.lines if report.memory is not None else []
    return Times.of(seconds), sum(line.device for line in lines if line.name != "batches")


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
    parser = Parser("nets.py", __doc__)
    parser.add_argument("names", nargs="*", metavar="NET", help=f"{', '.join(NETS)} (default: all)")
    names = parser.parse_args(arguments).names or list(NETS)
    for name in names:
        if name not in NETS:
            parser.error(f"no network is called {name}: there are {', '.join(NETS)}")
    require_gpu()
    for name in names:
        cases = [(name, batch, math) for batch in NETS[name] for math in MATHS]
        mine = {case: ours(*case) for case in cases}
        try:
            theirs = {(*line["what"], line["math"]): line for line in baseline(name)}
        except UserError as error:
            print(f"left out: {error}", flush=True)
            theirs = {}
        print(f"\n{table(mine, theirs)}", flush=True)
    return 0


def table(
    mine: dict[tuple[str, int, str], tuple[Times, int]], theirs: dict[tuple[str, int, str], dict[str, Any]]
) -> str:
    """Tabulate a line for each network, batch and arithmetic."""
    body = []
    for key, (times, nbytes) in mine.items():
        line = theirs.get(key)
        body.append(
            [
                *key,
                times.median,
                times.spread,
                nbytes / 2**20,
                line["us"] if line else None,
                line["bytes"] / 2**20 if line else None,
                line["us"] / times.median if line else None,
            ]
        )
    headers = [
        "network",
        "batch",
        "math",
        "us a step",
        "min to max",
        "MiB",
        "PyTorch us",
        "MiB",
        "PyTorch / ours",
    ]
    formats = ("", "", "", ".1f", "", ".0f", ".1f", ".0f", ".2f")
    return tabulate(body, headers=headers, floatfmt=formats, missingval="-")


if __name__ == "__main__":
    start("nets.py", main)
