"""Many matrix products of one shape in one launch, on the tensor cores of sm_90 (kernels/gemm/batch.cu)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from nn.launch.gemm.components import TILE_BYTES, Components
from nn.launch.gemm.wgmma import Tiling, candidates, common_tiles, meeting_places, predicted
from pyrt.arrays import DeviceArray
from pyrt.kernels import Launch, blocks

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels

_LINE = TILE_BYTES // 2


@dataclass(frozen=True)
class Batch:
    """So many matrices of one shape (rows, columns), one below the other, as components."""

    count: int
    matrix: Components

    @property
    def rows(self) -> int:
        """Rows of each of them."""
        return self.matrix.rows // self.count

    def of_rows(self, rows: int) -> Batch:
        """Return the same memory for matrices of fewer rows."""
        matrix = self.matrix
        assert rows <= self.rows
        whole = self.count * rows
        return Batch(self.count, replace(matrix, rows=whole, distance=whole * matrix.ld))

    def map(self, transposed: bool, lines: int) -> DeviceArray:
        """Make the map by which the device finds tiles of a matrix and component: `fetch` in batch.cu."""
        matrix, itemsize = self.matrix, self.matrix.array.dtype.itemsize
        row = matrix.ld * itemsize
        sizes = matrix.columns, self.rows, self.count * matrix.count, 1
        strides = row, row * self.rows, row * matrix.rows * matrix.count
        box = _LINE, _LINE if transposed else lines, 1, 1
        packed = matrix.array.driver.tensor_map(matrix.array.pointer, sizes, strides, box)
        return DeviceArray.from_host(matrix.array.driver, np.frombuffer(packed, np.uint8))


def bind_batch(
    kernels: Kernels,
    D: DeviceArray,
    A: Batch,
    B: Batch,
    *,
    transposed: bool,
    beta: float = 0.0,
    tiling: Tiling | None = None,
) -> Launch:
    """Bind D[i] = A[i] B[i]^T or, if ``transposed``, A[i]^T B[i], plus beta D[i]; D lies as they do.

    ``tiling`` is one of the `candidates`; None: that of `choose_batch_tiling`.
    """
    driver, a, b = kernels.driver, A.matrix, B.matrix
    M, N = D.shape[0] // A.count, D.shape[1]
    K = A.rows if transposed else a.columns
    ends = (a.columns, b.columns, B.rows) if transposed else (A.rows, B.rows, b.columns)
    if ends != (M, N, K) or A.count != B.count:
        raise ValueError(f"gemm: {A.count} products of {M} x {N} x {K} and operands of {ends}")
    limits = driver.multiprocessors, driver.shared_memory
    tiling = tiling or choose_batch_tiling(A.count, M, N, K, a.count, *limits)
    grid = A.count * blocks(M, tiling.rows), blocks(N, tiling.columns), tiling.parts
    kernel = kernels.library.kernel(
        "gemm/batch",
        f"batch_{tiling.rows}x{tiling.columns}",
        REAL="float",
        NUMBER="bfloat16",
        TRANSPOSE_A=int(transposed),
        TRANSPOSE_B=int(not transposed),
        COMPONENTS=f"{a.count}{b.count}",
        ACTIVATION="identity",
    )
    return kernel.bind(
        grid,
        (tiling.threads,),
        *(A.count, M, N, K),
        A.map(transposed, tiling.rows),
        B.map(transposed, tiling.columns),
        tiling.stages,
        *meeting_places(kernels, tiling, grid[0] * grid[1]),
        *(beta, D, D.ld),
        shared=tiling.stages * tiling.stage_bytes(a.count, b.count),
    )


def choose_batch_tiling(
    count: int, M: int, N: int, K: int, components: int, multiprocessors: int, shared_memory: int
) -> Tiling:
    """Choose the cut of least predicted time: that of one product with the tiles of all."""

    def time(tiling: Tiling) -> float:
        rows = count * blocks(M, tiling.rows) * tiling.rows
        return predicted(tiling, rows, N, K, components, components, multiprocessors)

    tiles = common_tiles(components, components)
    return min(candidates(K, components, components, shared_memory, tiles=tiles), key=time)
