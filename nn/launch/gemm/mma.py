"""Matrix products on the tensor cores of sm_80 and later (kernels/gemm/mma.cu): tile shapes, launches.

M, N and K are the sizes of a product op(A) op(B): op(A) is (M, K), op(B) is (K, N).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nn.launch.gemm.product import PLAIN, Epilogue, Product
from nn.launch.shapes import plane_shape
from pyrt.arrays import DeviceArray
from pyrt.driver import Driver
from pyrt.kernels import Constants, Launch, blocks, in_order

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels

MMA_COMPONENTS = {"float32": 2, "tf32": 1}
"""TF32 numbers that an operand's number is split into, for each accuracy: 22 and 11 bits."""

_DEPTH, _STAGES = 32, 3  # as gemm/mma.cu has them

# Estimates, in microseconds: a launch with the first tile on its way and the last one written, one tile of
# 64 x 64 x 32 by the number of components, the launch that adds the parts of K, and one element of a
# part, written and read again.
_LAUNCH = 4.0
_TILE = {1: 0.22, 2: 0.45}
_SUM_PARTS, _PARTIAL = 3.5, 4e-6
_LARGE_TILE = 0.8  # of a tile's time, where it belongs to a larger one: fewer bytes for each product
# How much longer a tile takes where a multiprocessor has one small block: it waits for itself, as long with
# one component as with two.
_LONELY = {1: 2.1, 2: 1.15}

_PARTS = (1, 2, 3, 4, 6, 8, 12, 16)


def has_mma(architecture: str) -> bool:
    """Return whether devices of this architecture run such products: ``sm_80`` and later, or emulated."""
    capability = re.fullmatch(r"sm_(\d+)a?", architecture)
    return architecture == "emulated" or (capability is not None and int(capability[1]) >= 80)


@dataclass(frozen=True)
class MmaTiling:
    """How a product is cut: ``rows`` x ``columns`` of D a block, K into ``parts``."""

    rows: int
    columns: int
    parts: int

    @property
    def kernel(self) -> str:
        return f"gemm_{self.rows}x{self.columns}"

    @property
    def threads(self) -> int:
        return {64: 128, 128: 256}[self.rows]

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return _STAGES * (self.rows + self.columns) * _DEPTH * 4


_TILES = ((64, 64), (128, 128))


def choose_mma_tiling(
    M: int,
    N: int,
    K: int,
    components: int,
    multiprocessors: int,
    shared_memory: int,
    parts_of_k: Sequence[int] = _PARTS,
) -> MmaTiling:
    """Choose the cut of least predicted time for so many multiprocessors, bytes of shared memory a block."""
    depth = max(1, blocks(K, _DEPTH))

    def microseconds(tiling: MmaTiling) -> float:
        """Blocks of a multiprocessor share its tensor cores; the one that has most of them is the last."""
        count = blocks(M, tiling.rows) * blocks(N, tiling.columns) * tiling.parts
        most = blocks(count, multiprocessors)
        size = tiling.rows * tiling.columns // (64 * 64)
        each = _LARGE_TILE if size > 1 else _LONELY[components] if most == 1 else 1.0
        time = _LAUNCH + most * blocks(depth, tiling.parts) * size * each * _TILE[components]
        return time + (_SUM_PARTS + tiling.parts * M * N * _PARTIAL if tiling.parts > 1 else 0)

    candidates = [MmaTiling(*tile, parts) for tile in _TILES for parts in parts_of_k if parts <= depth]
    fitting = [tiling for tiling in candidates if tiling.shared <= shared_memory]
    return min(fitting, key=microseconds)


def bind_mma(
    kernels: Kernels, product: Product, epilogue: Epilogue = PLAIN, sums: DeviceArray | None = None
) -> Launch:
    """Bind the kernels of gemm/mma.cu, for an accuracy of `MMA_COMPONENTS`; all arrays are float32.

    ``sums`` (M,) gets the sums of the rows of op(A).
    """
    M, N, K = product.sizes
    epilogue.require_fits(product)
    if sums is not None and sums.shape != (M,):
        raise ValueError(f"mma: sums {sums.shape} is not ({M},)")
    driver, D = kernels.driver, product.D
    tiling = choose_mma_tiling(M, N, K, kernels.mma_components, driver.multiprocessors, driver.shared_memory)
    partials = room_for_parts(driver, tiling.parts, M * N)
    row_sums = room_for_parts(driver, tiling.parts, M) if sums is not None else None
    file, constants = mma_product(product, kernels.mma_components, epilogue.activation)
    launch = kernels.library.kernel(file, tiling.kernel, **constants).bind(
        (blocks(M, tiling.rows), blocks(N, tiling.columns), tiling.parts),
        (tiling.threads,),
        *(M, N, K, product.A, product.A.ld, product.B, product.B.ld, partials, row_sums or sums),
        *_result(D, epilogue),
        shared=tiling.shared,
    )
    if partials is None:
        return launch
    return add_parts(kernels, launch, tiling.parts, partials, D, epilogue, (row_sums, sums))


def room_for_parts(driver: Driver, parts: int, size: int) -> DeviceArray | None:
    """Make room for sums of each part of K, so many of them; None where K is whole."""
    return DeviceArray.empty(driver, (parts * size,), np.float32) if parts > 1 else None


def add_parts(
    kernels: Kernels,
    launch: Launch,
    parts: int,
    partials: DeviceArray,
    D: DeviceArray,
    epilogue: Epilogue,
    sums: tuple[DeviceArray | None, DeviceArray | None] = (None, None),
) -> Launch:
    """Let a launch that makes the sums of each part be followed by the one that adds them.

    ``sums``: those of rows, of each part and added.
    """
    file, constants = parts_sum(epilogue.activation)
    add = kernels.library.kernel(file, "sum_parts", **constants)
    M, N = D.shape
    return in_order(
        [launch, add.bind(*plane_shape(M, N), M, N, parts, partials, *sums, *_result(D, epilogue))]
    )


def _result(D: DeviceArray, epilogue: Epilogue) -> tuple[float | int | DeviceArray | None, ...]:
    """Return the arguments that a kernel's ``Result`` is made of, behind its sizes."""
    C = epilogue.C or D
    return epilogue.alpha, epilogue.beta, C, C.ld, epilogue.bias, D, D.ld


def mma_product(product: Product, components: int, activation: str) -> tuple[str, Constants]:
    """Return kernel file and constants; other activations than identity are for A B' alone."""
    return "gemm/mma", {
        "REAL": "float",
        "TRANSPOSE_A": int(product.transpose_a),
        "TRANSPOSE_B": int(product.transpose_b),
        "COMPONENTS": components,
        "ACTIVATION": activation,
    }


def parts_sum(activation: str) -> tuple[str, Constants]:
    """Return kernel file and constants of the kernel that adds the parts of K."""
    return "gemm/sum_parts", {"REAL": "float", "ACTIVATION": activation}
