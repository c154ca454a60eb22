"""NCCL's all-reduce through PyTorch, in CUDA graphs, one process a GPU: a JSON line for each size.

Multicast of the links (NVLS) is off, as in what it is compared with.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.baselines.torch_step import Place, find_place
from bench.exchange import repetitions
from bench.program import WrongResult, start
from bench.timing import ROUNDS, WARM_UP, Times
from pyrt.arguments import Parser

try:
    import torch
    import torch.distributed as dist
except ImportError:
    torch = None


def all_reduce_times(place: Place, nbytes: int) -> Times:
    """Time a sum of so many bytes of float32, after a sum that is checked."""
    x = torch.full((nbytes // 4,), place.rank + 1.0, device=place.device)
    dist.all_reduce(x)
    if not bool((x == place.ranks * (place.ranks + 1) / 2).all()):
        raise WrongResult("NCCL's sum is wrong")
    x = torch.randn(nbytes // 4, device=place.device) * 1e-30  # sums of sums stay finite
    count = repetitions(nbytes)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(count):
            dist.all_reduce(x)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    seconds = []
    for number in range(WARM_UP + ROUNDS):
        x.mul_(1e-30)
        begin.record()
        graph.replay()
        end.record()
        place.wait()
        if number >= WARM_UP:
            seconds.append(1e-3 * begin.elapsed_time(end) / count)
    return Times.of(seconds)


def main(arguments: Sequence[str]) -> int:
    parser = Parser("nccl.py", __doc__)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--bytes", type=int, nargs="+", default=[1 << 20])
    wanted = parser.parse_args(arguments)
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    place = find_place(wanted.gpus)
    for nbytes in wanted.bytes:
        times = all_reduce_times(place, nbytes)
        if place.rank == 0:
            print(json.dumps({"bytes": nbytes, "us": [*vars(times).values()]}), flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    start("nccl.py", main)
