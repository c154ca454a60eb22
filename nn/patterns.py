"""What rewrites of a step's list (nn/fuse.py, nn/fuse_arrays.py) look for in it, and what they put there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from nn.launches import Kernels
from nn.narrow_head import narrow_head_partials
from nn.operations import (
    BACKWARD,
    ActivationBackward,
    ColumnSums,
    Compute,
    Head,
    Item,
    Merged,
    Operation,
    Product,
    SumGradients,
)
from nn.tensor_cores import Terms
from pyrt.kernels import Launch
from pyrt.memory import DeviceArray


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
            all(same(array, head.Z) for array in (logits.D, db.X, dA.A, dW.A))
            and all(same(array, dA.D) for array in (below.dA, db_below.X))
            and all(same(array, logits.A) for array in (below.A, dW.B))
            and same(dA.B, logits.B)
            and loss.X.pointer == head.losses.pointer
        ):
            return NarrowEnd(logits, head, loss, db, dA, below, dW, db_below)
    return None


def narrow_end_operations(end: NarrowEnd, items: Sequence[Item], terms: Terms | None) -> list[Operation]:
    """Two operations for the narrow end that these items begin with: to dZ, which comes as terms or as it is,
    and to sums of each block; and those sums added up. What needs dZ alone need not wait for the second.
    """
    A, dZ = end.logits.A, end.below.dA
    (rows, hidden), (_, classes) = A.shape, end.head.Z.shape
    shape = narrow_head_partials(rows, hidden, classes, A.dtype, A.driver.multiprocessors)
    partials = DeviceArray.empty(A.driver, shape, A.dtype)
    parts = [item for item in items[: NarrowEnd.LENGTH] if isinstance(item, Operation)]

    @cache
    def launches(kernels: Kernels) -> tuple[Launch, Launch]:
        return _bind_narrow_end(kernels, end, terms, partials)

    head = merged(
        f"{parts[0].name} to {parts[-1].name}",
        parts,
        (A, end.logits.B, end.head.b, end.head.labels),
        (dZ if terms is None else terms.numbers, partials),
        lambda kernels: launches(kernels)[0],
    )
    sums = Operation(
        "sums of the blocks",
        BACKWARD,
        reads=(partials,),
        writes=(end.dW.D, end.db.sums, end.db_below.sums, end.loss.sums),
        flops=0,  # they are among those of what is merged above
        on_device=lambda kernels: launches(kernels)[1],
        in_numpy=lambda: lambda: None,  # what is merged above has them
        layer=head.layer,
    )
    return [head, sums]


def _bind_narrow_end(
    kernels: Kernels, end: NarrowEnd, terms: Terms | None, partials: DeviceArray
) -> tuple[Launch, Launch]:
    return kernels.narrow_head.bind(
        end.head.kind,
        end.below.activation,
        end.logits.A,
        end.logits.B,
        end.head.b,
        end.head.labels,
        partials,
        end.dW.D,
        end.db.sums,
        end.db_below.sums,
        end.loss.sums,
        end.head.scale,
        dZ=end.below.dA if terms is None else None,
        terms=terms.matrix if terms is not None else None,
    )


def merged(
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
        what=Merged(tuple(part.what for part in parts)),
        tensor_flops=sum(part.tensor_flops for part in parts),
        layer=parts[0].layer,
    )


def product_sizes(what: Product) -> tuple[int, int, int]:
    """M, N, K."""
    M, N = what.D.shape
    return M, N, what.A.shape[0 if what.transpose_a else 1]


def same(one: DeviceArray, other: DeviceArray) -> bool:
    return (one.pointer, one.shape, one.ld) == (other.pointer, other.shape, other.ld)


def overlap(one: DeviceArray, other: DeviceArray) -> bool:
    return one.pointer < _end(other) and other.pointer < _end(one)


def _end(array: DeviceArray) -> int:
    rows = array.shape[0] if len(array.shape) == 2 else 1
    elements = (rows - 1) * array.ld + array.shape[-1] if array.size else 0
    return array.pointer + elements * array.dtype.itemsize


def columns_within(array: DeviceArray, whole: DeviceArray) -> tuple[int, int] | None:
    """Which columns of a matrix the array is a view of, from the first to behind the last; None: of none."""
    start = (array.pointer - whole.pointer) // whole.dtype.itemsize
    stop = start + array.shape[-1]
    alike = array.ld == whole.ld and array.shape[0] == whole.shape[0]
    return (start, stop) if alike and 0 <= start <= stop <= whole.shape[-1] else None
