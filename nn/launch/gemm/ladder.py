"""The rungs of the matrix product without tensor cores: their files in kernels/gemm, and launch shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nn.launch.gemm.product import PLAIN, Epilogue, Product
from nn.launch.shapes import Block, Grid
from pyrt.kernels import Launch, blocks

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels


class _Rung(NamedTuple):
    file: str
    block: Block
    tile: tuple[int, int]
    """Rows and columns of the result that a block makes."""


_RUNGS = {
    "naive": _Rung("gemm/ladder", (32, 8), (8, 32)),
    "shared": _Rung("gemm/ladder", (32, 32), (32, 32)),
    "register": _Rung("gemm/ladder", (16, 4), (16, 64)),
    **dict.fromkeys(("block", "vector", "warp", "tiled"), _Rung("gemm/thread_tiles", (128,), (64, 64))),
}


def ladder_shape(version: str, M: int, N: int) -> tuple[Grid, Block]:
    """Return grid and block of a rung for an M x N result."""
    _, block, (rows, columns) = _RUNGS[version]
    return (blocks(M, rows), blocks(N, columns)), block


def bind_ladder(kernels: Kernels, version: str, product: Product, epilogue: Epilogue = PLAIN) -> Launch:
    """Bind a rung; it knows no bias and no activation."""
    epilogue.require_fits(product)
    if epilogue.bias is not None or epilogue.activation != "identity":
        raise ValueError(f"gemm: {version} adds no bias and has no activation")
    M, N, K = product.sizes
    D, A, B, C = product.D, product.A, product.B, epilogue.C or product.D
    kernel = kernels.kernel(
        _RUNGS[version].file,
        f"gemm_{version}",
        TRANSPOSE_A=int(product.transpose_a),
        TRANSPOSE_B=int(product.transpose_b),
    )
    arrays = (epilogue.alpha, A, A.ld, B, B.ld, epilogue.beta, C, C.ld, D, D.ld)
    return kernel.bind(*ladder_shape(version, M, N), M, N, K, *arrays)
