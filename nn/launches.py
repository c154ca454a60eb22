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

from nn.tensor_cores import TERMS, TensorCores, Terms, tensor_product
from pyrt.kernels import Constants, Kernel, KernelLibrary, Launch, blocks, in_order
from pyrt.memory import DeviceArray

PLAIN_GEMM_VERSIONS = ("naive", "shared", "register", "tiled")
"""Versions of the matrix product that every device runs, in both dtypes, from the first to the fastest."""

GEMM_VERSIONS = (*PLAIN_GEMM_VERSIONS, "wgmma")
"""All versions; the tensor cores' is for float32, and for devices of `TENSOR_ARCHITECTURES`."""

TENSOR_ARCHITECTURES = ("sm_90a", "emulated")

THIN, THIN_GEMM = 32, "register"
"""K up to which splitting operands costs more than the whole product, and what is fastest there."""

Grid = tuple[int, ...]
Block = tuple[int, ...]

_REALS = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}
_GEMM_BLOCKS: dict[str, Block] = {"naive": (32, 8), "shared": (32, 32), "register": (16, 4), "tiled": (128,)}
_GEMM_TILES = {"naive": (8, 32), "shared": (32, 32), "register": (16, 64), "tiled": (64, 64)}

_PLANE_BLOCK = (32, 8)
_LINE_BLOCK = (256,)
_HEAD_BLOCK = (32, 4)
_COLUMN_SUM_THREADS = 512
_COLUMN_SUM_WIDTH = 8  # columns a block: 32 bytes of float32, the least that memory moves at once
_MAX_LINE_BLOCKS = 4096  # more than any GPU runs at once; the kernels stride over what is left
_MAX_GRID_Y = 65535

# As narrow_head.cu has them.
_NARROW_CLASSES = (10, 32)
_NARROW_SLICES = 4
_NARROW_TERMS = 3
_SUM_PARTIALS_BLOCK = (32, 16)


def fastest_gemm(dtype: DTypeLike, architecture: str) -> str:
    """The version of the matrix product that is fastest for numbers of this dtype on this architecture."""
    if np.dtype(dtype) == np.float32 and architecture == "sm_90a":
        return "wgmma"
    return PLAIN_GEMM_VERSIONS[-1]


def gemm_shape(version: str, M: int, N: int) -> tuple[Grid, Block]:
    """Grid and block of a version of the matrix product for an M x N result."""
    rows, columns = _GEMM_TILES[version]
    return (blocks(M, rows), blocks(N, columns)), _GEMM_BLOCKS[version]


def plane_shape(rows: int, columns: int) -> tuple[Grid, Block]:
    """Grid and block of a kernel with a thread for each element of a matrix."""
    across, down = _PLANE_BLOCK
    return (blocks(rows, down), min(blocks(columns, across), _MAX_GRID_Y)), _PLANE_BLOCK


def line_shape(size: int) -> tuple[Grid, Block]:
    """Grid and block of a kernel with a thread for each element of a flat array."""
    return (min(blocks(size, _LINE_BLOCK[0]), _MAX_LINE_BLOCKS),), _LINE_BLOCK


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
class NarrowHeadShape:
    """How `Kernels.narrow_head` is launched."""

    classes: int
    """The constant CLASSES: how many classes the kernel is made for."""
    threads: int
    rows: int
    """That a block takes at a time."""
    halvings: int
    """How often the columns are halved, so that each warp has a part of some row."""
    shared: int
    """Bytes of shared memory."""


def narrow_head_shape(rows: int, hidden: int, classes: int, dtype: DTypeLike, grid: int) -> NarrowHeadShape:
    """For ``rows`` x ``hidden`` activations, at most 32 classes, and a grid of so many blocks.

    A block takes the rows that are its own in as few equal parts as registers and shared memory allow.
    """
    share = blocks(rows, grid)
    most = 256 // np.dtype(dtype).itemsize
    return _narrow_head_shape(blocks(share, blocks(share, most)), hidden, classes, dtype)


def _narrow_head_shape(rows: int, hidden: int, classes: int, dtype: DTypeLike) -> NarrowHeadShape:
    size = np.dtype(dtype).itemsize
    vector = 16 // size
    made_for = next(most for most in _NARROW_CLASSES if classes <= most)
    wide = made_for * size
    threads, columns = (512, 2) if wide <= 40 else (256, 1) if wide <= 128 else (128, 1)
    warps, at_once = threads // 32, 32 // made_for

    tasks, steps, halvings = blocks(rows, at_once), blocks(hidden, 32 * vector), 0
    while 2 << halvings <= min(_NARROW_SLICES, steps) and tasks << halvings + 1 <= warps:
        halvings += 1

    logits = rows * made_for << halvings
    threads_meet = blocks(hidden, columns) <= threads // 2
    sums = (made_for + 1) * columns * threads // 2 if threads_meet else 0
    numbers = (
        made_for * _up(hidden, vector) + rows * _up(made_for, vector) + 2 * _up(rows, 2) + max(logits, sums)
    )
    return NarrowHeadShape(made_for, threads, rows, halvings, numbers * size)


def narrow_head_fits(hidden: int, classes: int, dtype: DTypeLike, shared_memory: int) -> bool:
    """Whether `Kernels.narrow_head` can take such layers, whatever the batch, on a device that gives a block
    so many bytes of shared memory: the weights must fit.
    """
    if classes > _NARROW_CLASSES[-1]:
        return False
    most = 256 // np.dtype(dtype).itemsize
    return all(
        _narrow_head_shape(rows, hidden, classes, dtype).shared <= shared_memory
        for rows in range(1, most + 1)
    )


def narrow_head_partials(
    rows: int, hidden: int, classes: int, dtype: DTypeLike, multiprocessors: int
) -> tuple[int, int]:
    """The shape of the workspace of `Kernels.narrow_head`: its blocks, and what each of them sums up.

    A block for each multiprocessor, but no more than have rows for a warp.
    """
    vector = 16 // np.dtype(dtype).itemsize
    at_once = 3 if classes <= _NARROW_CLASSES[0] else 1
    return min(blocks(rows, at_once), multiprocessors), _up(
        (classes + 1) * _up(hidden, vector) + classes + 1, 32
    )


def _narrow_head_constants(real: str, head: str, activation: str, classes: int) -> dict[str, str | int]:
    made_for = next(most for most in _NARROW_CLASSES if classes <= most)
    return {"REAL": real, "HEAD": head, "ACTIVATION": activation, "CLASSES": made_for}


def _up(size: int, step: int) -> int:
    """The next multiple of ``step``."""
    return -(-size // step) * step


class Kernels:
    """The project's kernels for one dtype.

    Parameters
    ----------
    library: where the kernels come from
    dtype: float32 or float64, of all numbers
    gemm: ``auto`` (see `fastest_gemm`) or one of `GEMM_VERSIONS`
    math: the accuracy of ``wgmma``, one of `nn.tensor_cores.TERMS`

    Methods return a `Launch` (`narrow_head` two); shapes that do not fit raise ValueError.
    """

    def __init__(
        self, library: KernelLibrary, dtype: DTypeLike, gemm: str = "auto", math: str = "float32"
    ) -> None:
        if gemm not in ("auto", *GEMM_VERSIONS):
            raise ValueError(f"gemm is auto, {', '.join(GEMM_VERSIONS)}, not {gemm!r}")
        self.library = library
        self.real = _REALS[np.dtype(dtype)]
        self.gemm_version = fastest_gemm(dtype, library.driver.architecture) if gemm == "auto" else gemm
        self.terms = TERMS[math]
        self.tensor_cores = TensorCores(library)

    @property
    def uses_tensor_cores(self) -> bool:
        return self.gemm_version == "wgmma"

    def prefers_tensor_cores(self, M: int, N: int, K: int) -> bool:
        """Whether a product of these sizes is one for tensor cores."""
        return self.uses_tensor_cores and K > THIN

    def prefers_narrow_head(self, hidden: int, classes: int) -> bool:
        """Whether an output layer of these sizes is one for `narrow_head`."""
        return self.uses_tensor_cores and narrow_head_fits(
            hidden, classes, np.float32, self.library.driver.shared_memory
        )

    def required(
        self, activation: str, head: str, classes: int, pixel: DTypeLike, apart: bool = False
    ) -> list[tuple[str, Constants]]:
        """The (file, constants) that training needs, for `KernelLibrary.compile`.

        ``pixel`` is the dtype of the images. The products are X W^T, dZ^T X and dZ W. On tensor cores
        ``apart`` says that operations stay so, or that there is more than one hidden layer.
        """
        real, pixel = self.real, np.dtype(pixel)
        products: list[tuple[str, Constants]] = [
            ("gemm", {"REAL": real, "TRANSPOSE_A": a, "TRANSPOSE_B": b}) for a, b in ((0, 1), (1, 0), (0, 0))
        ]
        if self.uses_tensor_cores:
            terms, input_terms = self.terms, 1 if pixel == np.uint8 else self.terms
            products += [
                tensor_product(False, True, input_terms, terms, activation),
                tensor_product(True, False, terms, input_terms, "identity"),
                tensor_product(False, True, terms, terms, "identity"),
                ("pixels", {"REAL": real, "PIXEL": "uint8", "NUMBER": "bfloat16"}),
            ]
            if apart:
                products += [
                    tensor_product(True, False, terms, terms, "identity"),
                    tensor_product(False, False, terms, terms, "identity"),
                    tensor_product(False, True, terms, terms, activation),
                ]
            if classes <= _NARROW_CLASSES[-1]:
                products.append(("narrow_head", _narrow_head_constants(real, head, activation, classes)))
        return [
            *products,
            *(("activation", {"REAL": real, "ACTIVATION": word}) for word in (activation, "identity")),
            ("head", {"REAL": real}),
            ("reduce", {"REAL": real}),
            ("sgd", {"REAL": real}),
            ("pixels", {"REAL": real, "PIXEL": pixel.name, "NUMBER": real}),
            ("batch", {"REAL": real}),
        ]

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
        if self.prefers_tensor_cores(M, N, K):
            terms_a, terms_b = (Terms.empty(self.library.driver, self.terms, *X.shape) for X in (A, B))
            split = self.tensor_cores.split((A, terms_a), (B, terms_b))
            multiply = self.tensor_cores.multiply(
                D, terms_a, terms_b, transpose_a, transpose_b, alpha, beta, C
            )
            return in_order([split, *multiply])
        version = THIN_GEMM if self.uses_tensor_cores else self.gemm_version
        kernel = self.library.kernel(
            "gemm",
            f"gemm_{version}",
            REAL=self.real,
            TRANSPOSE_A=int(transpose_a),
            TRANSPOSE_B=int(transpose_b),
        )
        grid, block = gemm_shape(version, M, N)
        return kernel.bind(grid, block, M, N, K, alpha, A, A.ld, B, B.ld, beta, C, C.ld, D, D.ld)

    def bias_activation(self, Z: DeviceArray, b: DeviceArray, A: DeviceArray, activation: str) -> Launch:
        """A = f(Z + b); Z and A (rows, columns), b (columns,). A may be Z."""
        rows, columns = _matrix("bias_activation", Z=Z)
        _same("bias_activation", (rows, columns), A=A)
        _same("bias_activation", (columns,), b=b)
        kernel = self.library.kernel("activation", "bias_activation", REAL=self.real, ACTIVATION=activation)
        return kernel.bind(*plane_shape(rows, columns), rows, columns, Z, b, A)

    def activation_backward(
        self, A: DeviceArray, dA: DeviceArray, dZ: DeviceArray, activation: str
    ) -> Launch:
        """dZ = dA f'(Z), given A = f(Z); three arrays of one shape. dZ may be dA."""
        _same("activation_backward", A.shape, A=A, dA=dA, dZ=dZ)
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
        rows, classes = _matrix("head", Z=Z)
        _same("head", (rows, classes), dZ=dZ)
        _same("head", (classes,), b=b)
        _same("head", (rows,), labels=labels, loss=loss)
        kernel = self.library.kernel("head", f"{kind}_head", REAL=self.real)
        return kernel.bind(*head_shape(rows), rows, classes, scale, Z, b, labels, dZ, loss)

    def narrow_head(
        self,
        kind: str,
        activation: str,
        A: DeviceArray,
        W: DeviceArray,
        b: DeviceArray,
        labels: DeviceArray,
        partials: DeviceArray,
        dW: DeviceArray,
        db: DeviceArray,
        db_hidden: DeviceArray,
        loss: DeviceArray,
        scale: float,
        dZ: DeviceArray | None = None,
        terms: DeviceArray | None = None,
    ) -> tuple[Launch, Launch]:
        """From the last hidden layer to its dZ, the output layer's gradients and the sum of the losses.

        ``kind`` is softmax or sigmoid, ``activation`` that of the hidden layer; A (rows, hidden), W and dW
        (classes, hidden), b and db (classes,), labels (rows,) int32, db_hidden (hidden,), loss (1,). Losses
        and gradients are times ``scale``. dZ (rows, hidden) or, of float32, ``terms``: uint16
        (count * rows, ld), its `count` bf16 terms one behind the other; ld is a multiple of 64, and of the
        columns beyond ``hidden`` the first may be written. ``partials`` is a workspace as
        `narrow_head_partials` has it; its rows are the launch's blocks. See `narrow_head_fits`.
        """
        rows, hidden = _matrix("narrow_head", A=A)
        classes, _ = _matrix("narrow_head", W=W)
        _same("narrow_head", (classes, hidden), W=W, dW=dW)
        _same("narrow_head", (classes,), b=b, db=db)
        _same("narrow_head", (rows,), labels=labels)
        _same("narrow_head", (hidden,), db_hidden=db_hidden)
        _same("narrow_head", (1,), loss=loss)
        grid, width = _matrix("narrow_head", partials=partials)
        if classes > _NARROW_CLASSES[-1]:
            raise ValueError(f"narrow_head: W {W.shape} has more than {_NARROW_CLASSES[-1]} classes")
        if width != narrow_head_partials(rows, hidden, classes, A.dtype, grid)[1]:
            raise ValueError(f"narrow_head: partials {partials.shape} are not for W {W.shape}")
        if (dZ is None) == (terms is None):
            raise ValueError(f"narrow_head: A {A.shape} gets either dZ or its terms")
        count, ld = 0, 0
        if dZ is not None:
            _same("narrow_head", (rows, hidden), dZ=dZ)
        elif terms is not None:
            height, ld = _matrix("narrow_head", terms=terms)
            count = height // rows
            if height % rows or not 1 <= count <= _NARROW_TERMS or ld % 64 or ld < hidden:
                raise ValueError(f"narrow_head: terms {terms.shape} do not hold A {A.shape}")
            if self.real != "float":
                raise ValueError(f"narrow_head: terms {terms.shape} add up to float32 only")
        shape = narrow_head_shape(rows, hidden, classes, A.dtype, grid)
        constants = _narrow_head_constants(self.real, kind, activation, classes)
        kernel = self.library.kernel("narrow_head", "narrow_head", **constants)
        sums = self.library.kernel("narrow_head", "sum_partials", **constants)
        across, down = _SUM_PARTIALS_BLOCK
        sums_grid = (blocks(max(hidden, classes + 1), across), classes + 2)
        sizes = (rows, classes, hidden, shape.rows, shape.halvings)
        return (
            kernel.bind(
                (grid,),
                (shape.threads,),
                *sizes,
                scale,
                A,
                W,
                b,
                labels,
                dZ,
                terms,
                count,
                ld,
                partials,
                width,
                shared=shape.shared,
            ),
            sums.bind(
                sums_grid, (across, down), grid, classes, hidden, partials, width, dW, db_hidden, db, loss
            ),
        )

    def column_sums(self, X: DeviceArray, sums: DeviceArray) -> Launch:
        """sums[j] = sum of X[:, j], in a fixed order; X (rows, columns), perhaps a column slice."""
        if len(X.shape) != 2:
            raise ValueError(f"column_sums: X has shape {X.shape}, not two dimensions")
        rows, columns = X.shape
        _same("column_sums", (columns,), sums=sums)
        kernel = self.library.kernel("reduce", "column_sums", REAL=self.real)
        return kernel.bind(*column_sums_shape(columns), rows, columns, X, X.ld, sums)

    def sgd(
        self,
        parameters: DeviceArray,
        gradients: DeviceArray,
        velocity: DeviceArray | None,
        stretches: Sequence[Stretch],
        rate: float,
        momentum: float,
        decay: float,
    ) -> Launch:
        """One step of gradient descent on these stretches of flat arrays; ``gradients`` may be longer.

        Without a velocity there is no momentum.
        """
        (size,) = parameters.shape
        if gradients.size < size or any(s.start + s.size > size for s in stretches):
            raise ValueError(
                f"sgd: gradients {gradients.shape}, or {stretches}, do not fit {parameters.shape}"
            )
        if velocity is not None:
            _same("sgd", (size,), velocity=velocity)
        packed = np.frombuffer(b"".join(stretch.packed() for stretch in stretches), np.uint8)
        (across,), block = line_shape(blocks(max(stretch.size for stretch in stretches), 4))
        kernel = self.library.kernel("sgd", "sgd", REAL=self.real)
        return kernel.bind(
            (across, len(stretches)),
            block,
            DeviceArray.from_host(self.library.driver, packed),
            *(rate, momentum, decay, gradients, velocity, parameters),
        )

    def scale_pixels(self, images: DeviceArray, X: DeviceArray | Terms, scale: float) -> Launch:
        """X = images / scale; images (rows or more, columns), X (rows, columns).

        X may be terms, one for uint8 images: they get the pixels themselves, and scale counts for nothing.
        """
        out, ld, (rows, columns) = _input("scale_pixels", X)
        available, width = _matrix("scale_pixels", images=images)
        if width != columns or available < rows:
            raise ValueError(f"scale_pixels: images {images.shape} do not fill X {(rows, columns)}")
        kernel = self._pixels("scale_pixels", images, X)
        return kernel.bind(*_pixels_shape(X, rows, columns), rows, columns, scale, images, out, ld)

    def gather_batch(
        self,
        images: DeviceArray,
        labels: DeviceArray,
        order: DeviceArray,
        place: DeviceArray,
        X: DeviceArray | Terms,
        batch_labels: DeviceArray,
        scale: float,
    ) -> Launch:
        """X[i] = images[j] / scale and batch_labels[i] = labels[j], where j = order[place[0] + i].

        images (n, columns), labels (n,) int32, order (any,) int32, place (1,) int32, X (rows, columns) or
        terms as in `scale_pixels`, batch_labels (rows,) int32. What order holds there must be row numbers
        below n.
        """
        out, ld, (rows, columns) = _input("gather_batch", X)
        count, width = _matrix("gather_batch", images=images)
        if width != columns:
            raise ValueError(f"gather_batch: images {images.shape} do not fill X {(rows, columns)}")
        _same("gather_batch", (count,), labels=labels)
        _same("gather_batch", (rows,), batch_labels=batch_labels)
        _same("gather_batch", (1,), place=place)
        kernel = self._pixels("gather_batch", images, X)
        shape = _pixels_shape(X, rows, columns)
        return kernel.bind(*shape, rows, columns, scale, images, labels, order, place, out, ld, batch_labels)

    def _pixels(self, name: str, images: DeviceArray, X: DeviceArray | Terms) -> Kernel:
        number = "bfloat16" if isinstance(X, Terms) else self.real
        pixel = np.dtype(images.dtype).name
        return self.library.kernel("pixels", name, REAL=self.real, PIXEL=pixel, NUMBER=number)

    def next_batch(
        self, loss: DeviceArray, losses: DeviceArray, state: DeviceArray, batch: int, rows: int
    ) -> Launch:
        """Keep loss (1,) in the ring losses (any,), and move state (2,) int32 on: see kernels/batch.cu."""
        _same("next_batch", (1,), loss=loss)
        _same("next_batch", (2,), state=state)
        kernel = self.library.kernel("batch", "next_batch", REAL=self.real)
        return kernel.bind((1,), (1,), batch, rows, losses.size, loss, losses, state)


def _swapped(shape: tuple[int, ...]) -> tuple[int, int]:
    rows, columns = shape
    return columns, rows


def _input(kernel: str, X: DeviceArray | Terms) -> tuple[DeviceArray, int, tuple[int, int]]:
    """Memory, leading dimension and shape of the input of the network."""
    if isinstance(X, Terms):
        if X.count != 1:
            raise ValueError(f"{kernel}: a pixel is one term, not {X.count}")
        return X.array, X.ld, (X.rows, X.columns)
    shape = _matrix(kernel, X=X)
    return X, X.ld, shape


def _pixels_shape(X: DeviceArray | Terms, rows: int, columns: int) -> tuple[Grid, Block]:
    """Grid and block of the kernels of pixels.cu: a thread takes four pixels that become terms, or one."""
    return plane_shape(rows, blocks(columns, 4 if isinstance(X, Terms) else 1))


def _matrix(kernel: str, **arrays: DeviceArray) -> tuple[int, int]:
    """The shape of the one array given; ValueError unless it is a matrix without gaps."""
    ((name, array),) = arrays.items()
    if len(array.shape) != 2 or not array.is_contiguous:
        raise ValueError(f"{kernel}: {name} of shape {array.shape} is not a contiguous matrix")
    rows, columns = array.shape
    return rows, columns


def _same(kernel: str, shape: tuple[int, ...], **arrays: DeviceArray) -> None:
    """ValueError unless each array has this shape and no gaps."""
    for name, array in arrays.items():
        if array.shape != shape or not array.is_contiguous:
            raise ValueError(f"{kernel}: {name} of shape {array.shape} is not a contiguous {shape}")
