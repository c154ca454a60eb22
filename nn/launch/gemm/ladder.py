"""The rungs of the matrix product without tensor cores (kernels/gemm/ladder.cu): launch shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nn.launch.gemm.product import PLAIN, Epilogue, Product
from nn.launch.shapes import Block, Grid
from pyrt.kernels import Launch, blocks

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels

_BLOCKS: dict[str, Block] = {
    "naive": (32, 8),
    "shared": (32, 32),
    "register": (16, 4),
    **dict.fromkeys(("block", "vector", "warp", "tiled"), (128,)),
}
_TILES = {
    "naive": (8, 32),
    "shared": (32, 32),
    "register": (16, 64),
    **dict.fromkeys(("block", "vector", "warp", "tiled"), (64, 64)),
}


def ladder_shape(version: str, M: int, N: int) -> tuple[Grid, Block]:
    """Return grid and block of a rung for an M x N result."""
    rows, columns = _TILES[version]
    return (blocks(M, rows), blocks(N, columns)), _BLOCKS[version]


def bind_ladder(kernels: Kernels, version: str, product: Product, epilogue: Epilogue = PLAIN) -> Launch:
    """Bind a rung; it knows no bias and no activation."""
    epilogue.require_fits(product)
    if epilogue.bias is not None or epilogue.activation != "identity":
        raise ValueError(f"gemm: {version} adds no bias and has no activation")
    M, N, K = product.sizes
    D, A, B, C = product.D, product.A, product.B, epilogue.C or product.D
    kernel = kernels.kernel(
        "gemm/ladder",
        f"gemm_{version}",
        TRANSPOSE_A=int(product.transpose_a),
        TRANSPOSE_B=int(product.transpose_b),
    )
    arrays = (epilogue.alpha, A, A.ld, B, B.ld, epilogue.beta, C, C.ld, D, D.ld)
    return kernel.bind(*ladder_shape(version, M, N), M, N, K, *arrays)
