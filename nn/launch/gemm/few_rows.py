"""Products of dense layers for a few images, as inference has them (kernels/gemm/few_rows.cu, one_row.cu)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from nn.launch.gemm.product import PLAIN, Epilogue, Product
from nn.launch.work import Compute, Work
from pyrt.arrays import DeviceArray
from pyrt.kernels import Launch, blocks

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels

MOST_ROWS = 32
"""Rows of A that are few."""

_AT_ONCE = 8
"""Rows that share what is read of B."""

_MOST_PRODUCTS = 1 << 24
"""Multiplications up to which more rows than that are few: beyond it, tensor cores are faster."""

_LIGHT = 32 << 20
"""Bytes of B that a device's cache holds; more of them are worth reading as bf16, which are half as many."""

_UNITS = 8
_THREADS = 256

_CHUNK = 1024
"""Inputs that few_rows.cu takes at once; of more, one_row.cu is faster for a single row."""


def takes_few_rows(product: Product, math: str) -> bool:
    """Return whether `FewRows` is the fastest for a product of float32 numbers, in this ``math``."""
    if product.transpose_a or not product.transpose_b or product.D.dtype != np.float32:
        return False
    M, N, K = product.sizes
    few = M <= _AT_ONCE or (M <= MOST_ROWS and M * N * K <= _MOST_PRODUCTS)
    return few and (math != "bf16" or product.B.nbytes <= _LIGHT)


@dataclass(frozen=True)
class FewRows(Work):
    """D = f(alpha A B^T + bias) for few rows; float32.

    If it ``starts_early``, the kernel before must write nothing of B and the bias.
    """

    product: Product
    epilogue: Epilogue = PLAIN
    starts_early: bool = False

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        bias = self.epilogue.bias
        return *self.product.reads, *((bias,) if bias is not None else ())

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return self.product.writes

    @property
    def flops(self) -> int:
        return self.product.flops + 2 * self.product.D.size

    @property
    def products(self) -> tuple[Product, ...]:
        return (self.product,)

    def on_device(self, kernels: Kernels) -> Launch:
        """Raise ValueError for arrays that do not fit."""
        (M, N, K), (D, A, B) = self.product.sizes, (self.product.D, self.product.A, self.product.B)
        self.epilogue.require_fits(self.product)
        alpha, bias, activation = self.epilogue.alpha, self.epilogue.bias, self.epilogue.activation
        starts_early = int(self.starts_early)
        if M == 1 and K > _CHUNK:
            kernel = kernels.kernel("gemm/one_row", "one_row", ACTIVATION=activation)
            return kernel.bind((N,), (_THREADS,), K, alpha, A, B, B.ld, bias, D, starts_early)
        rows = 1 if M == 1 else _AT_ONCE
        kernel = kernels.kernel("gemm/few_rows", "few_rows", ROWS=rows, ACTIVATION=activation)
        grid = blocks(M, rows), blocks(N, _UNITS)
        arguments = M, N, K, alpha, A, A.ld, B, B.ld, bias, D, D.ld
        return kernel.bind(grid, (_THREADS,), *arguments, starts_early)

    def in_numpy(self) -> Compute:
        d, a, b = (array.host_view() for array in (self.product.D, self.product.A, self.product.B))
        return partial(_multiply, d, a, b.T, self.epilogue.alpha, self.epilogue.in_numpy(d))


def _multiply(d: np.ndarray, a: np.ndarray, b: np.ndarray, alpha: float, finish: Compute) -> None:
    np.matmul(a.astype(d.dtype, copy=False), b, out=d)
    np.multiply(d, d.dtype.type(alpha), out=d)
    finish()
