"""Inference against PyTorch, from pixels in page-locked memory to logits in page-locked memory, on one GPU.

    python3 -m bench latency
    python3 bench/latency.py 784-512-10 lenet5        some of the networks

A call is one launch of a CUDA graph (copy up, the network, copy down) and one wait, in ours as in PyTorch's
(bench/baselines/torch_latency.py); the host's clock times each call by itself. Ours is compared with NumPy
first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from tabulate import tabulate

from bench.nets import MATHS, baseline, network_of
from bench.program import WrongResult, read_names, require_gpu, start
from nn.model import reference
from nn.model.initial import initial_values
from nn.train.latency import Latency
from pyrt.arguments import Parser
from pyrt.errors import UserError

DENSE = "784-512-10"

NUMBERS: dict[str, tuple[int, ...]] = {
    DENSE: (1, 32, 3000),
    **dict.fromkeys(("lenet5", "mnist-conv", "vgg-small", "vgg16"), (1,)),
}
"""The networks, and the numbers of images at a time."""

DEVICE = "cuda"

TOLERANCES = {"float32": 1e-4, "tf32": 2e-2, "bf16": 1e-1}
"""Relative max norm of the error of logits: what is rounded to 24, 11 and 8 bits, in up to 16 layers."""

CHECKED = 8
"""Images, of those at a time, whose logits are compared."""


class Case(NamedTuple):
    """A network, images at a time and arithmetic that are timed."""

    network: str
    images: int
    math: str


def cases(name: str) -> list[Case]:
    """List what is timed of a network: a dense one has float32 alone."""
    return [Case(name, count, math) for math in maths(name) for count in NUMBERS[name]]


def maths(name: str) -> tuple[str, ...]:
    """Return the arithmetic that a network is timed with."""
    return MATHS[:1] if name == DENSE else MATHS


def ours(name: str) -> Iterator[tuple[Case, Latency]]:
    """Time calls of `nn.Inference`. Raises WrongResult where the logits are not the reference's."""
    import nn
    from nn.train.latency import measure
    from pyrt.job import join
    from pyrt.runtime import open_runtime

    network, numbers = network_of(name), NUMBERS[name]
    parameters = initial_values(network, "float32", 0)
    images = np.random.default_rng(0).integers(0, 256, (max(numbers), network.sizes[0]), np.uint8)
    _, expected = reference.forward(parameters, images[:CHECKED] / 255.0, network)
    for math in maths(name):
        with open_runtime(join(), DEVICE) as runtime:
            inference = nn.Inference(network, parameters, runtime, max(numbers), math=math)
            for count in numbers:
                found = inference.logits(images[:count])[:CHECKED]
                error = np.abs(found - expected[:count]).max() / np.abs(expected[:count]).max()
                if not error <= TOLERANCES[math]:
                    raise WrongResult(f"{name}, {math}, {count} images: logits are off by {error:.1e}")
            for one in measure(inference, images, numbers):
                yield Case(name, one.images, math), one


def main(arguments: Sequence[str]) -> int:
    names = read_names(Parser("latency.py", __doc__), arguments, "NET", "network", NUMBERS)
    require_gpu()
    for name in names:
        mine = dict(ours(name))
        try:
            lines = list(baseline(name, program="torch_latency.py"))
        except UserError as error:
            print(f"left out: {error}", flush=True)
            lines = []
        print(f"\n{table(mine, fastest(lines))}", flush=True)
    return 0


def fastest(lines: Sequence[Mapping[str, Any]]) -> dict[Case, Mapping[str, Any]]:
    """Take for each case the line of PyTorch with the smallest median."""
    found: dict[Case, Mapping[str, Any]] = {}
    for line in lines:
        case = Case(*line["case"])
        if case not in found or line["median"] < found[case]["median"]:
            found[case] = line
    return found


def table(mine: Mapping[Case, Latency], theirs: Mapping[Case, Mapping[str, Any]]) -> str:
    """Tabulate a line for each case: microseconds of a call, and images a second."""
    body = []
    for case, one in mine.items():
        row: list[object] = [*case, one.median * 1e6, one.p99 * 1e6, one.images_per_second]
        line = theirs.get(case)
        if line is not None:
            row += [line["pixels"], line["median"] * 1e6, line["p99"] * 1e6, line["median"] / one.median]
        body.append([*row, *[None] * (10 - len(row))])
    headers = ["network", "images", "math", "us", "p99", "images/s"]
    headers += ["PyTorch from", "us", "p99", "PyTorch / ours"]
    formats = ("", "", "", ".1f", ".1f", ".0f", "", ".1f", ".1f", ".2f")
    return tabulate(body, headers=headers, floatfmt=formats, missingval="-")


if __name__ == "__main__":
    start("latency.py", main)
