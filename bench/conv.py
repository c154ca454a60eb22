"""The versions of convolutions against cuDNN's, layer by layer, on one GPU: times, rates and errors.

    python3 -m bench conv

Each layer forward, to the input and to the filters, on normal numbers; errors are relative to the largest
element of what NumPy makes of some samples in float64. Versions of the ladder: docs/explain/convolution.md;
winograd with each of its tiles.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from tabulate import tabulate

from bench.nets import LAYERS, MATHS, Layer, baseline
from bench.program import require_gpu, start
from bench.timing import alternate, repetition
from nn.launch.conv import convolve
from nn.launch.conv.convolution import Convolution, ConvolutionWork, FilterGradient, InputGradient
from nn.launch.conv.versions import CONV_VERSIONS
from nn.launch.conv.winograd import OUTS, Tiles, bind_winograd
from nn.launch.gemm.mma import MMA_COMPONENTS
from nn.launch.kernels import Kernels
from nn.model.conv2d import Conv2d
from pyrt.arguments import Parser
from pyrt.arrays import DeviceArray
from pyrt.clock import StreamClock
from pyrt.errors import UserError
from pyrt.kernels import KernelLibrary, Launch

WAYS: dict[str, type[ConvolutionWork]] = {
    "forward": Convolution,
    "to the input": InputGradient,
    "to the filters": FilterGradient,
}
ROUNDS = 10
CHECKED = 4
"""Samples whose results are compared with float64."""


class Arrays:
    """The arrays of a layer on the device; what is checked is of the first samples."""

    def __init__(self, clock: StreamClock, layer: Layer, samples: int) -> None:
        generator = np.random.default_rng(0)
        self.layer = Conv2d(layer.filters, 3, padding=layer.padding)
        image = layer.side, layer.side, layer.channels
        self.window = self.layer.window(image)
        places = self.window.out_height, self.window.out_width
        self.A = generator.standard_normal((samples, *image), np.float32)
        self.W = generator.standard_normal((layer.filters, 3, 3, layer.channels), np.float32)
        self.dZ = generator.standard_normal((samples, *places, layer.filters), np.float32)
        self._driver = clock.driver

    def work(self, way: str) -> ConvolutionWork:
        """Make the work, all of its arrays new on the device."""
        host = {"images": self.A, "outputs": self.dZ, "filters": self.W}
        arrays = {
            name: DeviceArray.from_host(self._driver, array.reshape(len(array), -1))
            for name, array in host.items()
        }
        return WAYS[way](**arrays, window=self.window)

    def exact(self, way: str) -> np.ndarray:
        """Compute the same in NumPy, float64."""
        A, W, dZ = (array.astype(np.float64) for array in (self.A, self.W, self.dZ))
        parameters = {"W": W, "b": np.zeros(len(W))}
        if way == "forward":
            return self.layer.forward(parameters, A)
        dA, gradients = self.layer.backward(parameters, A, dZ, dZ)
        return dA if way == "to the input" else gradients["W"]


Bind = Callable[[ConvolutionWork], Launch]


def error(clock: StreamClock, bind: Bind, layer: Layer, way: str) -> float:
    """Return the largest error of some samples, relative to the largest element."""
    arrays = Arrays(clock, layer, CHECKED)
    work, exact = arrays.work(way), arrays.exact(way)
    bind(work).call(clock.stream)
    (result,) = work.writes
    found = result.to_host().astype(np.float64).reshape(exact.shape)
    return float(np.abs(found - exact).max() / np.abs(exact).max())


def contenders(library: KernelLibrary, work: ConvolutionWork) -> dict[str, tuple[str, Bind]]:
    """Return each version that does the work: the kernel that it takes, and how it is bound."""
    names = [(version, "float32", "auto") for version in CONV_VERSIONS if version != "winograd"]
    names += [("implicit", math, "auto") for math in MATHS[1:]]
    names += [("implicit", math, "mma") for math in MMA_COMPONENTS]
    found: dict[str, tuple[str, Bind]] = {}
    for version, math, gemm in names:
        kernels = Kernels(library, np.float32, gemm, math, version)
        taken = kernels.choose(work)
        if taken in (version, "narrow", "implicit_mma"):
            name = f"{version}, {math}" if gemm == "auto" else f"{version} by {gemm}, {math}"
            found[name] = taken, partial(convolve, kernels)
    for math, out in itertools.product(MATHS, OUTS):
        kernels = Kernels(library, np.float32, math=math, conv="winograd")
        found[f"winograd {out}x{out}, {math}"] = "winograd", partial(with_tiles, kernels, out)
    return found


def with_tiles(kernels: Kernels, out: int, work: ConvolutionWork) -> Launch:
    """Bind winograd with tiles of this side."""
    return bind_winograd(kernels, work, Tiles.of(work, [out]))


def rows(clock: StreamClock, library: KernelLibrary, layer: Layer, way: str) -> list[list[object]]:
    """Time and check every version of one layer and way."""
    work = Arrays(clock, layer, layer.batch).work(way)
    versions = contenders(library, work)
    errors = {name: error(clock, bind, layer, way) for name, (_, bind) in versions.items()}
    measures = {name: repetition(clock, bind(work).call) for name, (_, bind) in versions.items()}
    return [
        [name, versions[name][0], one.median, work.flops / one.median / 1e6, errors[name]]
        for name, one in alternate(measures, ROUNDS).items()
    ]


def main(arguments: Sequence[str]) -> int:
    Parser("conv.py", __doc__).parse_args(arguments)
    require_gpu()
    import pyrt

    try:
        theirs = {(*line["what"], line["math"]): line["us"] for line in baseline("--layers")}
    except UserError as failed:
        print(f"left out: {failed}", flush=True)
        theirs = {}
    headers = ["version, math", "kernel", "us", "TFLOP/s", "error"]
    for layer in LAYERS:
        for way in WAYS:
            with pyrt.start() as runtime:  # all of a layer's memory goes when it is done
                clock = StreamClock(runtime.driver, runtime.driver.create_stream())
                body = rows(clock, KernelLibrary(runtime.driver), layer, way)
                flops = Arrays(clock, layer, 1).work(way).flops * layer.batch
            for math in MATHS:
                if us := theirs.get((str(layer), way, math)):
                    body.append([f"cuDNN, {math}", "", us, flops / us / 1e6, None])
            print(f"\n{layer}, {way}")
            formats = ("", "", ".1f", ".1f", ".1e")
            print(tabulate(body, headers=headers, floatfmt=formats, missingval="-"), flush=True)
    return 0


if __name__ == "__main__":
    start("conv.py", main)
