"""A step of a deep network in PyTorch over several GPUs, a JSON line for each way:

DDP               DistributedDataParallel: each GPU a part of the batch
tensor parallel   torch.distributed.tensor: weights by rows, then by columns, and so on
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.baselines.torch_step import Place, find_place
from bench.program import start
from bench.timing import Times
from pyrt.arguments import Parser
from pyrt.errors import UserError

try:
    import torch
    import torch.distributed as dist
except ImportError:
    torch = None

INPUTS, CLASSES = 784, 10
RATE = 1e-4
WARM_UP, ROUNDS, STEPS = 3, 10, 20
"""Rounds that do not count and that do, and steps of each."""


def network(hidden: Sequence[int], place: Place) -> Any:
    """Linear layers with sigmoids between them."""
    layers: list[Any] = []
    for inputs, units in pairwise((INPUTS, *hidden, CLASSES)):
        layers += [torch.nn.Linear(inputs, units), torch.nn.Sigmoid()]
    return torch.nn.Sequential(*layers[:-1]).to(place.device)


def tensor_parallel(net: Any, place: Place) -> Any:
    """Split the layers by rows and by columns in turn; all ranks get the last layer's outputs."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    linear = list(range(0, len(net), 2))
    # What PyTorch calls column-wise are rows of its weights (units, inputs).
    styles = [ColwiseParallel() if place_ % 2 == 0 else RowwiseParallel() for place_ in range(len(linear))]
    if len(linear) % 2:
        styles[-1] = ColwiseParallel(output_layouts=Replicate())
    mesh = init_device_mesh("cuda", (place.ranks,))
    return parallelize_module(net, mesh, {str(at): style for at, style in zip(linear, styles, strict=True)})


def times(net: Any, batch: int, place: Place) -> Times:
    """Time a step with so many samples on this GPU."""
    X = torch.rand(batch, INPUTS, device=place.device)
    labels = torch.randint(CLASSES, (batch,), device=place.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    seconds = []
    for number in range(WARM_UP + ROUNDS):
        started = time.perf_counter()
        for _ in range(STEPS):
            optimizer.zero_grad(set_to_none=True)
            torch.nn.functional.cross_entropy(net(X), labels).backward()
            optimizer.step()
        place.wait()
        if number >= WARM_UP:
            seconds.append((time.perf_counter() - started) / STEPS)
    return Times.of(seconds)


def say(mode: str, taken: Times, place: Place) -> None:
    if place.rank == 0:
        print(json.dumps({"mode": f"PyTorch {torch.__version__}, {mode}", "us": [*vars(taken).values()]}))


def main(arguments: Sequence[str]) -> int:
    parser = Parser("torch_tensor_parallel.py", __doc__)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--hidden", default="4096,4096")
    parser.add_argument("--batch", type=int, default=1024, help="over all GPUs")
    wanted = parser.parse_args(arguments)
    if wanted.gpus < 2 or wanted.batch % wanted.gpus:
        raise UserError("--gpus: must be two or more, and --batch a multiple of them")
    hidden = [int(size) for size in wanted.hidden.split(",")]
    place = find_place(wanted.gpus)
    torch.manual_seed(0)
    parallel = torch.nn.parallel.DistributedDataParallel(
        network(hidden, place), device_ids=[place.device.index], gradient_as_bucket_view=True
    )
    say("DDP", times(parallel, wanted.batch // place.ranks, place), place)
    del parallel
    torch.manual_seed(0)  # every GPU has the same batch
    split = tensor_parallel(network(hidden, place), place)
    say("tensor parallel", times(split, wanted.batch, place), place)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    start("torch_tensor_parallel.py", main)
