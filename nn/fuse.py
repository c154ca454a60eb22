"""Rewrites of a step's list for tensor cores: the same results from fewer launches and faster products.

- A product that tensor cores take reads its operands as bf16 terms. Each matrix is split once, before the
  first product that reads it; pixels come as terms right away, and those of weights are kept by the update.
- Bias and activation go into the product before them.
- From the hidden layer below a narrow output layer to that hidden layer's gradient is one kernel, and so are
  the output layer's gradients.

Fusing is a choice by shape: what does not fit stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from nn.launches import Kernels
from nn.narrow_head import narrow_head_partials
from nn.operations import (
    ActivationBackward,
    BiasActivation,
    ColumnSums,
    Compute,
    Head,
    Item,
    Operation,
    Pixels,
    Product,
    SumGradients,
)
from nn.tensor_cores import COLUMN_STEP, Terms, TermsPool, products
from pyrt.kernels import Launch, in_order
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
    rewrite = _Rewrite(kernels, pool, [_Split(array, terms) for array, terms in known])
    rest = list(items)
    while rest:
        count = rewrite.take(rest)
        del rest[:count]
    return rewrite.items


@dataclass(frozen=True)
class NarrowEnd:
    """The operations from the last hidden layer on, in the order in which a step has them, and a bucket."""

    LENGTH = 9

    logits: Product
    head: Head
    loss: ColumnSums
    db: ColumnSums
    dA: Product
    below: ActivationBackward
    dW: Product
    db_below: ColumnSums


def match_narrow_end(items: Sequence[Item]) -> NarrowEnd | None:
    """The end of the network, if these items begin with it: one bucket, and no bias in between."""
    first = items[: NarrowEnd.LENGTH]
    match [item.what if isinstance(item, Operation) else item for item in first]:
        case [
            Product() as logits,
            Head() as head,
            ColumnSums() as loss,
            ColumnSums() as db,
            Product() as dA,
            ActivationBackward() as below,
            Product() as dW,
            SumGradients(),
            ColumnSums() as db_below,
        ] if (
            all(_same(array, head.Z) for array in (logits.D, db.X, dA.A, dW.A))
            and all(_same(array, dA.D) for array in (below.dA, db_below.X))
            and all(_same(array, logits.A) for array in (below.A, dW.B))
            and _same(dA.B, logits.B)
            and loss.X.pointer == head.losses.pointer
        ):
            return NarrowEnd(logits, head, loss, db, dA, below, dW, db_below)
    return None


@dataclass(frozen=True)
class _Split:
    """A matrix as terms of which it is ``scale`` times the sum."""

    array: DeviceArray
    terms: Terms
    scale: float = 1.0

    def of(self, array: DeviceArray) -> _Split | None:
        """The terms of this array, or of a view of some of its columns."""
        if _same(array, self.array):
            return self
        start = (array.pointer - self.array.pointer) // self.array.dtype.itemsize
        stop = start + array.shape[-1]
        alike = array.ld == self.array.ld and array.shape[0] == self.array.shape[0]
        if not alike or start % COLUMN_STEP or not 0 <= start <= stop <= self.array.shape[-1]:
            return None
        return replace(self, array=array, terms=self.terms.some_columns(start, stop))


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
            self.items.append(item)
            return 1
        if (end := match_narrow_end(items)) is not None and self._fits(end):
            self._narrow_end(end, items)
            return NarrowEnd.LENGTH
        if isinstance(item.what, Pixels) and item.what.exact and self._all_products(item.what.X, later):
            self._pixels(item, item.what)
        elif isinstance(item.what, Product) and self._kernels.prefers_tensor_cores(*_sizes(item.what)):
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
            split for split in self._splits if not any(_overlap(split.array, array) for array in written)
        ]

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
        parts = [item for item in items[: NarrowEnd.LENGTH] if isinstance(item, Operation)]
        reads = end.logits.A, end.logits.B, end.head.b, end.head.labels
        sums = end.dW.D, end.db.sums, end.db_below.sums, end.loss.sums
        operation = _one(
            f"{parts[0].name} to {parts[-1].name}",
            parts,
            reads,
            (dZ if terms is None else terms.numbers, *sums),
            lambda kernels: _launch_narrow_end(kernels, end, terms),
        )
        self._append(operation)
        if terms is not None:
            self._splits.append(_Split(dZ, terms))
        self.items += [item for item in items[: NarrowEnd.LENGTH] if not isinstance(item, Operation)]

    def _product(self, operation: Operation, what: Product, later: Sequence[Item]) -> int:
        A, B = self._as_terms(operation.part, what.A, what.B)
        operation = replace(
            operation,
            reads=(A.terms.numbers, B.terms.numbers),
            tensor_flops=products(A.terms.count, B.terms.count) * operation.flops,
        )
        after = later[0] if later else None
        epilogue = after.what if isinstance(after, Operation) else None
        if isinstance(epilogue, BiasActivation) and _same(epilogue.Z, what.D):
            assert isinstance(after, Operation)
            bias, activation = epilogue.b, epilogue.activation
            operation = _one(
                operation.name,
                [operation, after],
                (*operation.reads, bias),
                operation.writes,
                lambda kernels: _multiply(kernels, what, A, B, bias, activation),
            )
            self._append(operation)
            return 2

        def on_device(kernels: Kernels) -> Launch:
            return _multiply(kernels, what, A, B, None, "identity")

        self._append(replace(operation, on_device=on_device))
        return 1

    def _as_terms(self, part: str, *arrays: DeviceArray) -> list[_Split]:
        """The matrices as terms; those that are not yet are split, in one launch."""
        found = [self._find(array) for array in arrays]
        new = {
            index: _Split(arrays[index], self._take_terms(self._kernels.terms, *arrays[index].shape))
            for index, split in enumerate(found)
            if split is None
        }
        if new:
            self._append(_split_operation(part, list(new.values())))
            self._splits.extend(new.values())
        return [split or new[index] for index, split in enumerate(found)]

    def _find(self, array: DeviceArray) -> _Split | None:
        """The array, if it is there as terms."""
        views = (split.of(array) for split in self._splits)
        return next((view for view in views if view is not None), None)


def _split_operation(part: str, splits: Sequence[_Split]) -> Operation:
    def in_numpy() -> Compute:
        return lambda: None  # NumPy's products read the matrices themselves

    return Operation(
        "split operands",
        part,
        reads=tuple(split.array for split in splits),
        writes=tuple(split.terms.numbers for split in splits),
        flops=sum(split.array.size * split.terms.count for split in splits),
        on_device=lambda kernels: kernels.tensor_cores.split(
            *((split.array, split.terms) for split in splits)
        ),
        in_numpy=in_numpy,
    )


def _one(
    name: str,
    parts: Sequence[Operation],
    reads: tuple[DeviceArray, ...],
    writes: tuple[DeviceArray, ...],
    on_device: Callable[[Kernels], Launch],
) -> Operation:
    """One operation that does what these do in their order; what they leave for each other is not kept."""

    def in_numpy() -> Compute:
        calls = [part.in_numpy() for part in parts]

        def compute() -> None:
            for call in calls:
                call()

        return compute

    return Operation(
        name,
        parts[0].part,
        reads,
        writes,
        sum(part.flops for part in parts),
        on_device,
        in_numpy,
        tensor_flops=sum(part.tensor_flops for part in parts),
    )


def _launch_narrow_end(kernels: Kernels, end: NarrowEnd, terms: Terms | None) -> Launch:
    A, head, driver = end.logits.A, end.head, end.logits.A.driver
    (rows, hidden), (_, classes) = A.shape, head.Z.shape
    shape = narrow_head_partials(rows, hidden, classes, A.dtype, driver.multiprocessors)
    launches = kernels.narrow_head.bind(
        head.kind,
        end.below.activation,
        A,
        end.logits.B,
        head.b,
        head.labels,
        DeviceArray.empty(driver, shape, A.dtype),
        end.dW.D,
        end.db.sums,
        end.db_below.sums,
        end.loss.sums,
        head.scale,
        dZ=end.below.dA if terms is None else None,
        terms=terms.matrix if terms is not None else None,
    )
    return in_order(launches)


def _multiply(
    kernels: Kernels, what: Product, A: _Split, B: _Split, bias: DeviceArray | None, activation: str
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
    )


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
