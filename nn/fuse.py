"""Rewrites of a step's list for tensor cores: the same results from fewer launches and faster products.

- A product that tensor cores take reads its operands as bf16 terms. Each matrix is split once, before the
  first product that reads it; pixels come as terms right away.
- Bias and activation go into the product before them.

Fusing is a choice by shape: what does not fit stays as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nn.launches import Kernels
from nn.operations import BiasActivation, Compute, Item, Operation, Pixels, Product
from nn.tensor_cores import Terms
from pyrt.kernels import Launch, in_order
from pyrt.memory import DeviceArray


def fuse(items: Sequence[Item], kernels: Kernels | None) -> list[Item]:
    """The list as it runs with these kernels; NumPy's (None) as it is."""
    if kernels is None or not kernels.uses_tensor_cores:
        return list(items)
    rewrite = _Rewrite(kernels)
    rest = list(items)
    while rest:
        count = rewrite.take(rest)
        del rest[:count]
    return rewrite.items


@dataclass(frozen=True)
class _Split:
    """A matrix as terms of which it is ``scale`` times the sum."""

    array: DeviceArray
    terms: Terms
    scale: float = 1.0


class _Rewrite:
    """The new list so far, and which matrices are there as terms."""

    def __init__(self, kernels: Kernels) -> None:
        self.items: list[Item] = []
        self._kernels = kernels
        self._splits: list[_Split] = []

    def take(self, items: Sequence[Item]) -> int:
        """Rewrite the first of the items that are left; how many that were."""
        item, *later = items
        if not isinstance(item, Operation):
            self.items.append(item)
            return 1
        if isinstance(item.what, Pixels) and item.what.exact and self._all_products(item.what.X, later):
            self._pixels(item, item.what)
        elif isinstance(item.what, Product) and self._kernels.prefers_tensor_cores(*_sizes(item.what)):
            return self._product(item, item.what, later)
        else:
            self._append(item)
        return 1

    def _append(self, operation: Operation) -> None:
        """What it writes is no longer there as terms."""
        written = operation.writes
        self._splits = [
            split for split in self._splits if not any(_overlap(split.array, array) for array in written)
        ]
        self.items.append(operation)

    def _all_products(self, X: DeviceArray, later: Sequence[Item]) -> bool:
        """Whether all that read X are products for tensor cores."""
        readers = [
            item.what
            for item in later
            if isinstance(item, Operation) and any(_overlap(X, array) for array in item.reads)
        ]
        return all(
            isinstance(what, Product) and self._kernels.prefers_tensor_cores(*_sizes(what))
            for what in readers
        )

    def _pixels(self, operation: Operation, what: Pixels) -> None:
        terms = Terms.empty(what.X.driver, 1, *what.X.shape)
        self._append(replace(operation, on_device=lambda kernels: what.into(kernels, terms)))
        self._splits.append(_Split(what.X, terms, 1 / what.scale))

    def _product(self, operation: Operation, what: Product, later: Sequence[Item]) -> int:
        A, B = self._as_terms(operation.part, what.A, what.B)
        after = later[0] if later else None
        epilogue = after.what if isinstance(after, Operation) else None
        if isinstance(epilogue, BiasActivation) and _same(epilogue.Z, what.D):
            assert isinstance(after, Operation)
            self._append(_with_epilogue(operation, after, what, epilogue, A, B))
            return 2

        def on_device(kernels: Kernels) -> Launch:
            return _multiply(kernels, what, A, B, None, "identity")

        self._append(replace(operation, on_device=on_device))
        return 1

    def _as_terms(self, part: str, *arrays: DeviceArray) -> list[_Split]:
        """The matrices as terms; those that are not yet are split, in one launch."""
        found = [next((s for s in self._splits if _same(s.array, array)), None) for array in arrays]
        new = {
            index: _Split(
                arrays[index], Terms.empty(arrays[index].driver, self._kernels.terms, *arrays[index].shape)
            )
            for index, split in enumerate(found)
            if split is None
        }
        if new:
            self._append(_split_operation(part, list(new.values())))
            self._splits.extend(new.values())
        return [split or new[index] for index, split in enumerate(found)]


def _split_operation(part: str, splits: Sequence[_Split]) -> Operation:
    def in_numpy() -> Compute:
        return lambda: None  # NumPy's products read the matrices themselves

    return Operation(
        "split operands",
        part,
        reads=tuple(split.array for split in splits),
        writes=tuple(split.terms.array for split in splits),
        flops=sum(split.array.size * split.terms.count for split in splits),
        on_device=lambda kernels: kernels.tensor_cores.split(
            *((split.array, split.terms) for split in splits)
        ),
        in_numpy=in_numpy,
    )


def _with_epilogue(
    product: Operation, after: Operation, what: Product, epilogue: BiasActivation, A: _Split, B: _Split
) -> Operation:
    def in_numpy() -> Compute:
        calls = [product.in_numpy(), after.in_numpy()]

        def compute() -> None:
            for call in calls:
                call()

        return compute

    return Operation(
        product.name,
        product.part,
        reads=(*product.reads, epilogue.b),
        writes=product.writes,
        flops=product.flops + after.flops,
        on_device=lambda kernels: _multiply(kernels, what, A, B, epilogue.b, epilogue.activation),
        in_numpy=in_numpy,
    )


def _multiply(
    kernels: Kernels, what: Product, A: _Split, B: _Split, bias: DeviceArray | None, activation: str
) -> Launch:
    launches = kernels.tensor_cores.multiply(
        what.D,
        A.terms,
        B.terms,
        what.transpose_a,
        what.transpose_b,
        alpha=A.scale * B.scale,
        bias=bias,
        activation=activation,
    )
    return in_order(launches)


def _sizes(what: Product) -> tuple[int, int, int]:
    """M, N, K."""
    M, N = what.D.shape
    return M, N, what.A.shape[0 if what.transpose_a else 1]


def _same(one: DeviceArray, other: DeviceArray) -> bool:
    return (one.pointer, one.shape, one.ld) == (other.pointer, other.shape, other.ld)


def _overlap(one: DeviceArray, other: DeviceArray) -> bool:
    return one.pointer < _end(other) and other.pointer < _end(one)


def _end(array: DeviceArray) -> int:
    rows = array.shape[0] if len(array.shape) == 2 else 1
    elements = (rows - 1) * array.ld + array.shape[-1] if array.size else 0
    return array.pointer + elements * array.dtype.itemsize
