"""Rule: from the hidden layer below a narrow output layer to that hidden layer's gradient is one kernel.

The output layer's gradients come from it too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from nn.launch.classifier import FusedClassifier
from nn.launch.column_sums import ColumnSums
from nn.launch.elementwise import ActivationBackward
from nn.launch.gemm.components import Components, Split
from nn.launch.gemm.product import Product
from nn.launch.head import Head
from nn.launch.kernels import FUSED, Kernels
from nn.launch.work import Compute, Fused, Work
from nn.program.operations import BACKWARD, BucketReady, Item, Operation
from nn.program.rewrite import Replacement, same
from pyrt.arrays import DeviceArray
from pyrt.kernels import Launch

LENGTH = 9
"""Items of the pattern."""


def match_classifier(items: Sequence[Item]) -> FusedClassifier | None:
    """Find the end of a network, if these items begin with it: one bucket, and no bias in between."""
    match [item.work if isinstance(item, Operation) else item for item in items[:LENGTH]]:
        case [
            Product() as logits,
            Head() as head,
            ColumnSums() as loss,
            ColumnSums() as db,
            Product() as dA,
            ActivationBackward() as below,
            Product() as dW,
            BucketReady(),
            ColumnSums() as db_below,
        ] if (
            all(same(array, head.Z) for array in (logits.D, db.X, dA.A, dW.A))
            and all(same(array, dA.D) for array in (below.dA, db_below.X))
            and all(same(array, logits.A) for array in (below.A, dW.B))
            and same(dA.B, logits.B)
            and loss.X.pointer == head.losses.pointer
        ):
            return FusedClassifier(
                head.loss,
                below.activation,
                logits.A,
                logits.B,
                head.b,
                head.labels,
                below.dA,
                dW.D,
                db.sums,
                db_below.sums,
                loss.sums,
                head.scale,
            )
    return None


@dataclass(frozen=True)
class FuseClassifier:
    """The rule for some kernels.

    ``left_as_components`` says whether products alone want dZ; ``leave`` then makes room for its components,
    and ``made`` finds those of the hidden layer.
    """

    kernels: Kernels
    left_as_components: Callable[[DeviceArray, Sequence[Item]], bool] = lambda dZ, later: False
    leave: Callable[[DeviceArray], Components | None] = lambda dZ: None
    made: Callable[[DeviceArray], Components | None] = lambda A: None

    def __call__(self, rest: Sequence[Item], done: Sequence[Item]) -> Replacement | None:
        end = self.match(rest)
        if end is None:
            return None
        made = self.made(end.A) if self.reads_components(rest) else None
        left = self.left_as_components(end.dZ, rest[LENGTH:])
        end = replace(end, components=self.leave(end.dZ) if left else None, made=made)
        buckets = [item for item in rest[:LENGTH] if isinstance(item, BucketReady)]
        return Replacement(LENGTH, [*_operations(end, rest[:LENGTH]), *buckets])

    def match(self, items: Sequence[Item]) -> FusedClassifier | None:
        """Return the end of a network that these items begin with, if it is to be one kernel."""
        end = match_classifier(items)
        return end if end is not None and self.kernels.choose(end) == FUSED else None

    def reads_components(self, items: Sequence[Item]) -> bool:
        """Return whether the end that these items begin with reads the hidden layer as its component."""
        end = self.match(items)
        if end is None or not self.left_as_components(end.dZ, items[LENGTH:]):
            return False
        _, hidden, classes = end.sizes
        return end.activation != "identity" and self.kernels.classifier_reads_components(hidden, classes)


def _operations(end: FusedClassifier, items: Sequence[Item]) -> list[Operation]:
    """Two operations: to dZ, and to sums of each block; and those sums added up.

    What needs dZ alone need not wait for the second.
    """
    partials = end.workspace()
    parts = [item for item in items if isinstance(item, Operation)]

    works = [part.work for part in parts]
    outputs = end.gradient, partials
    bind = partial(FusedClassifier.bind_gradient, end, partials=partials)
    first, second = _ToGradient(works, end.reads, outputs, bind, end), _BlockSums(end, partials)
    name, layer = f"{parts[0].name} to {parts[-1].name}", parts[0].layer
    return [
        Operation(name, parts[0].part, first, layer=layer),
        Operation("sums of the blocks", BACKWARD, second, layer=layer),
    ]


@dataclass(frozen=True)
class _ToGradient(Fused):
    """All that the end of the network does; dZ as components where these are in its place."""

    end: FusedClassifier

    @property
    def results(self) -> tuple[DeviceArray | Components, ...]:
        # Not what each block sums up: that depends on how many there are.
        return (self.end.components if self.end.components is not None else self.end.dZ,)

    def in_numpy(self) -> Compute:
        compute, components, made = super().in_numpy(), self.end.components, self.end.made
        partials, A = self.outputs[1].host_view(), self.end.A.host_view()
        split = Split(((self.end.dZ, components),)).in_numpy() if components is not None else None

        def compute_as_one_block() -> None:
            if made is not None:  # then nothing writes A
                A[:] = made.to_float32()
            compute()
            partials[:] = 0
            for part, sums in _parts_of(partials[0], self.end):
                part[:] = sums
            if split is not None:
                split()

        return compute_as_one_block


def _parts_of(block: np.ndarray, end: FusedClassifier) -> list[tuple[np.ndarray, np.ndarray]]:
    """Split a block's sums into those of dW, db_hidden, db and the loss, each beside its array."""
    dW, db, db_hidden, loss = (array.host_view() for array in end.sums)
    classes, hidden = dW.shape
    stride = -(-hidden * block.itemsize // 16) * 16 // block.itemsize  # whole vectors of 16 bytes
    rows = block[: (classes + 1) * stride].reshape(classes + 1, stride)[:, :hidden]
    last = block[(classes + 1) * stride :]
    return [
        (rows[:classes], dW),
        (rows[classes], db_hidden),
        (last[:classes], db),
        (last[classes : classes + 1], loss),
    ]


@dataclass(frozen=True)
class _BlockSums(Work):
    """The sums that the blocks of the first kernel have left, added up."""

    end: FusedClassifier
    partials: DeviceArray

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        return (self.partials,)

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return self.end.sums

    @property
    def flops(self) -> int:
        return 0  # they are among those of the first

    def on_device(self, kernels: Kernels) -> Launch:
        return self.end.bind_sums(kernels, self.partials)

    def in_numpy(self) -> Compute:
        partials, end = self.partials.host_view(), self.end

        def compute() -> None:
            for part, sums in _parts_of(partials.sum(axis=0), end):
                sums[:] = part

        return compute
