"""Matrix products on the tensor cores of sm_80 and later (kernels/gemm_mma.cu): tile shapes, launches.

M, N and K are the sizes of a product op(A) op(B): op(A) is (M, K), op(B) is (K, N).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from nn.shapes import plane_shape
from pyrt.kernels import Constants, Kernel, KernelLibrary, Launch, blocks
from pyrt.memory import DeviceArray

MMA_TERMS = {"float32": 2, "tf32": 1}
"""TF32 numbers that an operand's number is split into, for each accuracy: 22 and 11 bits."""

_DEPTH, _STAGES = 32, 3  # as gemm_mma.cu has them

# Estimates, in microseconds: a launch with the first tile on its way and the last one written, one tile of
# 64 x 64 x 32 by the number of terms, the launch that adds the parts of K, and an element of a part that is
# written and read again.
_LAUNCH = 4.0
_TILE = {1: 0.22, 2: 0.45}
_SUM_PARTS, _PARTIAL = 3.5, 4e-6
_LARGE_TILE = 0.8  # of a tile's time, where it belongs to a larger one: fewer bytes for each product
_LONELY = 1.15  # how much longer a tile takes where a multiprocessor has one small block: it waits for itself

_PARTS = (1, 2, 3, 4, 6, 8, 12, 16)


def has_mma(architecture: str) -> bool:
    """Whether devices of this architecture run such products: ``sm_80`` and later, or the emulated one."""
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
    M: int, N: int, K: int, terms: int, multiprocessors: int, shared_memory: int
) -> MmaTiling:
    """The cut that should take least time with so many multiprocessors, bytes of shared memory a block."""
    depth = max(1, blocks(K, _DEPTH))

    def microseconds(tiling: MmaTiling) -> float:
        """Blocks of a multiprocessor share its tensor cores; the one that has most of them is the last."""
        count = blocks(M, tiling.rows) * blocks(N, tiling.columns) * tiling.parts
        most = blocks(count, multiprocessors)
        size = tiling.rows * tiling.columns // (64 * 64)
        each = _LARGE_TILE if size > 1 else _LONELY if most == 1 else 1.0
        time = _LAUNCH + most * blocks(depth, tiling.parts) * size * each * _TILE[terms]
        return time + (_SUM_PARTS + tiling.parts * M * N * _PARTIAL if tiling.parts > 1 else 0)

    candidates = [MmaTiling(*tile, parts) for tile in _TILES for parts in _PARTS if parts <= depth]
    fitting = [tiling for tiling in candidates if tiling.shared <= shared_memory]
    return min(fitting, key=microseconds)


class Mma:
    """The kernels of gemm_mma.cu for an accuracy, one of `MMA_TERMS`."""

    def __init__(self, library: KernelLibrary, math: str) -> None:
        self._library, self._driver = library, library.driver
        self.terms = MMA_TERMS[math]

    def multiply(
        self,
        D: DeviceArray,
        A: DeviceArray,
        B: DeviceArray,
        transpose_a: bool = False,
        transpose_b: bool = False,
        alpha: float = 1.0,
        beta: float = 0.0,
        C: DeviceArray | None = None,
        bias: DeviceArray | None = None,
        activation: str = "identity",
        sums: DeviceArray | None = None,
    ) -> list[Launch]:
        """D = f(alpha op(A) op(B) + beta C + bias); C and D (M, N), bias (N,), all float32.

        ``sums`` (M,) gets the sums of the rows of op(A). Any matrix may be a column slice. C defaults to D.
        """
        M, K = A.shape[::-1] if transpose_a else A.shape
        depth, N = B.shape[::-1] if transpose_b else B.shape
        if depth != K or D.shape != (M, N) or (C is not None and C.shape != (M, N)):
            raise ValueError(
                f"mma: D {D.shape} is not ({M}, {N}), or C is not, or K differs: {K} and {depth}"
            )
        for name, vector, size in (("bias", bias, N), ("sums", sums, M)):
            if vector is not None and vector.shape != (size,):
                raise ValueError(f"mma: {name} {vector.shape} is not ({size},)")
        tiling = choose_mma_tiling(
            M, N, K, self.terms, self._driver.multiprocessors, self._driver.shared_memory
        )
        C = C or D
        result = (alpha, beta, C, C.ld, bias, D, D.ld)
        partials, row_sums = None, sums
        if tiling.parts > 1:
            partials = DeviceArray.empty(self._driver, (tiling.parts * M * N,), np.float32)
            if sums is not None:
                row_sums = DeviceArray.empty(self._driver, (tiling.parts * M,), np.float32)
        product = self._kernel(tiling, transpose_a, transpose_b, activation).bind(
            (blocks(M, tiling.rows), blocks(N, tiling.columns), tiling.parts),
            (tiling.threads,),
            *(M, N, K, A, A.ld, B, B.ld, partials, row_sums),
            *result,
            shared=tiling.shared,
        )
        if partials is None:
            return [product]
        file, constants = parts_sum(activation)
        add = self._library.kernel(file, "sum_parts", **constants)
        return [
            product,
            add.bind(*plane_shape(M, N), M, N, tiling.parts, partials, row_sums, sums, *result),
        ]

    def _kernel(self, tiling: MmaTiling, transpose_a: bool, transpose_b: bool, activation: str) -> Kernel:
        file, constants = mma_product(transpose_a, transpose_b, self.terms, activation)
        return self._library.kernel(file, tiling.kernel, **constants)


def mma_product(transpose_a: bool, transpose_b: bool, terms: int, activation: str) -> tuple[str, Constants]:
    """The kernel file and constants of such a product; other activations than identity for A B' alone."""
    return "gemm_mma", {
        "REAL": "float",
        "TRANSPOSE_A": int(transpose_a),
        "TRANSPOSE_B": int(transpose_b),
        "TERMS": terms,
        "ACTIVATION": activation,
    }


def parts_sum(activation: str) -> tuple[str, Constants]:
    """The kernel file and constants of what adds the parts of K of a product."""
    return "sum_parts", {"REAL": "float", "ACTIVATION": activation}
