"""The rule for lists of inference on a few images: a dense layer is one kernel.

- A product, and the bias and activation behind it, become one kernel that reads its operands as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nn.launch.gemm.few_rows import FewRows
from nn.launch.gemm.product import Product
from nn.launch.kernels import Kernels
from nn.program.known_components import epilogue_of, may_start_early
from nn.program.operations import Item, Operation
from nn.program.rewrite import Replacement, rewrite


def for_few_images(items: Sequence[Item], kernels: Kernels | None) -> list[Item]:
    """Rewrite a list for these kernels; NumPy's (None) stays as it is."""
    if kernels is None:
        return list(items)
    return rewrite(items, [_FewImages(kernels)], kernels.driver)


@dataclass(frozen=True)
class _FewImages:
    kernels: Kernels

    def __call__(self, rest: Sequence[Item], done: Sequence[Item]) -> Replacement | None:
        first = rest[0]
        if not isinstance(first, Operation) or not isinstance(first.work, Product):
            return None
        product = first.work
        if not self.kernels.takes_few_rows(product):
            return None
        epilogue, count = epilogue_of(product.D, rest[1:2])
        weights = [product.B] if epilogue.bias is None else [product.B, epilogue.bias]
        starts_early = may_start_early(weights, done)
        work = FewRows(product, epilogue, starts_early)
        return Replacement(count, [replace(first, work=work, starts_early=starts_early)])
