"""Products of dense layers on the tensor cores of sm_90, with all that follows (kernels/gemm/layer.cu)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nn.launch.gemm.components import COMPONENTS, Components, Split, reads_tf32, split
from nn.launch.gemm.product import PLAIN, Epilogue, Product
from nn.launch.gemm.wgmma import ComponentProduct, Tiling
from nn.launch.work import Compute
from nn.model import reference
from pyrt.arrays import DeviceArray, aligned
from pyrt.kernels import Argument, Launch, in_order

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels


_MEETING = 8192
"""Bytes of shared memory in which the warps of the largest tile leave the sums of their columns."""


_FORWARD_US, _BACK_US = 0.012, 0.055
"""Measured on an H200: microseconds for each element of a thread in the epilogue."""


@dataclass(frozen=True)
class Left:
    """In what form a product leaves its result D (M, N): float32, bf16 components, or both."""

    components: Components | None = None
    as_float32: bool = True


@dataclass(frozen=True)
class LayerProduct(ComponentProduct):
    """A product from components, with the activation forward or back, and what is left of the result.

    Forward (B transposed) D = f(alpha P + bias), by the epilogue's bias and activation. On the way back
    D = alpha P f'(made), with f the epilogue's activation and ``made`` = f(Z) as components; and
    ``sums`` (N,) = the sums of D's columns.
    """

    left: Left = Left()
    made: Components | None = None
    sums: DeviceArray | None = None

    def end_us(self, tiling: Tiling) -> float:
        # The measured times of tiles with more components contain the epilogue already.
        each = _FORWARD_US if self.is_forward else _BACK_US
        return each * tiling.elements if self.A.count == self.B.count == 1 else 0.0

    @property
    def static_shared(self) -> int:
        return _MEETING if not self.is_forward else 0

    @property
    def is_forward(self) -> bool:
        return self.made is None

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        return *super().reads, *((self.made.numbers,) if self.made is not None else ())

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return tuple(one.numbers if isinstance(one, Components) else one for one in self.results)

    @property
    def results(self) -> tuple[DeviceArray | Components, ...]:
        left, D, sums = self.left, self.product.D, self.sums
        return (
            *((D,) if left.as_float32 else ()),
            *((left.components,) if left.components is not None else ()),
            *((sums,) if sums is not None else ()),
        )

    @property
    def flops(self) -> int:
        size, split_into = self.product.D.size, self.B.count if self.left.components is not None else 0
        through = 2 if self.is_forward else 3 + (1 if self.sums is not None else 0)
        return self.product.flops + size * (through + split_into)

    def workspace(self, kernels: Kernels) -> int:
        return aligned(super().workspace(kernels)) + 4 * self._partial_rows(kernels) * self._columns

    @property
    def _columns(self) -> int:
        return self.product.D.shape[1]

    def _partial_rows(self, kernels: Kernels) -> int:
        """Count the tiles above each other, each of which leaves the sums of its columns."""
        return self.tiles(kernels.driver)[0] if self.sums is not None else 0

    def on_device(self, kernels: Kernels) -> Launch:
        self._require_fits()
        constants: dict[str, str | int] = {
            "REAL": "float",
            "NUMBER": self.A.number,
            "TRANSPOSE_A": 0,
            "TRANSPOSE_B": int(self.is_forward),
            "COMPONENTS": f"{self.A.count}{self.B.count}",
            "ACTIVATION": self.epilogue.activation,
        }
        D, epilogue = self.product.D, self.epilogue
        result = D if self.left.as_float32 else None
        arguments = (
            *(epilogue.alpha, epilogue.bias, result, D.ld),
            *_matrix(self.left.components),
            *_matrix(self.made),
            *self._sums(kernels),
        )
        return self.bind(kernels, "gemm/layer", "layer", constants, arguments)

    def _sums(self, kernels: Kernels) -> tuple[Argument, ...]:
        """Return room for the sums of each tile, the sums, and a counter for each column of tiles."""
        if self.sums is None:
            return None, None, None
        partials = kernels.workspace((self._partial_rows(kernels), self._columns), np.float32)
        counters = np.zeros(self.tiles(kernels.driver)[1], np.int32)
        return partials, self.sums, DeviceArray.from_host(kernels.driver, counters)

    def _require_fits(self) -> None:
        """Raise ValueError for arrays that do not fit, or for a product that has no such kernel."""
        product, epilogue = self.product, self.epilogue
        epilogue.require_fits(product)
        if product.transpose_a or product.transpose_b != self.is_forward or epilogue.beta:
            raise ValueError("layer: forward it is A B^T, on the way back A B, with beta 0")
        for name, matrix in (("components", self.left.components), ("made", self.made)):
            if matrix is None:
                continue
            if (matrix.rows, matrix.columns) != product.D.shape or matrix.count != self.B.count:
                raise ValueError(
                    f"layer: {name} are {matrix.count} of {matrix.rows} x {matrix.columns}, not "
                    f"{self.B.count} of {product.D.shape}"
                )
            if matrix.ld % 2 or matrix.distance % 2 or matrix.ld < self._columns + self._columns % 2:
                raise ValueError(f"layer: rows of {name} hold no whole pairs")
        if self.sums is not None and (self.is_forward or self.sums.shape != (self._columns,)):
            raise ValueError(f"layer: sums {self.sums.shape} of the columns of {product.D.shape}")

    def in_numpy(self) -> Compute:
        d, made, sums, left = self.product.D.host_view(), self.made, self.sums, self.left.components
        compute_product = super().in_numpy() if self.is_forward else self._product_in_numpy()
        _, derivative = reference.ACTIVATIONS[self.epilogue.activation]
        total = sums.host_view() if sums is not None else None

        def compute() -> None:
            compute_product()
            if made is not None:
                np.multiply(d, derivative(made.to_float32()), out=d)
            if total is not None:
                np.sum(d, axis=0, out=total)
            if left is not None:
                left.numbers.host_view()[:] = split(d, left.count).reshape(-1, d.shape[1])

        return compute

    def _product_in_numpy(self) -> Compute:
        plain = ComponentProduct(self.product, self.A, self.B, Epilogue(alpha=self.epilogue.alpha))
        return plain.in_numpy()


def _matrix(components: Components | None) -> tuple[Argument, ...]:
    if components is None:
        return None, 0, 0
    return components.array, components.ld, components.distance


def component_product(
    product: Product, A: Components, B: Components, epilogue: Epilogue = PLAIN, starts_early: bool = False
) -> ComponentProduct:
    """Make a product from components, by the kernel that has its epilogue."""
    kind = ComponentProduct if epilogue.activation == "identity" else LayerProduct
    return kind(product, A, B, epilogue, starts_early)


def bind_split(kernels: Kernels, product: Product, epilogue: Epilogue = PLAIN) -> Launch:
    """Bind a product by itself: operands are split first, but TF32 along k, which can be read as it is."""
    driver, layout = kernels.driver, (product.transpose_a, product.transpose_b)
    if (
        kernels.components == COMPONENTS["tf32"]
        and layout == (False, True)
        and epilogue.activation == "identity"
        and all(map(reads_tf32, product.reads))
    ):
        a, b = (Components.tf32(X) for X in product.reads)
        return component_product(product, a, b, epilogue).on_device(kernels)
    a, b = (Components.empty(driver, kernels.components, X.shape[0], X.shape[1]) for X in product.reads)
    launches = Split(((product.A, a), (product.B, b))), component_product(product, a, b, epilogue)
    return in_order([work.on_device(kernels) for work in launches])
