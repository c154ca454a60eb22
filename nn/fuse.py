"""Rewrites of a step's list for tensor cores: the same results from fewer launches and faster products.

- A product that tensor cores take reads its operands as bf16 terms. Each matrix is split once, before the
  first product that reads it; pixels come as terms right away, and those of weights are kept by the update.
- Bias and activation go into the product before them.
- From the hidden layer below a narrow output layer to that hidden layer's gradient is one kernel, and so are
  the output layer's gradients.
- A product that reads nothing of what the operation before it writes need not wait for it.

Fusing is a choice by shape: what does not fit stays as it was. Where tensor cores read operands as they are,
the list is that of nn/fuse_arrays.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nn.fuse_arrays import fuse_arrays
from nn.launches import Kernels
from nn.operations import (
    BiasActivation,
    Compute,
    Item,
    Operation,
    Pixels,
    Product,
    StartMove,
    SumGradients,
    charged,
)
from nn.patterns import (
    NarrowEnd,
    columns_within,
    match_narrow_end,
    merged,
    narrow_end_operations,
    overlap,
    product_sizes,
    same,
)
from nn.tensor_cores import COLUMN_STEP, Terms, TermsPool, products
from pyrt.kernels import Launch
from pyrt.memory import DeviceArray


def fuse(
    items: Sequence[Item],
    kernels: Kernels | None,
    pool: TermsPool,
    known: Sequence[tuple[DeviceArray, Terms]] = (),
) -> list[Item]:
    """The list as it runs with these kernels; NumPy's (None) as it is.

    ``known`` are matrices that are there as terms when the step begins; other terms come from the pool.
    """
    if kernels is None or not kernels.uses_tensor_cores:
        return list(items)
    if not kernels.uses_terms:
        return fuse_arrays(items, kernels)
    rewrite = _Rewrite(kernels, pool, [_Split(array, terms) for array, terms in known])
    rest = list(items)
    while rest:
        with charged(kernels.library.driver, rest[0]):
            count = rewrite.take(rest)
        del rest[:count]
    return rewrite.items


@dataclass(frozen=True)
class _Split:
    """A matrix as terms of which it is ``scale`` times the sum."""

    array: DeviceArray
    terms: Terms
    scale: float = 1.0

    def of(self, array: DeviceArray) -> _Split | None:
        """The terms of this array, or of a view of some of its columns."""
        if same(array, self.array):
            return self
        columns = columns_within(array, self.array)
        if columns is None or columns[0] % COLUMN_STEP:
            return None
        return replace(self, array=array, terms=self.terms.some_columns(*columns))


class _Rewrite:
    """The new list so far, and which matrices are there as terms."""

    def __init__(self, kernels: Kernels, pool: TermsPool, known: list[_Split]) -> None:
        self.items: list[Item] = []
        self._take_terms = pool.of_a_list()
        self._kernels = kernels
        self._splits = known

    def take(self, items: Sequence[Item]) -> int:
        """Rewrite the first of the items that are left; how many that were."""
        item, *later = items
        if not isinstance(item, Operation):
            if isinstance(item, StartMove):
                self._forget([item.target])
            self.items.append(item)
            return 1
        if (end := match_narrow_end(items)) is not None and self._fits(end):
            self._narrow_end(end, items)
            return NarrowEnd.LENGTH
        if isinstance(item.what, Pixels) and item.what.exact and self._all_products(item.what.X, later):
            self._pixels(item, item.what)
        elif isinstance(item.what, Product) and self._kernels.prefers_terms(*product_sizes(item.what)):
            return self._product(item, item.what, later)
        else:
            self._append(item)
        return 1

    def _append(self, operation: Operation) -> None:
        """What it writes is no longer there as terms."""
        self._forget(operation.writes)
        self.items.append(operation)

    def _forget(self, written: Sequence[DeviceArray]) -> None:
        """Terms of matrices that are written over."""
        self._splits = [
            split for split in self._splits if not any(overlap(split.array, array) for array in written)
        ]

    def _all_products(self, X: DeviceArray, later: Sequence[Item]) -> bool:
        """Whether all that read X are products of terms."""
        if any(isinstance(item, StartMove) and overlap(X, item.source) for item in later):
            return False
        readers = [
            item.what
            for item in later
            if isinstance(item, Operation) and any(overlap(X, array) for array in item.reads)
        ]
        return all(
            isinstance(what, Product) and self._kernels.prefers_terms(*product_sizes(what))
            for what in readers
        )

    def _pixels(self, operation: Operation, what: Pixels) -> None:
        terms = self._take_terms(1, *what.X.shape)
        self._forget(operation.writes)
        writes = tuple(terms.numbers if array is what.X else array for array in operation.writes)
        self._append(replace(operation, writes=writes, on_device=lambda kernels: what.into(kernels, terms)))
        self._splits.append(_Split(what.X, terms, 1 / what.scale))

    def _fits(self, end: NarrowEnd) -> bool:
        classes, hidden = end.logits.B.shape
        return self._kernels.prefers_narrow_head(hidden, classes)

    def _narrow_end(self, end: NarrowEnd, items: Sequence[Item]) -> None:
        dZ, later = end.below.dA, items[NarrowEnd.LENGTH :]
        terms = None
        if self._all_products(dZ, later):
            terms = self._take_terms(self._kernels.terms, *dZ.shape)
        for operation in narrow_end_operations(end, items, terms):
            self._append(operation)
        if terms is not None:
            self._splits.append(_Split(dZ, terms))
        self.items += [item for item in items[: NarrowEnd.LENGTH] if not isinstance(item, Operation)]

    def _product(self, operation: Operation, what: Product, later: Sequence[Item]) -> int:
        A, B = self._as_terms(operation, what.A, what.B)
        reads = A.terms.numbers, B.terms.numbers
        overtakes = self._may_overtake(reads)
        operation = replace(
            operation,
            reads=reads,
            tensor_flops=products(A.terms.count, B.terms.count) * operation.flops,
            on_device=lambda kernels: _multiply(kernels, what, A, B, overtakes),
        )
        after, taken = later[0] if later else None, 1
        epilogue = after.what if isinstance(after, Operation) else None
        if isinstance(epilogue, BiasActivation) and same(epilogue.Z, what.D):
            assert isinstance(after, Operation)
            bias, activation = epilogue.b, epilogue.activation
            operation = merged(
                operation.name,
                [operation, after],
                (*reads, bias),
                operation.writes,
                lambda kernels: _multiply(kernels, what, A, B, overtakes, bias, activation),
            )
            taken = 2
        self._append(replace(operation, overtakes=overtakes))
        return taken

    def _may_overtake(self, reads: Sequence[DeviceArray]) -> bool:
        """Whether what reads these alone may begin beside the last operation so far.

        What an exchange queues in between writes nothing that the rest of a step reads; a move does.
        """
        before = next((item for item in reversed(self.items) if not isinstance(item, SumGradients)), None)
        if not isinstance(before, Operation) or before.overtakes:
            return False
        return not any(overlap(array, written) for array in reads for written in before.writes)

    def _as_terms(self, reader: Operation, *arrays: DeviceArray) -> list[_Split]:
        """The matrices as terms; those that are not yet are split, in one launch."""
        found = [self._find(array) for array in arrays]
        new = {
            index: _Split(arrays[index], self._take_terms(self._kernels.terms, *arrays[index].shape))
            for index, split in enumerate(found)
            if split is None
        }
        if new:
            self._append(_split_operation(reader, list(new.values())))
            self._splits.extend(new.values())
        return [split or new[index] for index, split in enumerate(found)]

    def _find(self, array: DeviceArray) -> _Split | None:
        """The array, if it is there as terms."""
        views = (split.of(array) for split in self._splits)
        return next((view for view in views if view is not None), None)


def _split_operation(reader: Operation, splits: Sequence[_Split]) -> Operation:
    """For the product that reads them."""

    def in_numpy() -> Compute:
        return lambda: None  # NumPy's products read the matrices themselves

    return Operation(
        "split operands",
        reader.part,
        reads=tuple(split.array for split in splits),
        writes=tuple(split.terms.numbers for split in splits),
        flops=sum(split.array.size * split.terms.count for split in splits),
        on_device=lambda kernels: kernels.tensor_cores.split(
            *((split.array, split.terms) for split in splits)
        ),
        in_numpy=in_numpy,
        layer=reader.layer,
    )


def _multiply(
    kernels: Kernels,
    what: Product,
    A: _Split,
    B: _Split,
    overtakes: bool,
    bias: DeviceArray | None = None,
    activation: str = "identity",
) -> Launch:
    return kernels.tensor_cores.multiply(
        what.D,
        A.terms,
        B.terms,
        what.transpose_a,
        what.transpose_b,
        alpha=A.scale * B.scale,
        bias=bias,
        activation=activation,
        overtakes=overtakes,
    )
