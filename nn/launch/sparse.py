"""Products of a dense layer whose weights are sparse and shared (kernels/sparse): A' = f(A W^T + b)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nn.launch.csr import CODES, OCTET, SparseMatrix
from nn.launch.elementwise import ACTIVATE_IN_PLACE
from nn.launch.shapes import MAX_GRID_Y, matrix_shape, require_shape
from nn.launch.work import Compute, Work
from pyrt.arrays import DeviceArray, aligned
from pyrt.kernels import Argument, Kernel, Launch, blocks, in_order

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels

SPARSE_VERSIONS = ("thread", "warp", "vector", "shared", "lanes", "tile")
"""Rungs of the ladder (docs/explain/sparse.md): four for few samples, two for many."""

FEW = 4
"""Samples up to which W is read for each of them anew."""

_WARP = 32
_ROWS = 8  # of a block with a warp a row
_THREADS = 256
_SHARED_THREADS = 512
_SHARED_BYTES = 4 * (CODES + 2 * _WARP)  # of csr_shared, beside the sample
_TILE_WARPS = 16
_TILE_BYTES = 4 * CODES + 8 * _TILE_WARPS * _WARP  # of csr_tile, beside the tile
_WIDE = 4  # samples that a lane of csr_tile takes
_LEAST_WIDTH = 32  # columns of a tile, below which there is little to do for each row


@dataclass(frozen=True)
class SparseProduct(Work):
    """Y = f(X W^T + bias); X (samples, inputs), Y (samples, units), W sparse, bias (units,) or None.

    ``version`` is ``auto`` or one of `SPARSE_VERSIONS`. All are float32.
    """

    kind = "sparse product"
    Y: DeviceArray
    X: DeviceArray
    W: SparseMatrix
    bias: DeviceArray | None = None
    activation: str = "identity"
    version: str = "auto"

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        return self.X, *self.W.arrays, *((self.bias,) if self.bias is not None else ())

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return (self.Y,)

    @property
    def flops(self) -> int:
        return 2 * self.samples * self.W.csr.weights + 2 * self.Y.size

    @property
    def samples(self) -> int:
        return self.X.shape[0]

    def workspace(self, kernels: Kernels) -> int:
        version = self.choose(kernels)
        if version == "lanes":
            return aligned(self.X.nbytes)
        if version != "tile":
            return 0
        units, inputs = self.W.csr.shape
        return aligned(4 * choose_tiles(kernels, self.samples, inputs, units).sums(units))

    def choose(self, kernels: Kernels) -> str:
        """Return the version that runs: for ``auto`` by the number of samples, and the room for one."""
        if self.version != "auto":
            return self.version
        if self.samples > FEW:
            return "tile"
        return "shared" if _sample_bytes(self.W) <= kernels.driver.shared_memory else "vector"

    def on_device(self, kernels: Kernels) -> Launch:
        """Raise ValueError for another dtype than float32, or arrays that do not fit."""
        samples, inputs = matrix_shape("sparse", X=self.X)
        units = self.W.csr.shape[0]
        if kernels.real != "float" or inputs != self.W.csr.shape[1] or not 0 < samples <= MAX_GRID_Y:
            raise ValueError(f"sparse: X {self.X.shape} of {kernels.real} and W {self.W.csr.shape} of float")
        require_shape("sparse", (samples, units), Y=self.Y)
        if self.bias is not None:
            require_shape("sparse", (units,), bias=self.bias)
        return _BIND[self.choose(kernels)](kernels, self)

    def in_numpy(self) -> Compute:
        x, y, csr = self.X.host_view(), self.Y.host_view(), self.W.csr
        bias = self.bias.host_view() if self.bias is not None else 0
        units, activate = csr.unit_of[csr.rows], ACTIVATE_IN_PLACE[self.activation]
        columns, codes, book = (
            array.host_view() for array in (self.W.columns, self.W.codes, self.W.codebook)
        )
        count = csr.weights

        def compute() -> None:
            weights = book[codes[:count]]
            for sample, result in zip(x, y, strict=True):
                products = weights.astype(np.float64) * sample[columns[:count]]
                result[:] = np.bincount(units, products, len(result)) + bias
            activate(y)

        return compute

    def kernel(self, kernels: Kernels, file: str, name: str, **constants: int) -> Kernel:
        """Return a kernel of kernels/sparse for this matrix and activation."""
        index = "index16" if self.W.columns.dtype == np.uint16 else "index32"
        chosen = {"COLUMN": index, "ACTIVATION": self.activation}
        return kernels.kernel(f"sparse/{file}", name, **chosen, **constants)

    @property
    def rows(self) -> tuple[Argument, ...]:
        """W's arrays without the codebook, as most kernels take them."""
        return self.W.starts, self.W.unit_of, self.W.columns, self.W.codes


def _bind_thread(kernels: Kernels, work: SparseProduct) -> Launch:
    return _bind_rows(kernels, work, "csr_thread", _THREADS, (_THREADS,))


def _bind_warp(kernels: Kernels, work: SparseProduct) -> Launch:
    return _bind_rows(kernels, work, "csr_warp", _ROWS, (_WARP, _ROWS))


def _bind_vector(kernels: Kernels, work: SparseProduct) -> Launch:
    return _bind_rows(kernels, work, "csr_vector", _ROWS, (_WARP, _ROWS))


def _bind_rows(kernels: Kernels, work: SparseProduct, name: str, rows: int, block: tuple[int, ...]) -> Launch:
    """Bind a kernel whose blocks take so many rows of one sample."""
    units, inputs = work.W.csr.shape
    arguments = units, inputs, *work.rows, work.W.codebook, work.X, work.bias, work.Y
    return work.kernel(kernels, "csr", name).bind((blocks(units, rows), work.samples), block, *arguments)


def _sample_bytes(W: SparseMatrix) -> int:
    """Count the shared memory that csr_shared needs: a sample in it, and what is beside it."""
    return 16 * blocks(W.csr.shape[1], 4) + _SHARED_BYTES


def _bind_shared(kernels: Kernels, work: SparseProduct) -> Launch:
    return bind_shared(kernels, work, _SHARED_THREADS)


def bind_shared(kernels: Kernels, work: SparseProduct, threads: int) -> Launch:
    """Bind csr_shared with blocks of so many threads, 32 to 1024, a power of two.

    Raises ValueError where a sample is larger than shared memory.
    """
    needed, limit = _sample_bytes(work.W), kernels.driver.shared_memory
    if needed > limit:
        raise ValueError(f"sparse: a sample takes {needed} bytes of shared memory, and there are {limit}")
    units, inputs = work.W.csr.shape
    warps, multiprocessors = threads // _WARP, kernels.driver.multiprocessors
    parts = choose_parts(units, work.W.csr.weights, warps, multiprocessors)
    grid = min(multiprocessors, blocks(units * parts, warps)), work.samples
    arguments = units, inputs, parts, *work.rows, work.W.codebook, work.X, work.bias, work.Y
    shared = needed - _SHARED_BYTES
    return work.kernel(kernels, "csr", "csr_shared").bind(grid, (threads,), *arguments, shared=shared)


def choose_parts(units: int, weights: int, warps: int, multiprocessors: int) -> int:
    """Choose how many warps share a row, a power of two.

    As many as give all warps of the device a part of their own, as long as each lane has a octet.
    """
    parts = 1
    while (
        2 * parts <= warps
        and 2 * parts * units <= multiprocessors * warps
        and 2 * parts * units * _WARP * OCTET <= weights
    ):
        parts *= 2
    return parts


def _bind_lanes(kernels: Kernels, work: SparseProduct) -> Launch:
    samples, (units, inputs) = work.samples, work.W.csr.shape
    transposed = kernels.workspace((inputs, samples), np.float32)
    kernel = work.kernel(kernels, "csr_batch", "transpose_inputs", SAMPLES=_WARP)
    grid = blocks(inputs, _WARP), blocks(samples, _WARP)
    first = kernel.bind(grid, (_WARP, _ROWS), samples, inputs, work.X, transposed)
    kernel = work.kernel(kernels, "csr_batch", "csr_lanes", SAMPLES=_WARP)
    grid = blocks(units, _ROWS), blocks(samples, _WARP)
    arguments = samples, units, *work.rows, work.W.codebook, transposed, work.bias, work.Y
    return in_order([first, kernel.bind(grid, (_WARP, _ROWS), *arguments)])


@dataclass(frozen=True)
class Tiles:
    """Cuts a product for csr_tile: tiles of ``width`` columns, rows in ``shares``, samples in ``groups``."""

    at_once: int
    """Samples of a group."""
    width: int
    tiles: int
    shares: int
    groups: int

    @property
    def shared(self) -> int:
        """Count the bytes of a tile in shared memory."""
        return 4 * self.width * (self.at_once + _WIDE)

    def sums(self, units: int) -> int:
        """Count the sums of all tiles."""
        return self.groups * self.tiles * units * self.at_once


def choose_tiles(kernels: Kernels, samples: int, inputs: int, units: int) -> Tiles:
    """Choose tiles that give each multiprocessor one block, if sizes allow.

    As few tiles as shared memory asks for: each leaves a sum for each result. Then as many shares of the
    rows as there are multiprocessors for, but a row for each warp; then more tiles where some are idle.
    """
    driver = kernels.driver
    at_once = next((size for size in (8, 16) if samples <= size), _WARP)
    groups = blocks(samples, at_once)
    most = max(1, (driver.shared_memory - _TILE_BYTES) // (4 * (at_once + _WIDE)) // OCTET) * OCTET
    fewest = blocks(inputs, most)
    shares = max(1, min(driver.multiprocessors // (fewest * groups), blocks(units, _TILE_WARPS)))
    tiles = min(driver.multiprocessors // (shares * groups), blocks(inputs, _LEAST_WIDTH))
    width = min(most, blocks(blocks(inputs, max(fewest, tiles)), OCTET) * OCTET)
    return Tiles(at_once, width, blocks(inputs, width), shares, groups)


def _bind_tile(kernels: Kernels, work: SparseProduct) -> Launch:
    samples, csr = work.samples, work.W.csr
    units, inputs = csr.shape
    cut = choose_tiles(kernels, samples, inputs, units)
    cuts = DeviceArray.from_host(kernels.driver, csr.cuts(cut.width))
    sums = kernels.workspace((cut.sums(units),), np.float32)
    first = work.kernel(kernels, "csr_batch", "csr_tile", SAMPLES=cut.at_once).bind(
        (cut.tiles, cut.shares, cut.groups),
        (_TILE_WARPS * _WARP,),
        *(samples, inputs, units, cut.width, cuts, work.W.columns, work.W.codes, work.W.codebook),
        *(work.X, sums),
        shared=cut.shared,
    )
    grid = blocks(units * cut.at_once, _THREADS), cut.groups
    arguments = samples, units, cut.tiles, sums, work.W.unit_of, work.bias, work.Y
    kernel = work.kernel(kernels, "csr_batch", "csr_add_tiles", SAMPLES=cut.at_once)
    return in_order([first, kernel.bind(grid, (_THREADS,), *arguments)])


_BIND: dict[str, Callable[[Kernels, SparseProduct], Launch]] = {
    "thread": _bind_thread,
    "warp": _bind_warp,
    "vector": _bind_vector,
    "shared": _bind_shared,
    "lanes": _bind_lanes,
    "tile": _bind_tile,
}
