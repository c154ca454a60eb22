"""Convolutions on tensor cores of sm_90, whose windows are gathered on the way (kernels/conv/implicit.cu)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from nn.launch.conv.convolution import ConvolutionWork, FilterGradient, InputGradient
from nn.launch.conv.flip import FlipFilters, Turn
from nn.launch.conv.gathered import FILTER_PARTS, FORWARD_PARTS, gathered, operands_of, result_of
from nn.launch.conv.implicit_times import FILTERS, FORWARD, predicted
from nn.launch.conv.with_components import component_arguments
from nn.launch.gemm.components import TILE_BYTES, Components, Split
from nn.launch.gemm.product import PLAIN, Epilogue
from nn.launch.gemm.wgmma import (
    Tiling,
    candidates,
    common_tiles,
    meeting_places,
    meeting_size,
    products,
)
from nn.launch.work import Compute, Work
from nn.model.window import Window
from pyrt.arrays import DeviceArray
from pyrt.driver import Driver
from pyrt.kernels import Launch, blocks, in_order

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels

_LINE = TILE_BYTES // 2
"""Channels of a tile."""

_CHANNEL_STEP = 8
"""Pixels begin at multiples of 16 bytes: their channels are a multiple of this."""

_TWO_AT_ONCE = 128, 64
"""The tile, of single components, of which a multiprocessor has the registers for two blocks."""

_APART_SHARED = 2048
"""Bytes of its part of the shared memory that a block cannot have for buffers."""

_MOST_STEP = 8
_CORNERS = range(-128, 128)
"""The strides, and the first and last windows beside an image, that a map of windows can have."""


def fits_implicit(work: ConvolutionWork) -> bool:
    """Return whether the kernel can do the work: the channels that it gathers, the stride, the window."""
    window, images = gathered(work)
    if isinstance(work, InputGradient) and work.window.stride > 1:
        return False
    matrix = work.filter_count if isinstance(work, FilterGradient) else _CHANNEL_STEP
    corners = (*_first(window), *_behind(window))
    return (
        images % _CHANNEL_STEP == 0
        and matrix % _CHANNEL_STEP == 0
        and window.stride <= _MOST_STEP
        and all(corner in _CORNERS for corner in corners)
        and max(window.rows, window.columns) <= len(_CORNERS)
    )


def _first(window: Window) -> tuple[int, int]:
    """Return where the first window begins, (x, y)."""
    return -window.left, -window.top


def _behind(window: Window) -> tuple[int, int]:
    """Return where the last window begins, (x, y), from the last pixel on."""
    last_x = (window.out_width - 1) * window.stride - window.left
    last_y = (window.out_height - 1) * window.stride - window.top
    return last_x - (window.width - 1), last_y - (window.height - 1)


@dataclass(frozen=True)
class Gathering:
    """How windows are gathered: ``columns`` places a row of them, of ``width`` channels each.

    Where no window is beyond the image at its sides, the columns of a row of it, side by side in memory, are
    one place: with few channels that leaves fewer zeros in a tile.
    """

    window: Window
    columns: int
    width: int

    @classmethod
    def of(cls, window: Window) -> Gathering:
        """Take the columns of a row as one place where a tile has room for several."""
        is_inside = window.left == 0 and _behind(window)[0] + window.columns - 1 <= 0
        if is_inside and window.channels < _LINE:
            return cls(window, 1, window.columns * window.channels)
        return cls(window, window.columns, window.channels)

    @property
    def places(self) -> int:
        return self.window.rows * self.columns

    @property
    def chunks(self) -> int:
        """Tiles that the channels of a place take."""
        return blocks(self.width, _LINE)

    def map(self, images: Components, samples: int, pixels: int) -> DeviceArray:
        """Make the map by which the device finds so many windows of the images of all components."""
        window, driver = self.window, images.array.driver
        pixel = images.ld * images.array.dtype.itemsize
        together = window.columns // self.columns  # columns in a place
        width = window.width - together + 1
        sizes = self.width, width, window.height, samples * images.count
        row = pixel * window.width
        last_x, last_y = _behind(window)
        corners = _first(window), (last_x + together - 1, last_y)
        packed = driver.window_map(
            images.array.pointer,
            sizes,
            (pixel, row, row * window.height),
            corners,
            (_LINE, pixels),
            window.stride,
        )
        return DeviceArray.from_host(driver, np.frombuffer(packed, np.uint8))

    def filter_map(self, filters: Components, lines: int) -> DeviceArray:
        """Make the map of the filters: their channels of a place, ``lines`` filters at a time."""
        driver, itemsize = filters.array.driver, filters.array.dtype.itemsize
        sizes = self.width, filters.rows, self.places, filters.count
        strides = filters.ld * itemsize, self.width * itemsize, filters.distance * itemsize
        packed = driver.tensor_map(filters.array.pointer, sizes, strides, (_LINE, lines, 1, filters.count))
        return DeviceArray.from_host(driver, np.frombuffer(packed, np.uint8))


@dataclass(frozen=True)
class ImplicitConvolution(Work):
    """A convolution of operands that are given as components.

    ``images`` (samples pixels, channels), packed, are what windows are gathered from: A, or dZ for the
    gradient of the images; ``matrix`` is the filters (filters, places channels), turned around for that
    gradient, or, for the gradient of the filters, dZ (windows, filters). ``tiling``: one of `tilings`; None:
    the best predicted.
    """

    work: ConvolutionWork
    images: Components
    matrix: Components
    epilogue: Epilogue = PLAIN
    starts_early: bool = False
    tiling: Tiling | None = None

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        bias = (self.epilogue.bias,) if self.epilogue.bias is not None else ()
        return self.images.numbers, self.matrix.numbers, *bias

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return self.work.writes

    @property
    def convolution(self) -> ConvolutionWork:
        return self.work

    @property
    def result(self) -> DeviceArray:
        """What it writes as a matrix: a row a window and a column a filter or channel, or dW."""
        return result_of(self.work)

    @property
    def flops(self) -> int:
        return self.work.flops + (2 * self.result.size if self.epilogue.bias is not None else 0)

    @property
    def tensor_flops(self) -> int:
        return products(self.images.count, self.matrix.count) * self.work.flops

    @property
    def _of_filters(self) -> bool:
        return isinstance(self.work, FilterGradient)

    def workspace(self, kernels: Kernels) -> int:
        tiling = self._tiling(kernels.driver)
        return 4 * meeting_size(tiling, math.prod(self._tiles(tiling, self._gathering)))

    def _tiling(self, driver: Driver) -> Tiling:
        return self.tiling or choose(self, driver.multiprocessors, driver.shared_memory)

    @property
    def _gathering(self) -> Gathering:
        return Gathering.of(gathered(self.work)[0])

    def _tiles(self, tiling: Tiling, gathering: Gathering) -> tuple[int, int]:
        """Count the tiles of the result, down and across; dW has those of each place by itself."""
        M, N = self.result.shape
        if self._of_filters:
            return blocks(M, tiling.rows), gathering.places * blocks(gathering.width, tiling.columns)
        return blocks(M, tiling.rows), blocks(N, tiling.columns)

    def on_device(self, kernels: Kernels) -> Launch:
        return self.bind(kernels)

    def bind(self, kernels: Kernels, components: Components | None = None) -> Launch:
        """Bind the kernel, which can leave packed components of the outputs, or of dA, beside them.

        There are as many as each operand has.
        """
        window, _ = gathered(self.work)
        driver, gathering = kernels.driver, Gathering.of(window)
        result, samples, tiling = self.result, self.work.samples, self._tiling(driver)
        (M, N), grid = result.shape, (*self._tiles(tiling, gathering), tiling.parts)
        if self._of_filters:
            pixels, matrix = _LINE, self.matrix.tensor_map(True, tiling.rows)
            depth = blocks(samples * window.places, _LINE)
        else:
            pixels, matrix = tiling.rows, gathering.filter_map(self.matrix, tiling.columns)
            depth = gathering.places * gathering.chunks
        kernel = kernels.library.kernel(
            "conv/implicit", f"convolve_{tiling.rows}x{tiling.columns}", **self._constants()
        )
        epilogue = self.epilogue
        return kernel.bind(
            grid,
            (tiling.threads,),
            *(M, N, depth),
            *(gathering.map(self.images, samples, pixels), matrix),
            *(samples, window.out_height, window.out_width, window.stride, window.top, window.left),
            *(gathering.columns, gathering.width, tiling.stages),
            *meeting_places(kernels, tiling, grid[0] * grid[1]),
            int(self.starts_early),
            *(
                epilogue.alpha,
                epilogue.beta,
                epilogue.C or result,
                result.ld,
                epilogue.bias,
                result,
                result.ld,
            ),
            *self._beside(components),
            shared=tiling.stages * tiling.stage_bytes(self.images.count, self.matrix.count),
        )

    def _beside(self, components: Components | None) -> tuple[DeviceArray | None, int]:
        array, count, distance = component_arguments(components, self.result, 2)
        if components is not None and (count != self.images.count or self._of_filters):
            raise ValueError(f"implicit convolution: {count} components of the result are not written")
        return array, distance

    def _constants(self) -> dict[str, str | int]:
        return {
            "REAL": "float",
            "NUMBER": "bfloat16",
            "TRANSPOSE_A": int(self._of_filters),
            "TRANSPOSE_B": int(not self._of_filters),
            "COMPONENTS": f"{self.images.count}{self.matrix.count}",
            "ACTIVATION": self.epilogue.activation,
        }

    def in_numpy(self) -> Compute:
        window, _ = gathered(self.work)
        d = self.result.host_view()
        alpha, finish = np.float32(self.epilogue.alpha), self.epilogue.in_numpy(d)
        windows = window.room(self.work.samples, np.float32)
        P = windows.reshape(-1, window.pixels)

        def compute() -> None:
            images = self.images.to_float32().reshape(-1, window.height, window.width, window.channels)
            window.gather(images, windows)
            matrix = self.matrix.to_float32()
            np.multiply(matrix.T @ P if self._of_filters else P @ matrix.T, alpha, out=d)
            finish()

        return compute


def tilings(work: ImplicitConvolution, shared_memory: int) -> list[Tiling]:
    """List the cuts to choose from."""
    of_filters = work._of_filters
    counts = work.matrix.count, work.images.count
    a, b = counts if of_filters else counts[::-1]
    parts = FILTER_PARTS if of_filters else FORWARD_PARTS
    cuts = candidates(_depth(work), a, b, shared_memory, parts, common_tiles(a, b))
    return cuts if of_filters or a > 1 else [_with_room_for_two(cut, shared_memory) for cut in cuts]


def _with_room_for_two(cut: Tiling, shared_memory: int) -> Tiling:
    """Take fewer buffers where two blocks of single components can run at once, with half of the memory each.

    While one begins or ends, and of few channels that is long, the other keeps the tensor cores busy.
    """
    if (cut.rows, cut.columns) != _TWO_AT_ONCE:
        return cut
    most = (shared_memory // 2 - _APART_SHARED) // cut.stage_bytes(1, 1)
    return replace(cut, stages=max(2, min(cut.stages, most)))


def choose(work: ImplicitConvolution, multiprocessors: int, shared_memory: int) -> Tiling:
    """Choose the cut of least predicted time."""
    gathering, depth = work._gathering, blocks(_depth(work), _LINE)
    times = (FILTERS if work._of_filters else FORWARD)[work.images.count]

    def time(tiling: Tiling) -> float:
        return predicted(times, tiling, math.prod(work._tiles(tiling, gathering)), depth, multiprocessors)

    return min(tilings(work, shared_memory), key=time)


def _depth(work: ImplicitConvolution) -> int:
    """Count K of the product, with the zeros behind the last channels."""
    if work._of_filters:
        return work.work.samples * work.work.window.places
    return work._gathering.places * work._gathering.chunks * _LINE


def bind_implicit(kernels: Kernels, work: ConvolutionWork) -> Launch:
    """Bind a convolution by itself: its operands are split first."""
    preparations: list[Work] = []

    def ready(array: DeviceArray, packed: bool) -> Components:
        made = Components.empty(kernels.driver, kernels.components, *array.shape, packed=packed)
        preparations.append(Split(((array, made),)))
        return made

    images, matrix = operands_of(work)
    if isinstance(work, InputGradient):
        turn = Turn.of(work, partial(Components.empty, kernels.driver, kernels.components))
        preparations.append(FlipFilters([turn]))
        parts = ready(images, True), turn.T
    else:
        parts = ready(images, True), ready(matrix, isinstance(work, FilterGradient))
    done = ImplicitConvolution(work, *parts)
    return in_order([one.on_device(kernels) for one in (*preparations, done)])
