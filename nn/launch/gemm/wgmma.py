"""Matrix products on the tensor cores of sm_90 (kernels/gemm/wgmma.cu): tile shapes, launches.

M, N and K are the sizes of a product op(A) op(B): op(A) is (M, K), op(B) is (K, N).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from nn.launch.gemm.components import TILE_BYTES, Components
from nn.launch.gemm.product import PLAIN, Epilogue, Product
from nn.launch.work import Compute, Work
from pyrt.arrays import DeviceArray
from pyrt.driver import Driver
from pyrt.kernels import Argument, Constants, Launch, blocks

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels

_MOST_STAGES = 8
_STATIC_SHARED = 1024  # bytes: barriers, and the alignment of what follows


@dataclass(frozen=True)
class Tiling:
    """Says how a product is cut: ``rows`` x ``columns`` of D a tile, K into ``parts``; ``stages`` buffers.

    A block makes one tile, or where it is ``ping_pong`` many: two warpgroups take them in turns, and one
    multiplies while the other one runs its epilogue (kernels/gemm/ping_pong.cuh).

    A buffer holds ``width`` bytes along k: as many as the kernel of this tile takes (`width_of`).
    """

    rows: int
    columns: int
    parts: int
    stages: int
    width: int = TILE_BYTES
    ping_pong: bool = False

    @property
    def tile(self) -> str:
        """Name the kernels for it, behind what they do."""
        return f"{'ping_pong_' if self.ping_pong else ''}{self.rows}x{self.columns}"

    @property
    def file(self) -> str:
        """Name the files of these kernels, behind what they do."""
        return "_ping_pong" if self.ping_pong else ""

    @property
    def threads(self) -> int:
        """64 rows a warpgroup, or a tile where they take turns, and one warpgroup that fetches."""
        return 128 * ((2 if self.ping_pong else self.rows // 64) + 1)

    @property
    def elements(self) -> int:
        """Count the elements of a thread: of 64 rows, or of the whole tile where warpgroups take turns."""
        return self.columns * (self.rows if self.ping_pong else 64) // 128

    def tiles(self, M: int, N: int) -> tuple[int, int]:
        """Count the tiles of D (M, N): down and across."""
        return blocks(M, self.rows), blocks(N, self.columns)

    def stage_bytes(self, components_a: int, components_b: int) -> int:
        """Shared memory of one buffer."""
        return (components_a * self.rows + components_b * self.columns) * self.width


# Fitted to what was measured on an H100 and an H200, in microseconds: a launch; a megabyte that a block's
# tiles move into shared memory and tensor cores read there, by its part of D; and, where K is in parts, until
# they have met, and each 64 x 64 of another part.
_LAUNCH = 0.8
_MEGABYTE = {
    **{(64, 64): 4.4, (128, 64): 4.2, (192, 64): 4.95, (64, 128): 5.25, (128, 128): 5.5},
    (192, 128): 5.8,
}
_MEET, _PART = 1.8, 0.09
_FEW_STAGES = 1.4  # how much longer tiles take where two at most are in shared memory

# Measured, by the components of A and B: beginning and end, and each tile along k. Single components take so
# little that the cache limits. One warpgroup of 64 x 128 has no other to multiply while it stores what a
# layer leaves: in a step it takes longer than alone.
_MEASURED = {
    (1, 1): {
        (128, 64): (1.0, 0.21),
        (128, 128): (3.8, 0.305),
        (192, 128): (5.6, 0.44),
        (128, 256): (6.9, 0.59),
    },
    (1, 2): {
        **{(64, 64): (1.5, 0.267), (128, 64): (1.0, 0.52), (192, 64): (2.5, 0.55)},
        **{(64, 128): (2.8, 0.356), (128, 128): (3.2, 0.7), (192, 128): (3.5, 1.0)},
    },
    (2, 1): {
        **{(64, 64): (2.0, 0.18), (128, 64): (2.5, 0.285), (192, 64): (2.1, 0.6)},
        **{(64, 128): (2.2, 0.355), (128, 128): (3.0, 0.69), (192, 128): (3.0, 1.05)},
    },
    (2, 2): {
        **{(64, 64): (2.7, 0.285), (128, 64): (2.4, 0.592), (192, 64): (2.0, 1.0)},
        **{(64, 128): (3.5, 0.59), (128, 128): (2.7, 1.106), (192, 128): (2.0, 1.8)},
    },
    (3, 1): {(64, 128): (2.4, 0.51), (128, 128): (2.5, 0.97)},
}
_CROWDED = {
    (1, 1): {
        **{(64, 64): (2.0, 0.23), (128, 64): (1.25, 0.34), (192, 64): (3.0, 0.45)},
        (64, 128): (3.0, 0.34),
    },
    (2, 1): {(64, 64): (2.0, 0.25), (128, 64): (1.0, 0.53)},
}
"""The same, but where the blocks are more than one for each multiprocessor."""

_TWO_AT_ONCE = 128, 64
"""The tile, of single components, of which a multiprocessor can have two: no waves are seen."""

_TILES = (64, 64), (128, 64), (192, 64), (64, 128), (128, 128)

_WIDE = (192, 128), (128, 256)
"""Tiles of gemm/wgmma.cu and gemm/layer.cu alone; the last one of single components."""

_HALVES = (128, 128), (192, 128)
"""Tiles there of which a buffer holds half as much along k where there are more than three components."""

_PING_PONG = {(128, 128): (3.8, 1.0, 0.3)}
"""Tiles that warpgroups take in turns: beginning and end of all, of each of a block, each tile along k."""

_HIDDEN_END = 0.3
"""Time that such a tile takes longer for each microsecond of the epilogue that runs beside the next one."""

_PARTS = (1, 2, 3, 4, 6, 8)


def products(components_a: int, components_b: int) -> int:
    """Products of components that are needed; the others are smaller than the rounding of the result."""
    most = max(components_a, components_b)
    return sum(i + j < most for i, j in itertools.product(range(components_a), range(components_b)))


def common_tiles(components_a: int, components_b: int) -> list[tuple[int, int]]:
    """List the tiles that all such kernels have, those of batch.cu and conv/implicit.cu too."""
    return [*_TILES, *([(128, 256)] if components_a == components_b == 1 else ())]


def width_of(tile: tuple[int, int], components_a: int, components_b: int) -> int:
    """Return the bytes along k of a buffer in gemm/wgmma.cu and gemm/layer.cu: MATRIX_WIDTH there."""
    return TILE_BYTES // 2 if tile in _HALVES and components_a + components_b > 3 else TILE_BYTES


def candidates(
    K: int,
    components_a: int,
    components_b: int,
    shared_memory: int,
    parts: Sequence[int] = _PARTS,
    tiles: Sequence[tuple[int, int]] = (),
) -> list[Tiling]:
    """List the cuts to choose from for such a product, in so many bytes of shared memory a block.

    K counts numbers of two bytes: a TF32 number counts as two. Without ``tiles``: all of gemm/wgmma.cu; the
    kernels of other files hold `TILE_BYTES` along k.
    """

    def cut(tile: tuple[int, int], parts: int, ping_pong: bool = False) -> Tiling:
        width = TILE_BYTES if tiles else width_of(tile, components_a, components_b)
        one = Tiling(*tile, parts, 1, width, ping_pong)
        memory = (shared_memory - _STATIC_SHARED) // one.stage_bytes(components_a, components_b)
        return replace(one, stages=min(_MOST_STAGES, memory))

    are_single = components_a == components_b == 1
    in_turns = [cut(tile, 1, True) for tile in _PING_PONG] if are_single and not tiles and 1 in parts else []
    all_tiles = tiles or (*_TILES, *(_WIDE if are_single else _WIDE[:1]))
    cuts = [cut(tile, count) for tile in all_tiles for count in parts if count <= _tiles_deep(K)] + in_turns
    return [tiling for tiling in cuts if tiling.stages > 1]  # one tile is fetched while one is multiplied


def predicted(
    tiling: Tiling, M: int, N: int, K: int, components_a: int, components_b: int, multiprocessors: int
) -> float:
    """Microseconds that a product cut like this should take on so many multiprocessors."""
    tile, kind = (tiling.rows, tiling.columns), (components_a, components_b)
    count = math.prod(tiling.tiles(M, N)) * tiling.parts
    if tiling.ping_pong:
        begin, end, each = _PING_PONG[tile]
        return begin + blocks(count, multiprocessors) * (end + _tiles_deep(K) * each)
    is_crowded = count > multiprocessors and tile in _CROWDED.get(kind, ())
    if is_crowded:
        begin, each = _CROWDED[kind][tile]
    elif tile in _MEASURED.get(kind, ()):
        begin, each = _MEASURED[kind][tile]
    else:
        begin, each = _LAUNCH, _tile_time(tiling, components_a, components_b)
    seamless = kind == (1, 1) and is_crowded and tile == _TWO_AT_ONCE
    waves = count / multiprocessors if seamless else waves_of(count, multiprocessors)
    time = begin + blocks(_tiles_deep(K), tiling.parts) * each
    if tiling.parts > 1:
        time += _MEET + (tiling.parts - 1) * tiling.rows * tiling.columns / (64 * 64) * _PART
    return waves * time


def waves_of(count: int, multiprocessors: int) -> float:
    """Count the waves of so many blocks: a few run in whole waves, of many the last one is a small part."""
    waves = count / multiprocessors
    return waves if waves >= 4 else blocks(count, multiprocessors)


def _tile_time(tiling: Tiling, components_a: int, components_b: int) -> float:
    """Microseconds that a tile along k takes by the bytes it moves."""
    # A warpgroup reads its 64 rows and all columns for each product of components.
    read = products(components_a, components_b) * tiling.rows // 64 * (64 + tiling.columns) * TILE_BYTES
    moved = TILE_BYTES // tiling.width * tiling.stage_bytes(components_a, components_b) + read
    return 1e-6 * moved * _MEGABYTE[tiling.rows, tiling.columns] * (_FEW_STAGES if tiling.stages <= 2 else 1)


def choose_tiling(
    M: int, N: int, K: int, components_a: int, components_b: int, multiprocessors: int, shared_memory: int
) -> Tiling:
    """Choose the candidate of least predicted time. `make bench ARGS=tiles` says whether it is fastest."""
    return min(
        candidates(K, components_a, components_b, shared_memory),
        key=lambda tiling: predicted(tiling, M, N, K, components_a, components_b, multiprocessors),
    )


def _tiles_deep(K: int) -> int:
    return blocks(2 * K, TILE_BYTES)


@dataclass(frozen=True)
class ComponentProduct(Work):
    """A product of operands that are given as components.

    If it ``starts_early`` it may run beside the kernel before it, which must write neither operand and must
    not start early itself. ``tiling`` is one of the `candidates`; None: that of `choose_tiling`.
    """

    product: Product
    A: Components
    B: Components
    epilogue: Epilogue = PLAIN
    starts_early: bool = False
    tiling: Tiling | None = None

    @property
    def static_shared(self) -> int:
        """Count the bytes of shared memory that its epilogue takes beside the buffers."""
        return 0

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        bias = (self.epilogue.bias,) if self.epilogue.bias is not None else ()
        return self.A.numbers, self.B.numbers, *bias

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return self.product.writes

    @property
    def flops(self) -> int:
        return self.product.flops + (2 * self.product.D.size if self.epilogue.bias is not None else 0)

    @property
    def tensor_flops(self) -> int:
        return products(self.A.count, self.B.count) * self.product.flops

    @property
    def products(self) -> tuple[Product, ...]:
        return (self.product,)

    def on_device(self, kernels: Kernels) -> Launch:
        self.epilogue.require_fits(self.product)
        file, constants = tensor_product(self)
        D, alpha, beta = self.product.D, self.epilogue.alpha, self.epilogue.beta
        C = self.epilogue.C or D
        return self.bind(
            kernels, file, "gemm", constants, (alpha, beta, C, C.ld, self.epilogue.bias, D, D.ld)
        )

    def bind(
        self, kernels: Kernels, file: str, name: str, constants: Constants, epilogue: Sequence[Argument]
    ) -> Launch:
        """Bind a kernel of a file, for this tiling, with the arguments of its epilogue."""
        M, N, K = self._sizes()
        A, B, tiling = self.A, self.B, self.cut(kernels.driver)
        down, across = tiling.tiles(M, N)
        grid: tuple[int, ...] = down, across, tiling.parts
        places: tuple[DeviceArray | None, ...] = ()
        if tiling.ping_pong:
            grid = (min(down * across, kernels.driver.multiprocessors),)
        else:
            places = meeting_places(kernels, tiling, down * across)
        return kernels.library.kernel(file + tiling.file, f"{name}_{tiling.tile}", **constants).bind(
            grid,
            (tiling.threads,),
            *(M, N, K),
            A.tensor_map(self.product.transpose_a, tiling.rows, tiling.width),
            B.tensor_map(not self.product.transpose_b, tiling.columns, tiling.width),
            tiling.stages,
            *places,
            int(self.starts_early),
            *epilogue,
            shared=tiling.stages * tiling.stage_bytes(A.count, B.count),
        )

    def workspace(self, kernels: Kernels) -> int:
        down, across = self.tiles(kernels.driver)
        return 4 * meeting_size(self.cut(kernels.driver), down * across)

    def tiles(self, driver: Driver) -> tuple[int, int]:
        """Count the tiles of D on a device: down and across."""
        M, N, _ = self._sizes()
        return self.cut(driver).tiles(M, N)

    def cut(self, driver: Driver) -> Tiling:
        """Return how it is cut on a device."""
        M, N, K = self._sizes()
        limits = driver.multiprocessors, driver.shared_memory - self.static_shared
        width = K * self.A.array.dtype.itemsize // 2
        if self.tiling is not None:
            return self.tiling
        counts, (multiprocessors, memory) = (self.A.count, self.B.count), limits

        def time(tiling: Tiling) -> float:
            made = predicted(tiling, M, N, width, *counts, multiprocessors)
            return made + _ends(tiling, M, N, multiprocessors) * self.end_us(tiling)

        return min(candidates(width, *counts, memory), key=time)

    def end_us(self, tiling: Tiling) -> float:
        """Return the microseconds in which a block's epilogue does more than to store its tile."""
        return 0.0

    def _sizes(self) -> tuple[int, int, int]:
        """M, N and K. Raises ValueError where the components are not those of the operands."""
        for components, operand in ((self.A, self.product.A), (self.B, self.product.B)):
            if (components.rows, components.columns) != operand.shape:
                raise ValueError(
                    f"gemm: components of a {components.rows} x {components.columns} matrix are not those of "
                    f"{operand.shape}"
                )
        return self.product.sizes

    def in_numpy(self) -> Compute:
        d = self.product.D.host_view()
        alpha, finish = np.float32(self.epilogue.alpha), self.epilogue.in_numpy(d)

        def compute() -> None:
            a, b = self.A.to_float32(), self.B.to_float32()
            a, b = a.T if self.product.transpose_a else a, b.T if self.product.transpose_b else b
            np.multiply(a @ b, alpha, out=d)
            finish()

        return compute


def _ends(tiling: Tiling, M: int, N: int, multiprocessors: int) -> float:
    """Count the epilogues of blocks one behind the other that a product waits for."""
    count = math.prod(tiling.tiles(M, N)) * tiling.parts
    if tiling.ping_pong:
        return 1 + _HIDDEN_END * (blocks(count, multiprocessors) - 1)
    return waves_of(count, multiprocessors)


def meeting_places(
    kernels: Kernels, tiling: Tiling, tiles: int
) -> tuple[DeviceArray | None, DeviceArray | None]:
    """Make room where blocks of parts of K meet: sums of all parts but the last, a counter for each warp."""
    if tiling.parts == 1:
        return None, None
    warps = tiles * tiling.rows // 16
    return (
        kernels.workspace((meeting_size(tiling, tiles),), np.float32),
        DeviceArray.from_host(kernels.driver, np.zeros(warps, np.int32)),
    )


def meeting_size(tiling: Tiling, tiles: int) -> int:
    """Count the sums that blocks of so many tiles leave for each other."""
    return (tiling.parts - 1) * tiles * tiling.rows * tiling.columns


def tensor_product(work: ComponentProduct) -> tuple[str, Constants]:
    """Return kernel file and constants of such a product."""
    return "gemm/wgmma", {
        "REAL": "float",
        "NUMBER": work.A.number,
        "TRANSPOSE_A": int(work.product.transpose_a),
        "TRANSPOSE_B": int(work.product.transpose_b),
        "COMPONENTS": f"{work.A.count}{work.B.count}",
        "ACTIVATION": work.epilogue.activation,
    }
