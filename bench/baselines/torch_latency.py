"""Inference in PyTorch from host to host: a JSON line for each network, number of images and arithmetic.

As fast as PyTorch does it: copy up, network and copy down in one CUDA graph, between page-locked buffers;
images channels last, cudnn.benchmark. The pixels go up in two ways, a line each: as uint8, which the device
divides by 255, and as numbers of the network's dtype, which the host has divided before the clock starts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.baselines.torch_nets import captured, module_of
from bench.baselines.torch_step import dtype_of
from bench.latency import NUMBERS, cases
from bench.nets import network_of
from bench.program import start
from nn.model.network import Network
from nn.train.latency import Latency
from pyrt.arguments import Parser
from pyrt.clock import seconds_of_calls
from pyrt.errors import UserError

try:
    import torch
except ImportError:
    torch = None

PIXELS = ("uint8", "divided")
"""The pixels that are copied up."""


def main(arguments: Sequence[str]) -> int:
    parser = Parser("torch_latency.py", __doc__)
    parser.add_argument("names", nargs="*", metavar="NET", help="networks (default: all)")
    names = parser.parse_args(arguments).names or NUMBERS
    if torch is None or not torch.cuda.is_available():
        raise UserError("needs PyTorch and an NVIDIA GPU")
    torch.backends.cudnn.benchmark = True
    for case in (case for name in names for case in cases(name)):
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = case.math == "tf32"
        for pixels in PIXELS:
            work, _ = host_to_host(network_of(case.network), case.images, dtype_of(case.math), pixels, "cuda")
            times = Latency.of(case.images, seconds_of_calls(_call(work)))
            line = {"case": case, "pixels": pixels, "version": torch.__version__, **asdict(times)}
            print(json.dumps(line), flush=True)
    return 0


def _call(work: Callable[[], None]) -> Callable[[], None]:
    """Capture the work; return what replays it and waits for its end."""
    with torch.no_grad():
        graph = captured(work)
    stream = torch.cuda.current_stream()

    def call() -> None:
        graph.replay()
        stream.synchronize()

    return call


def host_to_host(
    network: Network, count: int, dtype: Any, pixels: str, device: str
) -> tuple[Callable[[], None], Any]:
    """Make what takes random images from page-locked memory to logits in page-locked memory; and these."""
    height, width, channels = network.layer_shapes[0] if not network.is_dense else (1, 1, network.sizes[0])
    net = module_of(network).to(device, dtype=dtype, memory_format=torch.channels_last).eval()
    host = torch.randint(0, 256, (count, height, width, channels), dtype=torch.uint8)
    if pixels == "divided":
        host = host.to(dtype) / 255
    on_gpu = device == "cuda"
    host = host.pin_memory() if on_gpu else host
    images = torch.empty_like(host, device=device, pin_memory=False)
    logits = torch.empty((count, network.classes), dtype=dtype, pin_memory=on_gpu)

    def work() -> None:
        images.copy_(host, non_blocking=True)
        numbers = images.to(dtype).div_(255) if pixels == "uint8" else images
        # Channels last in memory as they are: a view has them first in its shape.
        X = numbers.flatten(1) if network.is_dense else numbers.permute(0, 3, 1, 2)
        logits.copy_(net(X), non_blocking=True)

    return work, logits


if __name__ == "__main__":
    start("torch_latency.py", main)
