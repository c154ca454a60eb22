"""The matrix product D = op(A) op(B), and what a kernel may do with it before it writes D."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from nn.launch.elementwise import ACTIVATE_IN_PLACE
from nn.launch.work import Compute, Work
from pyrt.arrays import DeviceArray
from pyrt.kernels import Launch

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels


@dataclass(frozen=True)
class Product(Work):
    """D = op(A) op(B); op(A) (M, K), op(B) (K, N), D (M, N), each perhaps a column slice."""

    D: DeviceArray
    A: DeviceArray
    B: DeviceArray
    transpose_a: bool = False
    transpose_b: bool = False

    @property
    def sizes(self) -> tuple[int, int, int]:
        """M, N and K. Raises ValueError where the shapes do not fit."""
        M, K = self.A.shape[::-1] if self.transpose_a else self.A.shape
        depth, N = self.B.shape[::-1] if self.transpose_b else self.B.shape
        if depth != K or self.D.shape != (M, N):
            raise ValueError(
                f"gemm: D {self.D.shape}, A {self.A.shape}{' transposed' if self.transpose_a else ''}, "
                f"B {self.B.shape}{' transposed' if self.transpose_b else ''}"
            )
        return M, N, K

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        return self.A, self.B

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return (self.D,)

    @property
    def flops(self) -> int:
        M, N, K = self.sizes
        return 2 * M * N * K

    @property
    def products(self) -> tuple[Product, ...]:
        return (self,)

    def on_device(self, kernels: Kernels) -> Launch:
        from nn.launch.gemm import gemm

        return gemm(kernels, self)

    def in_numpy(self) -> Compute:
        a, b = self.A.host_view(), self.B.host_view()
        a, b = a.T if self.transpose_a else a, b.T if self.transpose_b else b
        return partial(np.matmul, a, b, out=self.D.host_view())


@dataclass(frozen=True)
class Epilogue:
    """What becomes of a product P before it is written: D = f(alpha P + beta C + bias).

    C (M, N) defaults to D itself; with beta 0 it is not read. ``bias`` is (N,).
    """

    alpha: float = 1.0
    beta: float = 0.0
    C: DeviceArray | None = None
    bias: DeviceArray | None = None
    activation: str = "identity"

    def require_fits(self, product: Product) -> None:
        """Raise ValueError unless its arrays fit the product."""
        M, N, _ = product.sizes
        for name, array, shape in (("C", self.C, (M, N)), ("bias", self.bias, (N,))):
            if array is not None and array.shape != shape:
                raise ValueError(f"gemm: {name} {array.shape} is not {shape}")

    def in_numpy(self, d: np.ndarray) -> Compute:
        """Bind what turns alpha P, in ``d`` (M, N), into D; of beta 0 alone."""
        bias = self.bias.host_view() if self.bias is not None else None
        activate = ACTIVATE_IN_PLACE[self.activation]

        def compute() -> None:
            if bias is not None:
                np.add(d, bias, out=d)
            activate(d)

        return compute


PLAIN = Epilogue()
"""D = P."""
