"""The items that a step is made of: operations, and the places where something is exchanged between ranks.

Everything that runs, times, counts or rewrites a step reads the same list of these.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from nn.input.source import BatchCursor, Gathered, Ready, Source
from nn.launch.augment import Augmented, GatherAugmented
from nn.launch.column_sums import ColumnSums
from nn.launch.elementwise import ActivationBackward, BiasActivation, Zeros
from nn.launch.gemm.product import Product
from nn.launch.head import Head
from nn.launch.kernels import Kernels
from nn.launch.pixels import GatherBatch, ScalePixels, SkipBatch
from nn.launch.take_columns import TakeColumns
from nn.launch.work import Compute, Work
from pyrt.arrays import DeviceArray
from pyrt.driver import Driver
from pyrt.kernels import Launch
from pyrt.redistribute import Redistribution

FORWARD, BACKWARD, STEP = "forward", "backward", "step"


@dataclass(frozen=True)
class Operation:
    """One operation on device arrays."""

    name: str
    """The phase that people see."""
    part: str
    """``forward`` or ``backward``; ``step`` for the update and what follows it."""
    work: Work
    starts_early: bool = False
    """Whether it begins beside the kernel before it: it waits for that before it writes, and not before."""
    layer: int = 0
    """The layer that it is of, or begins with; 0 is the input's."""
    beside: bool = False
    """Whether it runs on a stream beside the others, behind those before it in the list; see beside.py."""
    waits_for_beside: bool = False
    """Whether it waits for all that runs beside the others, and is before it in the list."""
    workspace: DeviceArray | None = None
    """Memory for what its kernels use beside its arrays while they run, uint8 (n,); None: new memory."""

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        return self.work.reads

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return self.work.writes

    @property
    def flops(self) -> int:
        return self.work.flops

    @property
    def tensor_flops(self) -> int:
        return self.work.tensor_flops

    @property
    def bytes(self) -> int:
        """Count the least that it moves: each array read or written once."""
        return sum(array.nbytes for array in (*self.reads, *self.writes))

    def on_device(self, kernels: Kernels) -> Launch:
        with kernels.lent(self.workspace):
            return self.work.on_device(kernels)

    def in_numpy(self) -> Compute:
        return self.work.in_numpy()


@dataclass(frozen=True)
class BucketReady:
    """The place in a step from which a bucket of gradients may be exchanged."""

    bucket: int
    part: str = BACKWARD
    leaves: DeviceArray | None = None
    """The bucket's gradients, if known: by then these must be there, others may still be made."""
    rows: tuple[int, int] | None = None
    """The rows of its layer's weight gradient that leave with it; None: all of them, or no weights."""


@dataclass(frozen=True)
class StartRedistribution:
    """Starts to redistribute a matrix that is split over the ranks of a group; see pyrt/redistribute.

    Until it has ended nothing writes the source, or touches the target, which may be the source.
    """

    name: str
    """The phase that people see."""
    part: str
    move: Redistribution
    source: DeviceArray
    target: DeviceArray


@dataclass(frozen=True)
class FinishRedistribution:
    """From here on the target is there."""

    started: StartRedistribution

    @property
    def part(self) -> str:
        return self.started.part


Item = Operation | BucketReady | StartRedistribution | FinishRedistribution


def charged(driver: Driver, item: Item) -> AbstractContextManager[None]:
    """Within it, memory is workspace of that item's layer."""
    return driver.ledger.of("workspaces", item.layer if isinstance(item, Operation) else None)


def gemm(name: str, part: str, product: Product) -> Operation:
    """D = op(A) op(B)."""
    return Operation(name, part, product)


def take_batch(source: Source, X: DeviceArray, scale: float, augmented: Augmented | None = None) -> Operation:
    """X (rows, D) = the batch's images / scale; the source's ``labels`` are there too.

    Without rows only the cursor moves on. The gather may start before the end of the previous step, which
    writes nothing that it reads.
    """
    if isinstance(source, Ready):
        images = source.images.rows(0, X.shape[0])
        return Operation("scale pixels", FORWARD, ScalePixels(images, X, scale))
    return gather_batch(source, X, scale, augmented) if X.size else skip_batch(source.cursor)


def gather_batch(
    source: Gathered, X: DeviceArray, scale: float, augmented: Augmented | None = None
) -> Operation:
    """X[i] = images[j] / scale, labels[i] = set_labels[j] where j = order[cursor + i]; cursor += rows.

    Where images are augmented it also counts the step.
    """
    labels = source.labels.rows(0, X.shape[0])
    arrays = (source.images, source.set_labels, source.order, source.cursor, X, labels)
    work = GatherBatch(*arrays, scale, starts_early=True)
    if augmented is not None:
        assert source.numbers is not None, "images are augmented by their rows of the training set"
        numbers = source.numbers
        work = GatherAugmented(*arrays, scale, starts_early=True, augmented=augmented, numbers=numbers)
    return Operation("scale pixels", FORWARD, work, starts_early=True)


def skip_batch(cursor: BatchCursor) -> Operation:
    """Move the cursor on, for a rank that gets no sample of a batch."""
    return Operation("skip batch", FORWARD, SkipBatch(cursor))


def take_columns(name: str, part: str, X: DeviceArray, Y: DeviceArray) -> Operation:
    """Y = X, a view of some columns of a matrix."""
    return Operation(name, part, TakeColumns(X, Y))


def bias_activation(name: str, Z: DeviceArray, b: DeviceArray, activation: str) -> Operation:
    """Z becomes A = f(Z + b)."""
    return Operation(name, FORWARD, BiasActivation(Z, b, activation))


def activation_backward(name: str, A: DeviceArray, dA: DeviceArray, activation: str) -> Operation:
    """dA becomes dZ = dA f'(Z), given A = f(Z)."""
    return Operation(name, BACKWARD, ActivationBackward(A, dA, activation))


def head(work: Head) -> Operation:
    """Z becomes dZ, and ``losses`` the loss of each sample; both times ``scale``, 1 / the global batch."""
    return Operation("head, loss and gradient", FORWARD, work)


def column_sums(name: str, part: str, X: DeviceArray, sums: DeviceArray) -> Operation:
    """sums = sum of the rows of X."""
    return Operation(name, part, ColumnSums(X, sums))


def zeros(name: str, part: str, array: DeviceArray) -> Operation:
    """Set the array to zero."""
    return Operation(name, part, Zeros(array))
