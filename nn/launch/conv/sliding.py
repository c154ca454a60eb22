"""Launches of convolutions of few channels whose windows slide along rows (kernels/conv/sliding.cu)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nn.launch.column_sums import ColumnSums
from nn.launch.conv.convolution import Convolution, ConvolutionWork, FilterGradient, InputGradient
from nn.launch.conv.gathered import gathered, result_of
from nn.launch.conv.window import window_arguments
from nn.launch.gemm.product import PLAIN, Epilogue
from nn.model.window import Window
from pyrt.arrays import DeviceArray
from pyrt.driver import Driver
from pyrt.kernels import Kernel, Launch, blocks, in_order

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels

# As conv/sliding.cu has them.
_FILTERS, _ACROSS = 8, 5
_COLUMNS = (3, 5)
_FORWARD_THREADS, _FILTER_THREADS = 192, 256

_USUAL_THREADS = 128
"""Threads of a forward block: enough to load its tile, few enough that there are several on a multiprocessor."""

_SHARED_BYTES = 72 * 1024
"""Shared memory of a block, where there is so much: three are on a multiprocessor of 228 KB."""

_LEAST_SHARED_BYTES = 48 * 1024
"""What every GPU gives a block."""

_BLOCKS_EACH = 4
"""Blocks a multiprocessor that share the tiles."""


@dataclass(frozen=True)
class Tiling:
    """How the rows of outputs are cut into tiles: ``band`` rows of ``images`` images each."""

    images: int
    band: int
    count: int

    @classmethod
    def of(cls, samples: int, window: Window, numbers: int, extra: int, least: int) -> Tiling | None:
        """Choose the largest tiles that fit into so many numbers of shared memory.

        A tile has the pixels of its images, and ``extra`` numbers for each row of outputs. There are at least
        ``least`` tiles if there are so many images. None if no row fits.
        """

        def size(band: int) -> int:
            return _planes(window, band) + band * extra

        height = window.out_height
        bands = next((count for count in range(1, height + 1) if size(blocks(height, count)) <= numbers), 0)
        if bands == 0:
            return None
        band, images = blocks(height, bands), 1
        if bands == 1:
            images = max(1, min(numbers // size(band), samples // least, _most_images(window)))
        return cls(images, band, blocks(samples, images) * blocks(height, band))


def _most_images(window: Window) -> int:
    """Return how many images have as many segments as a block has threads."""
    return max(1, _USUAL_THREADS // (window.out_height * _segments(window)))


def _segments(window: Window) -> int:
    return blocks(window.out_width, _ACROSS)


def _pitch(window: Window) -> int:
    """Return the numbers of a row of a plane, odd."""
    return (_segments(window) * _ACROSS + window.columns - 1) | 1


def _planes(window: Window, band: int) -> int:
    return window.channels * min(band + window.rows - 1, window.height) * _pitch(window)


def fits_sliding(work: ConvolutionWork) -> bool:
    """Return whether the kernels can do the work."""
    window, _ = gathered(work)
    if window.stride > 1 or window.columns not in _COLUMNS or min(window.top, window.left) < 0:
        return False
    if isinstance(work, FilterGradient):
        return (
            window.rows * window.channels <= _FILTER_THREADS
            and _tiles(work, _LEAST_SHARED_BYTES, 1) is not None
        )
    return _segments(window) <= _FORWARD_THREADS and _tiles(work, _LEAST_SHARED_BYTES, 1) is not None


def _tiles(work: ConvolutionWork, shared: int, multiprocessors: int) -> Tiling | None:
    """Choose the tiles of a convolution: at least two for each multiprocessor, if there are so many images."""
    window, _ = gathered(work)
    if isinstance(work, FilterGradient):
        room, each = 0, _segments(window) * _ACROSS * _FILTERS
    else:
        room, each = window.pixels * _FILTERS + _threads(window) * _ACROSS * _FILTERS, 0
    numbers = shared // 4 - room
    return Tiling.of(work.samples, window, numbers, each, 2 * multiprocessors)


def _tiles_on(driver: Driver, work: ConvolutionWork) -> Tiling | None:
    return _tiles(work, min(_SHARED_BYTES, driver.shared_memory), driver.multiprocessors)


def _threads(window: Window) -> int:
    """Return the threads of a forward block: whole rows of segments."""
    segments = _segments(window)
    return max(1, _USUAL_THREADS // segments) * segments


def bind_sliding(kernels: Kernels, work: ConvolutionWork, epilogue: Epilogue = PLAIN) -> Launch:
    """Bind a convolution, with the bias and the activation of an epilogue."""
    if isinstance(work, FilterGradient):
        return _bind_filters(kernels, work)
    window, _ = gathered(work)
    tiles, threads = _tiles_on(kernels.driver, work), _threads(window)
    assert tiles is not None
    result = result_of(work)
    filters = result.shape[1]
    groups = blocks(filters, _FILTERS)
    kernel = _kernel(kernels, "sliding_forward", window, epilogue.activation)
    images = work.images if isinstance(work, Convolution) else work.outputs
    numbers = (
        window.pixels * _FILTERS + threads * _ACROSS * _FILTERS + tiles.images * _planes(window, tiles.band)
    )
    return kernel.bind(
        (_across(kernels, tiles, groups), groups),
        (threads,),
        *window_arguments(work.samples, window),
        *(tiles.images, tiles.band, _pitch(window), filters, int(isinstance(work, InputGradient))),
        *(images, work.filters, epilogue.bias, result),
        shared=4 * numbers,
    )


def _bind_filters(kernels: Kernels, work: FilterGradient) -> Launch:
    driver, window, filters = kernels.driver, work.window, work.filter_count
    tiles = _tiles_on(driver, work)
    assert tiles is not None
    each, groups = window.rows * window.channels, blocks(filters, _FILTERS)
    slices = _FILTER_THREADS // each
    threads = blocks(slices * each, 32) * 32
    across = _across(kernels, tiles, groups)
    partials = DeviceArray.empty(driver, (across, work.filters.size), np.float32)
    gradients = tiles.band * _segments(window) * _ACROSS * _FILTERS
    tile = tiles.images * (gradients + _planes(window, tiles.band))
    launch = _kernel(kernels, "sliding_filters", window, "identity").bind(
        (across, groups),
        (threads,),
        *window_arguments(work.samples, window),
        *(tiles.images, tiles.band, _pitch(window), filters, slices, work.images, work.outputs, partials),
        shared=4 * max(tile, threads * window.columns * _FILTERS),
    )
    sums = ColumnSums(partials, work.filters.reshape(work.filters.size))
    return in_order([launch, sums.on_device(kernels)])


def _kernel(kernels: Kernels, name: str, window: Window, activation: str) -> Kernel:
    return kernels.kernel("conv/sliding", name, COLUMNS=window.columns, ACTIVATION=activation)


def _across(kernels: Kernels, tiles: Tiling, groups: int) -> int:
    """Return the blocks that share the tiles for one group of filters."""
    return min(tiles.count, blocks(_BLOCKS_EACH * kernels.driver.multiprocessors, groups))
