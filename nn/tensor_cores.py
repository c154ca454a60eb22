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
from nn.shapes import MAX_GRID_Y
from pyrt.driver import Driver
from pyrt.errors import UserError
from pyrt.kernels import Argument, Constants, Kernel, KernelLibrary, Launch, blocks
from pyrt.memory import DeviceArray

TERMS = {"float32": 3, "tf32": 2, "bf16": 1}
"""Terms of an operand for each accuracy: 24, 16 and 8 bits."""

COLUMN_STEP = 8
"""A view of some columns begins at a multiple of this: 16 bytes of bf16."""

_DEPTH = 128  # bytes of a tile along k
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

    @classmethod
    def tf32(cls, X: DeviceArray) -> Terms:
        """A float32 matrix as it is, one term of which tensor cores see 11 bits; see `reads_tf32`."""
        rows, columns = X.shape
        return cls(X, 1, rows, columns, X.ld, rows * X.ld)

    @property
    def number(self) -> str:
        """The constant NUMBER of gemm_wgmma.cu."""
        return "tf32" if self.array.dtype == np.float32 else "bfloat16"

    @property
    def matrix(self) -> DeviceArray:
        """All terms as one matrix, (count * rows, ld)."""
        return self.array.rows(0, self.count * self.distance).reshape(self.count * self.rows, self.ld)

    @property
    def numbers(self) -> DeviceArray:
        """The same without what pads the rows, (count * rows, columns)."""
        return replace(self.array, shape=(self.count * self.rows, self.columns), ld=self.ld)

    def some_columns(self, start: int, stop: int) -> Terms:
        """A view of columns ``start`` to ``stop``; ``start`` is a multiple of `COLUMN_STEP`."""
        if not 0 <= start <= stop <= self.columns or start % COLUMN_STEP:
            raise IndexError(f"columns {start}:{stop} of {self.columns}")
        return replace(self, array=self.array.rows(start, self.array.size), columns=stop - start)

    def tensor_map(self, transposed: bool, lines: int) -> DeviceArray:
        """How the device finds tiles of all terms, ``lines`` by 128 bytes along k: see `fetch` in
        gemm_wgmma.cu.

        A line is a row or, where the operand is transposed, a column: there k runs down the rows.
        """
        itemsize = self.array.dtype.itemsize
        halves = itemsize // 2  # a float32 is copied as two bf16 elements
        row, term = self.ld * itemsize, self.distance * itemsize
        rows, columns = max(self.rows, 1), max(self.columns, 1)
        if transposed:
            sizes = (_LINE, rows, -(-columns // _LINE), self.count)
            strides, box = (row, _LINE * itemsize, term), (_LINE, _LINE, lines // _LINE, self.count)
        else:
            sizes, strides = (columns * halves, rows, 1, self.count), (row, term, term)
            box = (_DEPTH // 2, lines, 1, self.count)
        packed = self.array.driver.tensor_map(self.array.pointer, sizes, strides, box)
        return DeviceArray.from_host(self.array.driver, np.frombuffer(packed, np.uint8))


def reads_tf32(X: DeviceArray) -> bool:
    """Whether tensor cores can read a float32 matrix as it is: rows begin at multiples of 16 bytes."""
    return X.pointer % 16 == 0 and X.ld % 4 == 0 and X.size > 0


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
        return (terms_a * self.rows + terms_b * self.columns) * _DEPTH


# Fitted to what `make bench ARGS=tiles` measured on an H100, in microseconds: a launch; a megabyte that a
# block's tiles move into shared memory and tensor cores read there, by its part of D; and, where K is in
# parts, until they have met, and each 64 x 64 of another part.
_LAUNCH = 0.8
_MEGABYTE = {(64, 64): 4.4, (128, 64): 4.2, (192, 64): 4.95, (64, 128): 5.25, (128, 128): 5.8}
_WIDE = {(128, 256): 6.3}  # for products of single terms, which need no second set of sums
_MEET, _PART = 1.8, 0.09
_FEW_STAGES = 1.33  # how much longer tiles take where two at most are in shared memory

_PARTS = (1, 2, 3, 4, 6, 8)


def products(terms_a: int, terms_b: int) -> int:
    """Products of terms that a product of sums of terms needs; the others are below its rounding."""
    most = max(terms_a, terms_b)
    return sum(i + j < most for i, j in itertools.product(range(terms_a), range(terms_b)))


def candidates(K: int, terms_a: int, terms_b: int, shared_memory: int) -> list[Tiling]:
    """The cuts of such a product that are worth a thought, in so many bytes of shared memory a block.

    K counts numbers of two bytes: one of TF32 is two of them.
    """

    def cut(tile: tuple[int, int], parts: int) -> Tiling:
        stage = Tiling(*tile, parts, 1).stage_bytes(terms_a, terms_b)
        return Tiling(*tile, parts, min(_MOST_STAGES, (shared_memory - _STATIC_SHARED) // stage))

    tiles = (*_MEGABYTE, *(_WIDE if terms_a == terms_b == 1 else ()))
    cuts = [cut(tile, parts) for tile in tiles for parts in _PARTS if parts <= _tiles_deep(K)]
    return [tiling for tiling in cuts if tiling.stages > 1]  # one tile is fetched while one is multiplied


def predicted(
    tiling: Tiling, M: int, N: int, K: int, terms_a: int, terms_b: int, multiprocessors: int
) -> float:
    """Microseconds that a product cut like this should take on so many multiprocessors."""
    tile = tiling.rows, tiling.columns
    count = blocks(M, tiling.rows) * blocks(N, tiling.columns) * tiling.parts
    # A few blocks a multiprocessor run in waves; of many the last wave is a small part.
    waves = blocks(count, multiprocessors) if count < 4 * multiprocessors else count / multiprocessors
    # A warpgroup reads its 64 rows and all columns for each product of terms.
    read = products(terms_a, terms_b) * tiling.rows // 64 * (64 + tiling.columns) * _DEPTH
    moved = tiling.stage_bytes(terms_a, terms_b) + read
    each = 1e-6 * moved * (_MEGABYTE | _WIDE)[tile] * (_FEW_STAGES if tiling.stages <= 2 else 1)
    time = _LAUNCH + blocks(_tiles_deep(K), tiling.parts) * each
    if tiling.parts > 1:
        time += _MEET + (tiling.parts - 1) * tiling.rows * tiling.columns / (64 * 64) * _PART
    return waves * time


def choose_tiling(
    M: int, N: int, K: int, terms_a: int, terms_b: int, multiprocessors: int, shared_memory: int
) -> Tiling:
    """The candidate that should take least time. `make bench ARGS=tiles` says whether it does."""
    return min(
        candidates(K, terms_a, terms_b, shared_memory),
        key=lambda tiling: predicted(tiling, M, N, K, terms_a, terms_b, multiprocessors),
    )


def _tiles_deep(K: int) -> int:
    return blocks(2 * K, _DEPTH)


SPLIT: tuple[str, Constants] = ("split", {"REAL": "float"})
"""The kernel file and constants of what splits matrices into terms."""

SPLIT_AT_ONCE = 2
"""Matrices that one launch of it takes."""


class TensorCores:
    """The kernels of gemm_wgmma.cu, and that of split.cu."""

    def __init__(self, library: KernelLibrary) -> None:
        self._library = library
        self._driver = library.driver

    def split(self, *matrices: tuple[DeviceArray, Terms]) -> Launch:
        """The launch that splits one matrix, or two, into their terms."""
        file, constants = SPLIT
        kernel = self._library.kernel(file, "split_terms", **constants)
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
        tiling: Tiling | None = None,
        overtakes: bool = False,
    ) -> Launch:
        """D = f(alpha op(A) op(B) + beta C + bias); C and D (M, N) float32, bias (N,).

        ``tiling`` is one of the `candidates`; None: that of `choose_tiling`. If it ``overtakes`` it may run
        beside the kernel before it, which must write neither operand and not overtake one itself.
        """
        M, K = (A.columns, A.rows) if transpose_a else (A.rows, A.columns)
        N, depth = (B.rows, B.columns) if transpose_b else (B.columns, B.rows)
        if depth != K or D.shape != (M, N):
            raise ValueError(f"multiply: D {D.shape} is not ({M}, {N}), or K differs: {K} and {depth}")
        tiling = tiling or choose_tiling(
            M,
            N,
            K * A.array.dtype.itemsize // 2,
            A.count,
            B.count,
            self._driver.multiprocessors,
            self._driver.shared_memory,
        )
        constants = (transpose_a, transpose_b, A.count, B.count, A.number, activation)
        grid = blocks(M, tiling.rows), blocks(N, tiling.columns), tiling.parts
        return self._kernel(tiling.kernel, *constants).bind(
            grid,
            (tiling.threads,),
            *(M, N, K),
            A.tensor_map(transpose_a, tiling.rows),
            B.tensor_map(not transpose_b, tiling.columns),
            tiling.stages,
            *self._parts(tiling, grid[0] * grid[1]),
            int(overtakes),
            *(alpha, beta, C or D, (C or D).ld, bias, D, D.ld),
            shared=tiling.stages * tiling.stage_bytes(A.count, B.count),
        )

    def _parts(self, tiling: Tiling, tiles: int) -> tuple[DeviceArray | None, DeviceArray | None]:
        """Where blocks of parts of K meet: sums of all parts but the last, and a counter for each warp."""
        if tiling.parts == 1:
            return None, None
        sums = (tiling.parts - 1) * tiles * tiling.rows * tiling.columns
        warps = tiles * tiling.rows // 16
        return (
            DeviceArray.empty(self._driver, (sums,), np.float32),
            DeviceArray.from_host(self._driver, np.zeros(warps, np.int32)),
        )

    def _kernel(
        self,
        name: str,
        transpose_a: bool,
        transpose_b: bool,
        terms_a: int,
        terms_b: int,
        number: str,
        activation: str,
    ) -> Kernel:
        file, constants = tensor_product(transpose_a, transpose_b, terms_a, terms_b, activation, number)
        return self._library.kernel(file, name, **constants)


def tensor_product(
    transpose_a: bool,
    transpose_b: bool,
    terms_a: int,
    terms_b: int,
    activation: str,
    number: str = "bfloat16",
) -> tuple[str, Constants]:
    """The kernel file and constants of such a product."""
    return "gemm_wgmma", {
        "REAL": "float",
        "NUMBER": number,
        "TRANSPOSE_A": int(transpose_a),
        "TRANSPOSE_B": int(transpose_b),
        "TERMS": f"{terms_a}{terms_b}",
        "ACTIVATION": activation,
    }
