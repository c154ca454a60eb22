"""Rules for tensor cores that read operands as they are (kernels/gemm/mma.cu).

- Bias and activation go into the product before them.
- The gradient of a bias, the sums of dZ, is made by the product that computes the gradient of the weights
  from dZ; if that is split into panels, by several products, each its part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from nn.launch.column_sums import ColumnSums
from nn.launch.elementwise import BiasActivation
from nn.launch.gemm.mma import bind_mma
from nn.launch.gemm.product import Epilogue, Product
from nn.launch.kernels import Kernels
from nn.launch.work import Fused
from nn.program.operations import BucketReady, Item, Operation
from nn.program.rewrite import Replacement, columns_within, overlap, reads, same, writes
from pyrt.arrays import DeviceArray


@dataclass(frozen=True)
class FuseEpilogue:
    """A product, then bias and activation of its result: one kernel."""

    kernels: Kernels

    def __call__(self, rest: Sequence[Item], done: Sequence[Item]) -> Replacement | None:
        match rest[:2]:
            case [
                Operation(work=Product() as product) as first,
                Operation(work=BiasActivation() as after),
            ] if same(after.Z, product.D) and self._takes_activation(product):
                epilogue = Epilogue(bias=after.b, activation=after.activation)
                work = Fused(
                    [product, after],
                    (*product.reads, after.b),
                    product.writes,
                    partial(bind_mma, product=product, epilogue=epilogue),
                )
                return Replacement(2, [replace(first, work=work)])
        return None

    def _takes_activation(self, product: Product) -> bool:
        """Only of A B' there are kernels with an activation."""
        is_nt = not product.transpose_a and product.transpose_b
        return is_nt and self.kernels.choose(product) == "mma"


@dataclass(frozen=True)
class FuseColumnSums:
    """Column sums that later products, together, can make while they read the same matrix."""

    kernels: Kernels

    def __call__(self, rest: Sequence[Item], done: Sequence[Item]) -> Replacement | None:
        first, *later = rest
        if not isinstance(first, Operation) or not isinstance(first.work, ColumnSums):
            return None
        makers = self._makers(first.work, later)
        if not makers:
            return None
        changed = [
            _with_sums(item, makers[place]) if place in makers else item for place, item in enumerate(later)
        ]
        last = max(makers) + 1
        return Replacement(1 + last, [], changed[:last])

    def _makers(self, work: ColumnSums, later: Sequence[Item]) -> dict[int, DeviceArray]:
        """Find the products that can make the sums, by their places among the later ones, each with its part.

        Empty if they cannot make all sums before an item uses these or changes what is summed up.
        """
        X, sums = work.X, work.sums
        makers: dict[int, DeviceArray] = {}
        made = 0  # of the columns of X, from the first on
        for place, item in enumerate(later):
            if _uses(item, sums) or writes(item, X):
                return {}
            columns = self._summed_columns(item, X)
            if columns is not None and columns[0] == made:
                makers[place] = sums.rows(*columns)
                made = columns[1]
            if made == X.shape[-1]:
                return makers
        return {}

    def _summed_columns(self, item: Item, X: DeviceArray) -> tuple[int, int] | None:
        """Find the columns of X whose sums the item could make: the rows of its product's left operand."""
        work = item.work if isinstance(item, Operation) else None
        if not isinstance(work, Product) or not work.transpose_a or self.kernels.choose(work) != "mma":
            return None
        return columns_within(work.A, X)


def _uses(item: Item, sums: DeviceArray) -> bool:
    if isinstance(item, BucketReady):  # sums may be among what leaves
        return item.leaves is None or overlap(item.leaves, sums)
    return isinstance(item, Operation) and (reads(item, sums) or writes(item, sums))


def _with_sums(item: Item, sums: DeviceArray) -> Operation:
    assert isinstance(item, Operation) and isinstance(item.work, Product)
    product = item.work
    work = Fused(
        [product, ColumnSums(product.A, sums)],
        product.reads,
        (*product.writes, sums),
        partial(bind_mma, product=product, sums=sums),
    )
    return replace(item, work=work)
