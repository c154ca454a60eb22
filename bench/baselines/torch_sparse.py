"""Products of pruned layers in PyTorch: cuSPARSE's in CSR, and cuBLAS's of the dense weights.

    python3 bench/baselines/torch_sparse.py fc6 fc8

A JSON line for each layer and batch of bench/sparse.py and each way: microseconds of one product in a CUDA
graph of many, on copies of the weights in turns that no cache holds (null where there would be too many), and
on one copy.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.baselines.torch_nets import captured
from bench.program import start
from bench.sparse import BATCHES, BEYOND_CACHES, LAYERS, ROUNDS, Layer, copies
from bench.timing import Times, wall
from pyrt.arguments import Parser
from pyrt.errors import UserError

try:
    import torch
except ImportError:
    torch = None

AT_LEAST = 20
"""Products in a graph."""

PER_REPETITION = 10
"""Graphs, one behind the other, that are timed together."""


def main(arguments: Sequence[str]) -> int:
    parser = Parser("torch_sparse.py", __doc__)
    parser.add_argument("names", nargs="*", metavar="LAYER", help="layers (default: all)")
    names = parser.parse_args(arguments).names or LAYERS
    if torch is None or not torch.cuda.is_available():
        raise UserError("needs PyTorch and an NVIDIA GPU")
    torch.set_grad_enabled(False)
    torch.backends.cuda.matmul.allow_tf32 = False
    for name in names:
        for batch in BATCHES:
            for way, nbytes, products in ways(LAYERS[name], batch, "cuda"):
                memory = _times(products) if len(products) * nbytes >= BEYOND_CACHES else None
                line = {"layer": name, "batch": batch, "way": way, **_words("memory", memory)}
                print(json.dumps({**line, **_words("one", _times(products[:1]))}), flush=True)
            torch.cuda.empty_cache()
    return 0


Products = list[Callable[[], Any]]
"""The same product with each copy of the weights."""


def ways(layer: Layer, batch: int, device: str) -> Iterator[tuple[str, int, Products]]:
    """Yield each way: its name, the bytes of its weights, and its products."""
    W = torch.randn(layer.units, layer.inputs, device=device)
    W *= torch.rand(W.shape, device=device) < layer.kept
    X = torch.randn(batch, layer.inputs, device=device)
    sparse = W.to_sparse_csr()
    crow, column = sparse.crow_indices().int(), sparse.col_indices().int()
    values, nbytes = sparse.values(), 4 * crow.numel() + 8 * column.numel()
    X_sparse = X.flatten() if batch == 1 else X.t().contiguous()
    matrices = [
        torch.sparse_csr_tensor(crow.clone(), column.clone(), values.clone(), W.shape)
        for _ in range(copies(nbytes))
    ]
    yield "cuSPARSE, CSR", nbytes, [_product(matrix, X_sparse) for matrix in matrices]
    for name, dtype in (("float32", torch.float32), ("bf16", torch.bfloat16)):
        nbytes, inputs = W.numel() * dtype.itemsize, X.to(dtype).t()
        weights = [W.to(dtype, copy=True) for _ in range(copies(nbytes))]
        yield f"cuBLAS, {name}", nbytes, [_product(matrix, inputs) for matrix in weights]


def _product(matrix: Any, X: Any) -> Callable[[], Any]:
    return lambda: matrix @ X


def _times(products: Products) -> Times:
    """Time products that run in turns in a CUDA graph."""
    rounds = math.ceil(AT_LEAST / len(products))

    def work() -> None:
        for product in products * rounds:
            product()

    graph = captured(work)

    def several() -> None:
        for _ in range(PER_REPETITION):
            graph.replay()

    count = PER_REPETITION * rounds * len(products)
    return Times.of(wall(several, torch.cuda.synchronize, count, ROUNDS))


def _words(name: str, times: Times | None) -> dict[str, object]:
    if times is None:
        return {name: None, f"{name}_spread": None}
    return {name: times.median, f"{name}_spread": times.spread}


if __name__ == "__main__":
    start("torch_sparse.py", main)
