"""Rewrites of a step's list for tensor cores that read operands as they are (kernels/gemm_mma.cu): the same
results from fewer launches.

- From the hidden layer below a narrow output layer to that hidden layer's gradient is one kernel, and so are
  the output layer's gradients.
- Bias and activation go into the product before them.
- The gradient of a bias, the sums of dZ, is made by the product that reads dZ for the gradient of the
  weights; by several, each its part, where these leave in panels.

Fusing is a choice by shape: what does not fit stays as it was.
"""

from __future__ import annotations

from collections.abc import Sequence

from nn import operations
from nn.launches import Kernels
from nn.operations import (
    BiasActivation,
    ColumnSums,
    Item,
    Operation,
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
from pyrt.kernels import Launch, in_order
from pyrt.memory import DeviceArray


def fuse_arrays(items: Sequence[Item], kernels: Kernels) -> list[Item]:
    """The list as it runs with these kernels."""
    return _sums_into_products(_epilogues(_narrow_ends(items, kernels), kernels), kernels)


def _narrow_ends(items: Sequence[Item], kernels: Kernels) -> list[Item]:
    result: list[Item] = []
    rest = list(items)
    while rest:
        end = match_narrow_end(rest)
        if end is None or not kernels.prefers_narrow_head(*reversed(end.logits.B.shape)):
            result.append(rest.pop(0))
            continue
        with charged(kernels.library.driver, rest[0]):
            result += narrow_end_operations(end, rest, None)
        result += [item for item in rest[: NarrowEnd.LENGTH] if isinstance(item, SumGradients)]
        del rest[: NarrowEnd.LENGTH]
    return result


def _epilogues(items: Sequence[Item], kernels: Kernels) -> list[Item]:
    result: list[Item] = []
    for item in items:
        before = result[-1] if result else None
        if (
            isinstance(item, Operation)
            and isinstance(item.what, BiasActivation)
            and isinstance(before, Operation)
            and isinstance(before.what, Product)
            and same(item.what.Z, before.what.D)
            and _takes_activation(before.what, kernels)
        ):
            result[-1] = _with_epilogue(before, before.what, item, item.what)
        else:
            result.append(item)
    return result


def _takes_activation(product: Product, kernels: Kernels) -> bool:
    """Only of A B' there are kernels with an activation."""
    return (
        not product.transpose_a
        and product.transpose_b
        and kernels.version_for(*product_sizes(product)) == "mma"
    )


def _with_epilogue(
    operation: Operation, product: Product, after: Operation, epilogue: BiasActivation
) -> Operation:
    reads = (*operation.reads, epilogue.b)
    return merged(
        operation.name,
        [operation, after],
        reads,
        operation.writes,
        lambda kernels: _multiply(kernels, product, bias=epilogue.b, activation=epilogue.activation),
    )


def _sums_into_products(items: Sequence[Item], kernels: Kernels) -> list[Item]:
    result = list(items)
    index = 0
    while index < len(result):
        makers = _makers(result[index], result[index + 1 :], kernels)
        for distance, sums in makers.items():
            at = index + 1 + distance
            result[at] = _with_sums(result[at], sums)
        if makers:
            del result[index]
        else:
            index += 1
    return result


def _makers(item: Item, later: Sequence[Item], kernels: Kernels) -> dict[int, DeviceArray]:
    """The products that can make the sums which this item makes, by their places among the later ones, each
    with its part of the sums; empty where they cannot, or too late: somebody has used the sums, or changed
    what is summed up.
    """
    if not isinstance(item, Operation) or not isinstance(item.what, ColumnSums):
        return {}
    X, sums = item.what.X, item.what.sums
    makers: dict[int, DeviceArray] = {}
    made = 0  # of the columns of X, from the first on
    for place, one in enumerate(later):
        if _uses(one, sums) or _changes(one, X):
            return {}
        columns = _summed_columns(one, X, kernels)
        if columns is not None and columns[0] == made:
            makers[place] = sums.rows(*columns)
            made = columns[1]
        if made == X.shape[-1]:
            return makers
    return {}


def _uses(item: Item, sums: DeviceArray) -> bool:
    if isinstance(item, SumGradients):  # sums may be among what leaves
        return item.leaves is None or overlap(item.leaves, sums)
    return isinstance(item, Operation) and any(overlap(sums, array) for array in (*item.reads, *item.writes))


def _changes(item: Item, X: DeviceArray) -> bool:
    if isinstance(item, StartMove):
        return overlap(X, item.target)
    return isinstance(item, Operation) and any(overlap(X, array) for array in item.writes)


def _summed_columns(item: Item, X: DeviceArray, kernels: Kernels) -> tuple[int, int] | None:
    """The columns of X whose sums the item could make: the rows of its product's left operand."""
    what = item.what if isinstance(item, Operation) else None
    if not isinstance(what, Product) or not what.transpose_a:
        return None
    return columns_within(what.A, X) if kernels.version_for(*product_sizes(what)) == "mma" else None


def _with_sums(item: Item, sums: DeviceArray) -> Operation:
    assert isinstance(item, Operation) and isinstance(item.what, Product)
    product = item.what
    alone = operations.column_sums(item.name, item.part, product.A, sums)
    return merged(
        item.name,
        [item, alone],
        item.reads,
        (*item.writes, sums),
        lambda kernels: _multiply(kernels, product, sums=sums),
    )


def _multiply(
    kernels: Kernels,
    what: Product,
    bias: DeviceArray | None = None,
    activation: str = "identity",
    sums: DeviceArray | None = None,
) -> Launch:
    launches = kernels.mma.multiply(
        what.D,
        what.A,
        what.B,
        what.transpose_a,
        what.transpose_b,
        bias=bias,
        activation=activation,
        sums=sums,
    )
    return in_order(launches)
