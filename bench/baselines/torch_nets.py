"""A training step of networks in PyTorch, a JSON line for each network, batch and arithmetic.

As fast as modules and autograd are: images channels last, cudnn.benchmark, forward, backward and SGD, with
momentum where there are convolutions, in one CUDA graph. ``--layers``: single convolutions in place of
networks, a line for each of the three products of a layer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.baselines.torch_step import dtype_of
from bench.nets import LAYERS, NETS, RATE, Layer, network_of
from bench.program import start
from bench.timing import Times, wall
from nn.model.conv2d import Conv2d
from nn.model.dense import Dense
from nn.model.layer import Shape
from nn.model.network import Network
from nn.model.pool import MaxPool2d
from pyrt.arguments import Parser
from pyrt.errors import UserError

try:
    import torch
except ImportError:
    torch = None

MATHS = ("float32", "tf32", "bf16")
MOMENTUM = 0.9
ROUNDS, SPAN = 20, 0.02
"""Rounds that are timed, and the seconds that one lasts at least."""


def main(arguments: Sequence[str]) -> int:
    parser = Parser("torch_nets.py", __doc__)
    parser.add_argument("names", nargs="*", metavar="NET", help="networks (default: all)")
    parser.add_argument("--layers", action="store_true", help="single convolutions")
    wanted = parser.parse_args(arguments)
    if torch is None or not torch.cuda.is_available():
        raise UserError("needs PyTorch and an NVIDIA GPU")
    torch.backends.cudnn.benchmark = True
    for math in MATHS:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = math == "tf32"
        if wanted.layers:
            for layer in LAYERS:
                for way, work in _layer_ways(layer, dtype_of(math)).items():
                    _tell([str(layer), way], math, work)
        else:
            for name in wanted.names or NETS:
                for batch in NETS[name]:
                    _tell([name, batch], math, _step(network_of(name), batch, dtype_of(math)))
                    torch.cuda.empty_cache()
    return 0


def _tell(what: list[object], math: str, work: Callable[[], None]) -> None:
    graph = captured(work)
    torch.cuda.synchronize()
    once = wall(graph.replay, torch.cuda.synchronize, 1, 3)
    count = max(1, round(SPAN / min(once)))

    def several() -> None:
        for _ in range(count):
            graph.replay()

    times = Times.of(wall(several, torch.cuda.synchronize, count, ROUNDS))
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    line = {"what": what, "math": math, "us": times.median, "spread": times.spread, "bytes": peak}
    print(json.dumps({**line, "version": torch.__version__}), flush=True)


def captured(work: Callable[[], None]) -> Any:
    """Capture a CUDA graph, after some runs on a stream of their own in which libraries set themselves up."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def _step(network: Network, batch: int, dtype: Any) -> Callable[[], None]:
    """Make a step on one batch that lies on the device."""
    net = module_of(network).to("cuda", dtype=dtype, memory_format=torch.channels_last)
    images = _images(network.layer_shapes[0], batch, dtype)
    labels = torch.randint(0, network.classes, (batch,), device="cuda")
    momentum = 0.0 if network.is_dense else MOMENTUM
    optimiser = torch.optim.SGD(net.parameters(), lr=RATE, momentum=momentum, fused=True)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(net(images), labels).backward()
        optimiser.step()

    return step


def _images(shape: Shape, batch: int, dtype: Any) -> Any:
    """Make random images: rows of pixels, or channels last in memory and first in shape."""
    if len(shape) == 1:
        return torch.rand(batch, *shape, device="cuda", dtype=dtype)
    height, width, channels = shape
    images = torch.rand(batch, channels, height, width, device="cuda", dtype=dtype)
    return images.contiguous(memory_format=torch.channels_last)


def module_of(network: Network) -> Any:
    """Make the same network; of images with their channels first in shape."""
    activations = {"relu": partial(torch.nn.ReLU, inplace=True), "sigmoid": torch.nn.Sigmoid}
    modules: list[Any] = []
    for layer, shape in zip(network.layers, network.layer_shapes, strict=False):
        if isinstance(layer, Conv2d):
            modules.append(torch.nn.Conv2d(shape[-1], layer.filters, layer.size, layer.stride, layer.padding))
        elif isinstance(layer, MaxPool2d):
            modules.append(torch.nn.MaxPool2d(layer.size, layer.stride))
        else:
            assert isinstance(layer, Dense)
            if len(shape) == 3:
                modules.append(torch.nn.Flatten())
            modules.append(torch.nn.Linear(int(torch.Size(shape).numel()), layer.units))
        if layer.activation:
            modules.append(activations[layer.activation]())
    return torch.nn.Sequential(*modules)


def _layer_ways(layer: Layer, dtype: Any) -> dict[str, Callable[[], None]]:
    """Make the three products of a convolution."""

    def tensor(*shape: int) -> Any:
        array = torch.randn(*shape, device="cuda", dtype=dtype)
        return array.contiguous(memory_format=torch.channels_last)

    images = tensor(layer.batch, layer.channels, layer.side, layer.side)
    filters = tensor(layer.filters, layer.channels, 3, 3)
    outputs = torch.nn.functional.conv2d(images, filters, padding=layer.padding)
    gradient = tensor(*outputs.shape)

    def back(to_input: bool) -> Callable[[], None]:
        sizes = [1, 1], [layer.padding] * 2, [1, 1], False, [0, 0], 1
        wanted = [to_input, not to_input, False]
        return lambda: torch.ops.aten.convolution_backward(gradient, images, filters, None, *sizes, wanted)

    return {
        "forward": lambda: torch.nn.functional.conv2d(images, filters, padding=layer.padding),
        "to the input": back(True),
        "to the filters": back(False),
    }


if __name__ == "__main__":
    start("torch_nets.py", main)
