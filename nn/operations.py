"""The operations a step is made of: what each reads and writes, what it costs, how it runs.

An operation runs as a kernel (``on_device``) or in NumPy on the same memory (``in_numpy``). Everything
that runs, times, counts or rewrites a step reads the same list of these. Both ways of running bind
their arrays once, when the step is built.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from nn import reference
from nn.launches import Kernels, LossRing, Place
from nn.tensor_cores import Terms
from pyrt.driver import Driver
from pyrt.kernels import Launch
from pyrt.memory import DeviceArray
from pyrt.moves import Move

Compute = Callable[[], object]

FORWARD, BACKWARD, STEP = "forward", "backward", "step"


@dataclass(frozen=True)
class Product:
    """D = op(A) op(B)."""

    D: DeviceArray
    A: DeviceArray
    B: DeviceArray
    transpose_a: bool
    transpose_b: bool


@dataclass(frozen=True)
class Pixels:
    """X = images / scale; ``into`` gives terms the pixels themselves, where they are ``exact`` in bf16."""

    X: DeviceArray
    scale: float
    exact: bool
    into: Callable[[Kernels, Terms], Launch]


@dataclass(frozen=True)
class BiasActivation:
    """Z becomes f(Z + b)."""

    Z: DeviceArray
    b: DeviceArray
    activation: str


@dataclass(frozen=True)
class Head:
    """Z becomes dZ, ``losses`` the losses."""

    kind: str
    Z: DeviceArray
    b: DeviceArray
    labels: DeviceArray
    losses: DeviceArray
    scale: float


@dataclass(frozen=True)
class ColumnSums:
    """sums = sum of the rows of X."""

    X: DeviceArray
    sums: DeviceArray


@dataclass(frozen=True)
class ActivationBackward:
    """dA becomes dZ = dA f'(Z), given A = f(Z)."""

    A: DeviceArray
    dA: DeviceArray
    activation: str


@dataclass(frozen=True)
class Merged:
    """What several operations do that became one; None for those that no rewrite asks for."""

    parts: tuple[What | None, ...]


What = Product | Pixels | BiasActivation | Head | ColumnSums | ActivationBackward | Merged


@dataclass(frozen=True)
class Operation:
    """One operation on device arrays."""

    name: str
    """The phase that people see."""
    part: str
    """``forward`` or ``backward``; ``step`` for the update and what follows it."""
    reads: tuple[DeviceArray, ...]
    writes: tuple[DeviceArray, ...]
    flops: int
    on_device: Callable[[Kernels], Launch]
    in_numpy: Callable[[], Compute]
    what: What | None = None
    """What rewrites of the list (nn/fuse.py) must know of it."""
    tensor_flops: int = 0
    """Those of bf16 in which tensor cores do a product, whose own are among ``flops``."""
    overtakes: bool = False
    """Whether it begins beside the kernel before it: it waits for that before it writes, and not before."""
    layer: int = 0
    """That it is of, or begins with; 0 is the input's."""

    @property
    def bytes(self) -> int:
        """The least it moves: each array read or written once."""
        return sum(array.nbytes for array in (*self.reads, *self.writes))


@dataclass(frozen=True)
class SumGradients:
    """The place in a step from which a bucket of gradients may be exchanged."""

    bucket: int
    part: str = BACKWARD
    leaves: DeviceArray | None = None
    """The bucket's gradients, if known: by then these must be there, others may still be made."""


@dataclass(frozen=True)
class StartMove:
    """A matrix that the ranks of a group have in parts sets out to where these are wanted; see pyrt/moves.

    Until it has ended nothing writes the source, or touches the target, which may be the source.
    """

    name: str
    """The phase that people see."""
    part: str
    move: Move
    source: DeviceArray
    target: DeviceArray


@dataclass(frozen=True)
class FinishMove:
    """From here on the target is there."""

    started: StartMove

    @property
    def part(self) -> str:
        return self.started.part


Item = Operation | SumGradients | StartMove | FinishMove


def charged(driver: Driver, item: Item) -> AbstractContextManager[None]:
    """Within it, memory is workspace of that item's layer."""
    return driver.ledger.of("workspaces", item.layer if isinstance(item, Operation) else None)


def gemm(
    name: str,
    part: str,
    D: DeviceArray,
    A: DeviceArray,
    B: DeviceArray,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> Operation:
    """D = op(A) op(B)."""
    inner = A.shape[0] if transpose_a else A.shape[1]

    def in_numpy() -> Compute:
        a, b = A.host_view(), B.host_view()
        return partial(np.matmul, a.T if transpose_a else a, b.T if transpose_b else b, out=D.host_view())

    return Operation(
        name,
        part,
        reads=(A, B),
        writes=(D,),
        flops=2 * D.size * inner,
        on_device=lambda kernels: kernels.gemm(D, A, B, transpose_a, transpose_b),
        in_numpy=in_numpy,
        what=Product(D, A, B, transpose_a, transpose_b),
    )


def scale_pixels(images: DeviceArray, X: DeviceArray, scale: float) -> Operation:
    """X = images / scale."""

    def in_numpy() -> Compute:
        x, divisor = X.host_view(), X.dtype.type(scale)
        # The dtype of the division is named: uint8 pixels would be divided in float64 or float16.
        return partial(np.divide, images.host_view(), divisor, out=x, dtype=x.dtype)

    def on_device(kernels: Kernels, into: DeviceArray | Terms = X) -> Launch:
        return kernels.scale_pixels(images, into, scale)

    return Operation(
        "scale pixels",
        FORWARD,
        reads=(images,),
        writes=(X,),
        flops=X.size,
        on_device=on_device,
        in_numpy=in_numpy,
        what=Pixels(X, scale, images.dtype == np.uint8, on_device),
    )


def gather_batch(
    images: DeviceArray,
    labels: DeviceArray,
    order: DeviceArray,
    place: Place,
    X: DeviceArray,
    batch_labels: DeviceArray,
    scale: float,
    overtakes: bool = False,
) -> Operation:
    """X[i] = images[j] / scale and batch_labels[i] = labels[j], with j = order[place + i]; place moves on."""
    rows = X.shape[0]

    def in_numpy() -> Compute:
        whole, truth, rows_of, x, y = (
            array.host_view() for array in (images, labels, order, X, batch_labels)
        )
        first, move_on = place.state.host_view(), skip_batch(place).in_numpy()
        divisor = x.dtype.type(scale)

        def compute() -> None:
            mine = rows_of[first[0] : first[0] + rows]
            np.divide(whole[mine], divisor, out=x, dtype=x.dtype)
            y[:] = truth[mine]
            move_on()

        return compute

    def on_device(kernels: Kernels, into: DeviceArray | Terms = X) -> Launch:
        return kernels.gather_batch(images, labels, order, place, into, batch_labels, scale, overtakes)

    # Of the set as many rows as are read, whichever they are.
    read = tuple(replace(array, shape=(rows, *array.shape[1:])) for array in (images, labels, order))
    return Operation(
        "scale pixels",
        FORWARD,
        reads=(*read, place.state),
        writes=(X, batch_labels, place.state),
        flops=X.size,
        on_device=on_device,
        in_numpy=in_numpy,
        what=Pixels(X, scale, images.dtype == np.uint8, on_device),
        overtakes=overtakes,
    )


def skip_batch(place: Place) -> Operation:
    """The place moves on, for a rank that gets no sample of a batch."""

    def in_numpy() -> Compute:
        now = place.state.host_view()

        def compute() -> None:
            now[0] = (int(now[0]) + place.advance) % place.places

        return compute

    return Operation(
        "skip batch",
        FORWARD,
        reads=(place.state,),
        writes=(place.state,),
        flops=0,
        on_device=lambda kernels: kernels.skip_batch(place),
        in_numpy=in_numpy,
    )


def bias_activation(name: str, Z: DeviceArray, b: DeviceArray, activation: str) -> Operation:
    """Z becomes A = f(Z + b)."""

    def in_numpy() -> Compute:
        z, bias = Z.host_view(), b.host_view()
        activate = _ACTIVATE[activation]

        def compute() -> None:
            np.add(z, bias, out=z)
            activate(z)

        return compute

    return Operation(
        name,
        FORWARD,
        reads=(Z, b),
        writes=(Z,),
        flops=2 * Z.size,
        on_device=lambda kernels: kernels.bias_activation(Z, b, Z, activation),
        in_numpy=in_numpy,
        what=BiasActivation(Z, b, activation),
    )


def activation_backward(name: str, A: DeviceArray, dA: DeviceArray, activation: str) -> Operation:
    """dA becomes dZ = dA f'(Z), given A = f(Z)."""

    def in_numpy() -> Compute:
        a, d = A.host_view(), dA.host_view()
        _, derivative = reference.ACTIVATIONS[activation]
        return lambda: np.multiply(d, derivative(a), out=d)

    return Operation(
        name,
        BACKWARD,
        reads=(A, dA),
        writes=(dA,),
        flops=3 * A.size,
        on_device=lambda kernels: kernels.activation_backward(A, dA, dA, activation),
        in_numpy=in_numpy,
        what=ActivationBackward(A, dA, activation),
    )


def head(
    kind: str, Z: DeviceArray, b: DeviceArray, labels: DeviceArray, losses: DeviceArray, scale: float
) -> Operation:
    """Z becomes dZ, and ``losses`` the loss of each sample; both times ``scale``, 1 / the global batch."""

    def in_numpy() -> Compute:
        z, bias, truth, loss = (array.host_view() for array in (Z, b, labels, losses))
        rows = np.arange(len(z))
        factor = z.dtype.type(scale)

        def compute() -> None:
            np.add(z, bias, out=z)
            # In float64: the losses of ten classes may add up to more than the largest float32.
            loss[:] = reference.losses(z.astype(np.float64), truth, kind) * scale
            z[:] = reference.probabilities(z, kind)
            z[rows, truth] -= 1
            np.multiply(z, factor, out=z)

        return compute

    return Operation(
        "head, loss and gradient",
        FORWARD,
        reads=(Z, b, labels),
        writes=(Z, losses),
        flops=8 * Z.size,
        on_device=lambda kernels: kernels.head(kind, Z, b, labels, Z, losses, scale),
        in_numpy=in_numpy,
        what=Head(kind, Z, b, labels, losses, scale),
    )


def column_sums(name: str, part: str, X: DeviceArray, sums: DeviceArray) -> Operation:
    """sums = sum of the rows of X."""
    return Operation(
        name,
        part,
        reads=(X,),
        writes=(sums,),
        flops=X.size,
        on_device=lambda kernels: kernels.column_sums(X, sums),
        in_numpy=lambda: partial(np.sum, X.host_view(), axis=0, out=sums.host_view()),
        what=ColumnSums(X, sums),
    )


def zeros(name: str, part: str, array: DeviceArray) -> Operation:
    """The array becomes zero."""

    def on_device(kernels: Kernels) -> Launch:
        driver, pointer, nbytes = array.driver, array.pointer, array.nbytes
        return Launch(("fill",), lambda stream: driver.fill(pointer, 0, nbytes, stream))

    return Operation(
        name,
        part,
        reads=(),
        writes=(array,),
        flops=0,
        on_device=on_device,
        in_numpy=lambda: partial(array.host_view().fill, 0),
    )


def keep_loss(ring: LossRing) -> Operation:
    """The loss of a step into the ring."""

    def in_numpy() -> Compute:
        loss, losses, place = (array.host_view() for array in (ring.loss, ring.losses, ring.place))

        def compute() -> None:
            losses[place[0]] = loss[0]
            place[0] = (int(place[0]) + 1) % len(losses)

        return compute

    return Operation(
        "keep loss",
        STEP,
        reads=(ring.loss, ring.place),
        writes=(ring.losses.rows(0, 1), ring.place),
        flops=0,
        on_device=lambda kernels: kernels.keep_loss(ring),
        in_numpy=in_numpy,
    )


def _sigmoid(z: np.ndarray) -> None:
    np.multiply(z, 0.5, out=z)
    np.tanh(z, out=z)
    np.add(z, 1, out=z)
    np.multiply(z, 0.5, out=z)


_ACTIVATE: dict[str, Callable[[np.ndarray], object]] = {
    "identity": lambda z: None,
    "sigmoid": _sigmoid,
    "tanh": lambda z: np.tanh(z, out=z),
    "relu": lambda z: np.maximum(z, 0, out=z),
}
"""In place, so that a step on the CPU moves no more than it must."""
