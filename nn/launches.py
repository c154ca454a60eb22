"""Launch shapes of the project's kernels: from arrays to a launch that is ready to be queued.

Each method of `Kernels` checks the shapes of its arrays against each other and binds a kernel of
``kernels/``, or the few that do its work together. Arrays are row-major; M, N and K are the sizes of a matrix
product; all arrays of numbers have the dtype that `Kernels` was made for, labels and orders are int32.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from nn.gemm_versions import GEMM_VERSIONS, fastest_gemm, version_for
from nn.mma import MMA_TERMS, Mma
from nn.narrow_head import NarrowHead, narrow_head_fits
from nn.shapes import Block, Grid, line_shape, matrix_shape, plane_shape, require_shape
from nn.tensor_cores import TERMS, TensorCores, Terms, reads_tf32
from pyrt.driver import Driver
from pyrt.exchange.peer import Peers
from pyrt.kernels import REALS, Argument, Kernel, KernelLibrary, Launch, blocks, in_order
from pyrt.memory import DeviceArray

_GEMM_BLOCKS: dict[str, Block] = {"naive": (32, 8), "shared": (32, 32), "register": (16, 4), "tiled": (128,)}
_GEMM_TILES = {"naive": (8, 32), "shared": (32, 32), "register": (16, 64), "tiled": (64, 64)}

_HEAD_BLOCK = (32, 4)
_COLUMN_SUM_THREADS = 512
_COLUMN_SUM_WIDTH = 8  # columns a block: 32 bytes of float32, the least that memory moves at once


def gemm_shape(version: str, M: int, N: int) -> tuple[Grid, Block]:
    """Grid and block of a version of the matrix product for an M x N result."""
    rows, columns = _GEMM_TILES[version]
    return (blocks(M, rows), blocks(N, columns)), _GEMM_BLOCKS[version]


def head_shape(rows: int) -> tuple[Grid, Block]:
    """Grid and block of a kernel with a warp for each row."""
    return (blocks(rows, _HEAD_BLOCK[1]),), _HEAD_BLOCK


def column_sums_shape(columns: int) -> tuple[Grid, Block]:
    """Grid and block of the column sums; few columns leave more threads to share the rows of each."""
    width = min(1 << max(columns - 1, 0).bit_length(), _COLUMN_SUM_WIDTH)
    return (blocks(columns, width),), (width, _COLUMN_SUM_THREADS // width)


@dataclass(frozen=True)
class Stretch:
    """Elements ``start`` to ``start + size`` of the flat parameters, which lie in one layer.

    The first ``decayed`` are weights, from the layer's weight number ``first`` on; ``terms``, if any, are
    those of all the layer's weights.
    """

    start: int
    size: int
    decayed: int
    first: int = 0
    terms: Terms | None = None

    def packed(self) -> bytes:
        """As sgd.cu has it."""
        terms = self.terms
        of_terms = (
            (terms.columns, terms.count, terms.ld, terms.distance) if terms is not None else (1, 0, 0, 0)
        )
        pointer = terms.array.pointer if terms is not None else 0
        return struct.pack("qiii4iP", self.start, self.size, self.decayed, self.first, *of_terms, pointer)


@dataclass(frozen=True)
class Place:
    """Where in what lies on the device a batch begins."""

    state: DeviceArray
    """(2,) int32: that place; blocks that have read it, 0 between two launches."""
    advance: int
    """How far each batch moves it on."""
    places: int
    """It runs from 0 to here, and around."""

    @classmethod
    def first(cls, driver: Driver, advance: int, places: int) -> Place:
        """The place 0."""
        return cls(DeviceArray.from_host(driver, np.zeros(2, np.int32)), advance, places)

    def go_to(self, batch: int) -> None:
        """The place of the batch of that number, counted from the place 0 on."""
        self.state.set(np.array([batch * self.advance % self.places, 0], np.int32))


@dataclass(frozen=True)
class LossRing:
    """Where the loss (1,) of each step goes: ``losses[place[0]]``; place (1,) int32 moves on, and around."""

    loss: DeviceArray
    losses: DeviceArray
    place: DeviceArray

    def packed(self) -> bytes:
        """As batch.cuh has it."""
        require_shape("keep_loss", (1,), loss=self.loss, place=self.place)
        pointers = (array.pointer for array in (self.loss, self.losses, self.place))
        return struct.pack("PPPi4x", *pointers, self.losses.size)


@dataclass(frozen=True)
class Descent:
    """One step of gradient descent on some stretches of flat arrays; ``gradients`` may be the longest.

    Without a velocity there is no momentum. With a ``ring`` the step's loss is kept.
    """

    parameters: DeviceArray
    gradients: DeviceArray
    velocity: DeviceArray | None
    stretches: Sequence[Stretch]
    rate: float
    momentum: float
    decay: float
    ring: LossRing | None = None


class Kernels:
    """The project's kernels for one dtype.

    Parameters
    ----------
    library: where the kernels come from
    dtype: float32 or float64, of all numbers
    gemm: ``auto`` (see `fastest_gemm`) or one of `GEMM_VERSIONS`
    math: the accuracy of ``wgmma``, one of `nn.tensor_cores.TERMS`, or of ``mma``, of `nn.mma.MMA_TERMS`

    Every method returns a `Launch`; shapes that do not fit raise ValueError.
    """

    def __init__(
        self, library: KernelLibrary, dtype: DTypeLike, gemm: str = "auto", math: str = "float32"
    ) -> None:
        if gemm not in ("auto", *GEMM_VERSIONS):
            raise ValueError(f"gemm is auto, {', '.join(GEMM_VERSIONS)}, not {gemm!r}")
        self.library = library
        self.real = REALS[np.dtype(dtype)]
        self.gemm_version = fastest_gemm(dtype, library.driver.architecture) if gemm == "auto" else gemm
        self.math, self.terms = math, TERMS[math]
        self.tensor_cores = TensorCores(library)
        if self.gemm_version == "mma" and math not in MMA_TERMS:
            raise ValueError(f"math of mma is {', '.join(MMA_TERMS)}, not {math!r}")
        self.mma = Mma(library, math if math in MMA_TERMS else "float32")
        self.narrow_head = NarrowHead(library, self.real)

    @property
    def uses_tensor_cores(self) -> bool:
        return self.gemm_version in ("mma", "wgmma")

    @property
    def uses_terms(self) -> bool:
        """Whether products read their operands as `Terms`, not as they are."""
        return self.gemm_version == "wgmma"

    def version_for(self, M: int, N: int, K: int) -> str:
        """The version of the matrix product that one of these sizes runs as."""
        return version_for(self.gemm_version, M, N, K, self.math)

    def prefers_terms(self, M: int, N: int, K: int) -> bool:
        """Whether a product of these sizes reads its operands as `Terms`."""
        return self.version_for(M, N, K) == "wgmma"

    def prefers_narrow_head(self, hidden: int, classes: int) -> bool:
        """Whether an output layer of these sizes is one for ``narrow_head``."""
        return self.uses_tensor_cores and narrow_head_fits(
            hidden, classes, np.float32, self.library.driver.shared_memory
        )

    def gemm(
        self,
        D: DeviceArray,
        A: DeviceArray,
        B: DeviceArray,
        transpose_a: bool = False,
        transpose_b: bool = False,
        alpha: float = 1.0,
        beta: float = 0.0,
        C: DeviceArray | None = None,
    ) -> Launch:
        """D = alpha op(A) op(B) + beta C; op(A) (M, K), op(B) (K, N), C and D (M, N).

        Any of them may be a column slice. C defaults to D itself; with beta 0 it is not read.
        """
        M, K = _swapped(A.shape) if transpose_a else A.shape
        depth, N = _swapped(B.shape) if transpose_b else B.shape
        if depth != K or D.shape != (M, N) or (C is not None and C.shape != D.shape):
            raise ValueError(
                f"gemm: D {D.shape}, A {A.shape}{' transposed' if transpose_a else ''}, "
                f"B {B.shape}{' transposed' if transpose_b else ''}, C {C.shape if C else None}"
            )
        if C is None:
            C = D
        version = self.version_for(M, N, K)
        if version == "mma":
            return in_order(self.mma.multiply(D, A, B, transpose_a, transpose_b, alpha, beta, C))
        if version == "wgmma":
            return self._split_gemm(D, A, B, transpose_a, transpose_b, alpha, beta, C)
        kernel = self.library.kernel(
            "gemm",
            f"gemm_{version}",
            REAL=self.real,
            TRANSPOSE_A=int(transpose_a),
            TRANSPOSE_B=int(transpose_b),
        )
        grid, block = gemm_shape(version, M, N)
        return kernel.bind(grid, block, M, N, K, alpha, A, A.ld, B, B.ld, beta, C, C.ld, D, D.ld)

    def _split_gemm(
        self,
        D: DeviceArray,
        A: DeviceArray,
        B: DeviceArray,
        transpose_a: bool,
        transpose_b: bool,
        alpha: float,
        beta: float,
        C: DeviceArray,
    ) -> Launch:
        """By ``wgmma``, of operands that are split first; TF32 along k can be read as it is."""
        cores, driver = self.tensor_cores, self.library.driver
        layout = transpose_a, transpose_b
        if self.terms == TERMS["tf32"] and layout == (False, True) and all(map(reads_tf32, (A, B))):
            return cores.multiply(D, Terms.tf32(A), Terms.tf32(B), *layout, alpha, beta, C)
        terms_a, terms_b = (Terms.empty(driver, self.terms, *X.shape) for X in (A, B))
        split = cores.split((A, terms_a), (B, terms_b))
        return in_order([split, cores.multiply(D, terms_a, terms_b, *layout, alpha, beta, C)])

    def bias_activation(self, Z: DeviceArray, b: DeviceArray, A: DeviceArray, activation: str) -> Launch:
        """A = f(Z + b); Z and A (rows, columns), b (columns,). A may be Z."""
        rows, columns = matrix_shape("bias_activation", Z=Z)
        require_shape("bias_activation", (rows, columns), A=A)
        require_shape("bias_activation", (columns,), b=b)
        kernel = self.library.kernel("activation", "bias_activation", REAL=self.real, ACTIVATION=activation)
        return kernel.bind(*plane_shape(rows, columns), rows, columns, Z, b, A)

    def activation_backward(
        self, A: DeviceArray, dA: DeviceArray, dZ: DeviceArray, activation: str
    ) -> Launch:
        """dZ = dA f'(Z), given A = f(Z); three arrays of one shape. dZ may be dA."""
        require_shape("activation_backward", A.shape, A=A, dA=dA, dZ=dZ)
        kernel = self.library.kernel(
            "activation", "activation_backward", REAL=self.real, ACTIVATION=activation
        )
        return kernel.bind(*line_shape(A.size), A.size, A, dA, dZ)

    def head(
        self,
        kind: str,
        Z: DeviceArray,
        b: DeviceArray,
        labels: DeviceArray,
        dZ: DeviceArray,
        loss: DeviceArray,
        scale: float,
    ) -> Launch:
        """Loss of each row and its gradient, both times ``scale``, for logits Z + b.

        ``kind`` is softmax or sigmoid; Z and dZ (rows, classes), b (classes,), labels (rows,) int32,
        loss (rows,). dZ may be Z.
        """
        rows, classes = matrix_shape("head", Z=Z)
        require_shape("head", (rows, classes), dZ=dZ)
        require_shape("head", (classes,), b=b)
        require_shape("head", (rows,), labels=labels, loss=loss)
        kernel = self.library.kernel("head", f"{kind}_head", REAL=self.real)
        return kernel.bind(*head_shape(rows), rows, classes, scale, Z, b, labels, dZ, loss)

    def column_sums(self, X: DeviceArray, sums: DeviceArray) -> Launch:
        """sums[j] = sum of X[:, j], in a fixed order; X (rows, columns), perhaps a column slice."""
        if len(X.shape) != 2:
            raise ValueError(f"column_sums: X has shape {X.shape}, not two dimensions")
        rows, columns = X.shape
        require_shape("column_sums", (columns,), sums=sums)
        kernel = self.library.kernel("reduce", "column_sums", REAL=self.real)
        return kernel.bind(*column_sums_shape(columns), rows, columns, X, X.ld, sums)

    def sgd(self, descent: Descent) -> Launch:
        """p -= rate v, v = momentum v + g + decay p, for each parameter p with its gradient g."""
        (size,), stretches = descent.parameters.shape, descent.stretches
        if descent.gradients.size < size or any(s.start + s.size > size for s in stretches):
            raise ValueError(
                f"sgd: gradients {descent.gradients.shape}, or {stretches}, do not fit {(size,)}"
            )
        if descent.velocity is not None:
            require_shape("sgd", (size,), velocity=descent.velocity)
        (across,), block = line_shape(blocks(max(stretch.size for stretch in stretches), 4))
        kernel = self.library.kernel("sgd", "sgd", REAL=self.real)
        return kernel.bind(
            (across, len(stretches)),
            block,
            self._on_device(b"".join(stretch.packed() for stretch in stretches)),
            *self._descent(descent),
        )

    def _descent(self, descent: Descent) -> tuple[Argument, ...]:
        """The arguments that the kernels which descend have in common, in their order."""
        ring = self._on_device(descent.ring.packed()) if descent.ring is not None else None
        rates = descent.rate, descent.momentum, descent.decay
        return *rates, descent.gradients, descent.velocity, descent.parameters, ring

    def sum_update_spread(self, peers: Peers, descent: Descent, summed: bool = False) -> Launch:
        """As `sgd`, after the sum over all peers, and everywhere; a stretch begins each of their buckets.

        If they are ``summed``, the gradients of the shard that this rank owns are the sums already.
        """
        name = "update_spread" if summed else "sum_update_spread"
        return self._spread(name, peers, descent.stretches, *self._descent(descent))

    def sum_shards(self, peers: Peers, stretches: Sequence[Stretch]) -> Launch:
        """Sums over all peers of the shard that this rank owns, in place of its gradients."""
        return self._spread("sum_shards", peers, stretches, peers.gradients)

    def _spread(self, name: str, peers: Peers, stretches: Sequence[Stretch], *arguments: Argument) -> Launch:
        """A kernel of one of the exchanges over peer memory."""
        return peers.bind(self.library, name, [stretch.packed() for stretch in stretches], *arguments)

    def scale_pixels(self, images: DeviceArray, X: DeviceArray | Terms, scale: float) -> Launch:
        """X = images / scale; images (rows or more, columns), X (rows, columns).

        X may be terms, one for uint8 images: they get the pixels themselves, and scale counts for nothing.
        """
        out, ld, (rows, columns) = _input("scale_pixels", X)
        available, width = matrix_shape("scale_pixels", images=images)
        if width != columns or available < rows:
            raise ValueError(f"scale_pixels: images {images.shape} do not fill X {(rows, columns)}")
        kernel = self._pixels("scale_pixels", images, X)
        return kernel.bind(*_pixels_shape(X, rows, columns), rows, columns, scale, images, out, ld)

    def gather_batch(
        self,
        images: DeviceArray,
        labels: DeviceArray,
        order: DeviceArray,
        place: Place,
        X: DeviceArray | Terms,
        batch_labels: DeviceArray,
        scale: float,
        overtakes: bool = False,
    ) -> Launch:
        """X[i] = images[j] / scale and batch_labels[i] = labels[j], where j = order[place + i].

        images (n, columns), labels (n,) int32, order (any,) int32, X (rows, columns) or terms as in
        `scale_pixels`, batch_labels (rows,) int32. What order holds there must be row numbers below n. The
        place moves on. If it ``overtakes``, the kernel before must write none of what this one reads.
        """
        out, ld, (rows, columns) = _input("gather_batch", X)
        count, width = matrix_shape("gather_batch", images=images)
        if width != columns:
            raise ValueError(f"gather_batch: images {images.shape} do not fill X {(rows, columns)}")
        require_shape("gather_batch", (count,), labels=labels)
        require_shape("gather_batch", (rows,), batch_labels=batch_labels)
        require_shape("gather_batch", (2,), place=place.state)
        kernel = self._pixels("gather_batch", images, X)
        shape = _pixels_shape(X, rows, columns)
        moving = (place.state.rows(0, 1), place.state.rows(1, 2), place.advance, place.places)
        results = (out, ld, batch_labels)
        return kernel.bind(
            *shape, rows, columns, scale, images, labels, order, *moving, *results, int(overtakes)
        )

    def _pixels(self, name: str, images: DeviceArray, X: DeviceArray | Terms) -> Kernel:
        number = "bfloat16" if isinstance(X, Terms) else self.real
        pixel = np.dtype(images.dtype).name
        return self.library.kernel("pixels", name, REAL=self.real, PIXEL=pixel, NUMBER=number)

    def skip_batch(self, place: Place) -> Launch:
        """To the place of the next batch."""
        kernel = self.library.kernel("batch", "skip_batch", REAL=self.real)
        return kernel.bind((1,), (1,), place.state, place.advance, place.places)

    def keep_loss(self, ring: LossRing) -> Launch:
        """The loss of a step into the ring."""
        packed = ring.packed()
        kernel = self.library.kernel("batch", "keep_loss_alone", REAL=self.real)
        return kernel.bind((1,), (1,), self._on_device(packed))

    def _on_device(self, packed: bytes) -> DeviceArray:
        return DeviceArray.from_host(self.library.driver, np.frombuffer(packed, np.uint8))


def _swapped(shape: tuple[int, ...]) -> tuple[int, int]:
    rows, columns = shape
    return columns, rows


def _input(kernel: str, X: DeviceArray | Terms) -> tuple[DeviceArray, int, tuple[int, int]]:
    """Memory, leading dimension and shape of the input of the network."""
    if isinstance(X, Terms):
        if X.count != 1:
            raise ValueError(f"{kernel}: a pixel is one term, not {X.count}")
        return X.array, X.ld, (X.rows, X.columns)
    shape = matrix_shape(kernel, X=X)
    return X, X.ld, shape


def _pixels_shape(X: DeviceArray | Terms, rows: int, columns: int) -> tuple[Grid, Block]:
    """Grid and block of the kernels of pixels.cu: a thread takes 8 x 4 pixels that become terms, or one."""
    return plane_shape(rows, blocks(columns, 32 if isinstance(X, Terms) else 1))
