"""Matrix products on tensor cores (kernels/gemm_wgmma.cu): operands as bf16 terms, tile shapes, launches.

M, N and K are the sizes of a product op(A) op(B): op(A) is (M, K), op(B) is (K, N).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from nn.network import LARGEST
from nn.shapes import MAX_GRID_Y, plane_shape
from pyrt.driver import Driver
from pyrt.errors import UserError
from pyrt.kernels import Argument, Constants, Kernel, KernelLibrary, Launch, blocks
from pyrt.memory import DeviceArray

TERMS = {"float32": 3, "tf32": 2, "bf16": 1}
"""Terms of an operand for each accuracy: 24, 16 and 8 bits."""

COLUMN_STEP = 8
"""A view of some columns begins at a multiple of this: 16 bytes of bf16."""

_DEPTH = 64  # of a tile along k: 128 bytes of bf16
_LINE = 64  # elements to which leading dimensions are rounded up: a transposed tile reads whole lines of them
_MOST_STAGES = 8
_STATIC_SHARED = 1024  # bytes: barriers, and the alignment of what follows
_SPLIT_BLOCK = (64, 4)
_SPLIT_WIDTH = 4  # neighbours that a thread splits


@dataclass(frozen=True, eq=False)
class Terms:
    """A matrix (rows, columns) as the sum of ``count`` bf16 matrices: their bits, one behind the other.

    ``ld`` is the leading dimension, ``distance`` the elements from one term to the next.
    """

    array: DeviceArray
    count: int
    rows: int
    columns: int
    ld: int
    distance: int

    @classmethod
    def empty(cls, driver: Driver, count: int, rows: int, columns: int) -> Terms:
        """Room for the terms of a matrix of this shape; zeros."""
        ld = -(-max(columns, 1) // _LINE) * _LINE
        if max(rows, 1) * ld > LARGEST:
            raise UserError(
                f"the terms of a {rows} x {columns} matrix are more than 2^31 elements apart: use a smaller "
                "--batch or --hidden, or more ranks"
            )
        # A transposed tile of a view of some columns reads whole lines, past the end of the last row.
        array = DeviceArray.empty(driver, (count * max(rows, 1) * ld + _LINE,), np.uint16)
        stream = driver.create_stream()
        driver.fill(array.pointer, 0, array.nbytes, stream)
        driver.synchronize_stream(stream)
        return cls(array, count, rows, columns, ld, max(rows, 1) * ld)

    @property
    def matrix(self) -> DeviceArray:
        """All terms as one matrix, (count * rows, ld)."""
        return self.array.rows(0, self.count * self.distance).reshape(self.count * self.rows, self.ld)

    def some_columns(self, start: int, stop: int) -> Terms:
        """A view of columns ``start`` to ``stop``; ``start`` is a multiple of `COLUMN_STEP`."""
        if not 0 <= start <= stop <= self.columns or start % COLUMN_STEP:
            raise IndexError(f"columns {start}:{stop} of {self.columns}")
        return replace(self, array=self.array.rows(start, self.array.size), columns=stop - start)

    def tensor_map(self, transposed: bool, lines: int) -> DeviceArray:
        """How the device finds tiles of all terms, ``lines`` by 64 along k: see `fetch` in gemm_wgmma.cu.

        A line is a row or, where the operand is transposed, a column: there k runs down the rows.
        """
        itemsize = self.array.dtype.itemsize
        row, term = self.ld * itemsize, self.distance * itemsize
        rows, columns = max(self.rows, 1), max(self.columns, 1)
        if transposed:
            sizes = (_LINE, rows, -(-columns // _LINE), self.count)
            strides, box = (row, _LINE * itemsize, term), (_LINE, _DEPTH, lines // _LINE, self.count)
        else:
            sizes, strides = (columns, rows, 1, self.count), (row, term, term)
            box = (_DEPTH, lines, 1, self.count)
        packed = self.array.driver.tensor_map(self.array.pointer, sizes, strides, box)
        return DeviceArray.from_host(self.array.driver, np.frombuffer(packed, np.uint8))


class TermsPool:
    """Terms for several lists of operations that run one after another, and so in the same memory."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._made: dict[tuple[int, int, int], list[Terms]] = {}

    def of_a_list(self) -> Callable[[int, int, int], Terms]:
        """What gives a list its terms (count, rows, columns), those of two calls in memory of their own."""
        taken: Counter[tuple[int, int, int]] = Counter()

        def take(count: int, rows: int, columns: int) -> Terms:
            shape = count, rows, columns
            made = self._made.setdefault(shape, [])
            if taken[shape] == len(made):
                made.append(Terms.empty(self._driver, *shape))
            taken[shape] += 1
            return made[taken[shape] - 1]

        return take


@dataclass(frozen=True)
class Tiling:
    """How a product is cut: ``rows`` x ``columns`` of D a block, K into ``parts``; ``stages`` buffers."""

    rows: int
    columns: int
    parts: int
    stages: int

    @property
    def kernel(self) -> str:
        return f"gemm_{self.rows}x{self.columns}"

    @property
    def threads(self) -> int:
        """64 rows a warpgroup, and one warpgroup that fetches."""
        return 128 * (self.rows // 64 + 1)

    def stage_bytes(self, terms_a: int, terms_b: int) -> int:
        """Shared memory of one buffer."""
        return (terms_a * self.rows + terms_b * self.columns) * _DEPTH * 2


_TILES = ((64, 64), (128, 64), (192, 64), (128, 128))
_PARTS = (1, 2, 3, 4, 6, 8)

# Measured on an H100, in microseconds: a launch with the first tile on its way and the last
# one written, one product of terms of a 64 x 64 x 64 tile, and the launch that adds the parts of K.
_LAUNCH = 3.8
_PRODUCT = 0.085
_SUM_PARTS = 3.5
_FEW_STAGES = {1: 2.0, 2: 1.45}  # how much longer products take where too few tiles are on their way


def products(terms_a: int, terms_b: int) -> int:
    """Products of terms that a product of sums of terms needs; the others are below its rounding."""
    most = max(terms_a, terms_b)
    return sum(i + j < most for i, j in itertools.product(range(terms_a), range(terms_b)))


def choose_tiling(
    M: int, N: int, K: int, terms_a: int, terms_b: int, multiprocessors: int, shared_memory: int
) -> Tiling:
    """The cut that should take least time with so many multiprocessors, bytes of shared memory a block."""
    depth = max(1, -(-K // _DEPTH))

    def cut(tile: tuple[int, int], parts: int) -> Tiling:
        stage = Tiling(*tile, parts, 1).stage_bytes(terms_a, terms_b)
        return Tiling(*tile, parts, max(1, min(_MOST_STAGES, (shared_memory - _STATIC_SHARED) // stage)))

    def microseconds(tiling: Tiling) -> float:
        count = blocks(M, tiling.rows) * blocks(N, tiling.columns) * tiling.parts
        # A few blocks a multiprocessor run in waves; of many the last wave is a small part.
        waves = blocks(count, multiprocessors) if count < 4 * multiprocessors else count / multiprocessors
        size = tiling.rows * tiling.columns / (64 * 64) * products(terms_a, terms_b)
        tiles = -(-depth // tiling.parts)
        time = waves * (_LAUNCH + tiles * size * _PRODUCT * _FEW_STAGES.get(tiling.stages, 1))
        return time + (_SUM_PARTS if tiling.parts > 1 else 0)

    candidates = [cut(tile, parts) for tile in _TILES for parts in _PARTS if parts <= depth]
    return min(candidates, key=microseconds)


class TensorCores:
    """The kernels of gemm_wgmma.cu."""

    def __init__(self, library: KernelLibrary) -> None:
        self._library = library
        self._driver = library.driver

    def split(self, *matrices: tuple[DeviceArray, Terms]) -> Launch:
        """The launch that splits one matrix, or two, into their terms."""
        count = max(terms.count for _, terms in matrices)
        kernel = self._kernel("split_terms", False, True, count, count, "identity")
        rows, columns = (max(X.shape[axis] for X, _ in matrices) for axis in (0, 1))
        across, down = _SPLIT_BLOCK
        grid = (blocks(rows, down), min(blocks(columns, across * _SPLIT_WIDTH), MAX_GRID_Y), len(matrices))
        arguments: list[Argument] = []
        for X, terms in (matrices[0], matrices[-1]):
            arguments += [*X.shape, X, X.ld, terms.count, terms.array, terms.ld, terms.distance]
        return kernel.bind(grid, _SPLIT_BLOCK, *arguments)

    def multiply(
        self,
        D: DeviceArray,
        A: Terms,
        B: Terms,
        transpose_a: bool = False,
        transpose_b: bool = False,
        alpha: float = 1.0,
        beta: float = 0.0,
        C: DeviceArray | None = None,
        bias: DeviceArray | None = None,
        activation: str = "identity",
    ) -> list[Launch]:
        """D = f(alpha op(A) op(B) + beta C + bias); C and D (M, N) float32, bias (N,)."""
        M, K = (A.columns, A.rows) if transpose_a else (A.rows, A.columns)
        N, depth = (B.rows, B.columns) if transpose_b else (B.columns, B.rows)
        if depth != K or D.shape != (M, N):
            raise ValueError(f"multiply: D {D.shape} is not ({M}, {N}), or K differs: {K} and {depth}")
        tiling = choose_tiling(
            M, N, K, A.count, B.count, self._driver.multiprocessors, self._driver.shared_memory
        )
        C = C or D
        result = (alpha, beta, C, C.ld, bias, D, D.ld)
        constants = (transpose_a, transpose_b, A.count, B.count, activation)
        partials = None
        if tiling.parts > 1:
            partials = DeviceArray.empty(self._driver, (tiling.parts * M * N,), np.float32)
        product = self._kernel(tiling.kernel, *constants).bind(
            (blocks(M, tiling.rows), blocks(N, tiling.columns), tiling.parts),
            (tiling.threads,),
            *(M, N, K),
            A.tensor_map(transpose_a, tiling.rows),
            B.tensor_map(not transpose_b, tiling.columns),
            tiling.stages,
            partials,
            *result,
            shared=tiling.stages * tiling.stage_bytes(A.count, B.count),
        )
        if partials is None:
            return [product]
        file, add_constants = parts_sum(activation)
        add = self._library.kernel(file, "sum_parts", **add_constants)
        return [product, add.bind(*plane_shape(M, N), M, N, tiling.parts, partials, None, None, *result)]

    def _kernel(
        self, name: str, transpose_a: bool, transpose_b: bool, terms_a: int, terms_b: int, activation: str
    ) -> Kernel:
        file, constants = tensor_product(transpose_a, transpose_b, terms_a, terms_b, activation)
        return self._library.kernel(file, name, **constants)


def tensor_product(
    transpose_a: bool, transpose_b: bool, terms_a: int, terms_b: int, activation: str
) -> tuple[str, Constants]:
    """The kernel file and constants of such a product."""
    return "gemm_wgmma", {
        "REAL": "float",
        "TRANSPOSE_A": int(transpose_a),
        "TRANSPOSE_B": int(transpose_b),
        "TERMS": f"{terms_a}{terms_b}",
        "ACTIVATION": activation,
    }


def parts_sum(activation: str) -> tuple[str, Constants]:
    """The kernel file and constants of what adds the parts of K of a product."""
    return "sum_parts", {"REAL": "float", "ACTIVATION": activation}
