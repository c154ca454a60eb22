"""Launches of convolutions of few channels whose windows slide along rows (kernels/conv/sliding.cu)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from nn.launch.column_sums import ColumnSums
from nn.launch.conv.convolution import Convolution, ConvolutionWork, FilterGradient, InputGradient
from nn.launch.conv.gathered import gathered, result_of
from nn.launch.conv.window import window_arguments
from nn.launch.conv.with_components import component_arguments
from nn.launch.gemm.components import Components
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
_MOST_SEGMENTS, _FILTER_THREADS = 192, 256
_LEAST_THREADS, _ALONE_THREADS = 128, 256
"""Threads that a forward block has at least, though its tile has fewer segments. The second number is for a
block that has a multiprocessor to itself."""

_MOST_FILTERS = 16
"""Filters up to which this is faster than `narrow`: each FILTERS of them load the images again."""

_SHARED_BYTES = 72 * 1024
"""Shared memory of a block, where there is so much: a multiprocessor of 228 KB has room for three."""

_LEAST_SHARED_BYTES = 48 * 1024
"""What every GPU gives a block."""

_FORWARD_BLOCKS, _FILTER_BLOCKS = 2, 2
"""Blocks for whose registers a multiprocessor has room: all run at once, and share the tiles."""


@dataclass(frozen=True)
class Tiles:
    """Windows cut into tiles: ``band`` rows of outputs of ``images`` images each; ``count`` of them.

    A forward block has at least ``threads``, where its tile has fewer segments.
    """

    window: Window
    images: int
    band: int
    count: int
    threads: int

    @property
    def pixels(self) -> int:
        """Count the numbers of the planes of one image."""
        window = self.window
        return window.channels * min(self.band + window.rows - 1, window.height) * _pitch(window)

    @property
    def segments(self) -> int:
        """Count the segments of one image."""
        return self.band * _segments(self.window)


def _segments(window: Window) -> int:
    return blocks(window.out_width, _ACROSS)


def _pitch(window: Window) -> int:
    """Return the numbers of a row of a plane, odd."""
    return (_segments(window) * _ACROSS + window.columns - 1) | 1


def fits_sliding(work: ConvolutionWork) -> bool:
    """Return whether the kernels can do the work."""
    window, _ = gathered(work)
    if window.stride > 1 or window.columns not in _COLUMNS or min(window.top, window.left) < 0:
        return False
    if isinstance(work, FilterGradient):
        if window.rows * window.channels > _FILTER_THREADS:
            return False
    elif result_of(work).shape[1] > _MOST_FILTERS:
        return False
    return tiles_of(work, _LEAST_SHARED_BYTES, 1) is not None


def tiles_of(work: ConvolutionWork, shared: int, multiprocessors: int) -> Tiles | None:
    """Choose the largest tiles that fit into so many bytes of shared memory; None where no row does.

    There are at least two for each multiprocessor, if there are so many images; where there are few, blocks
    have more threads, if these fit.
    """
    alone = work.samples <= multiprocessors
    found = _tiles_of(work, shared, multiprocessors, _ALONE_THREADS) if alone else None
    return found or _tiles_of(work, shared, multiprocessors, _LEAST_THREADS)


def _tiles_of(work: ConvolutionWork, shared: int, multiprocessors: int, threads: int) -> Tiles | None:
    window, _ = gathered(work)
    height = window.out_height
    for bands in range(1, height + 1):
        tiles = Tiles(window, 1, blocks(height, bands), work.samples * bands, threads)
        if not _fits(work, tiles, shared):
            continue
        tiles = replace(tiles, count=work.samples * blocks(height, tiles.band))
        most = work.samples // (2 * multiprocessors) if bands == 1 else 1
        for images in range(2, most + 1):
            more = replace(tiles, images=images, count=blocks(work.samples, images))
            if not _fits(work, more, shared):
                break
            tiles = more
        return tiles
    return None


def _fits(work: ConvolutionWork, tiles: Tiles, shared: int) -> bool:
    """Return whether a block has the shared memory, and a thread for each segment if each needs one."""
    if tiles.images == 1 and isinstance(work, FilterGradient):
        return _shared(work, tiles) <= shared
    return tiles.images * tiles.segments <= _MOST_SEGMENTS and _shared(work, tiles) <= shared


def _shared(work: ConvolutionWork, tiles: Tiles) -> int:
    """Count the bytes of shared memory of a block."""
    window, planes = tiles.window, tiles.images * tiles.pixels
    if isinstance(work, FilterGradient):
        outputs = tiles.images * tiles.segments * _ACROSS * _FILTERS
        return 4 * max(outputs + planes, _FILTER_THREADS * window.columns * _FILTERS)
    parts, threads = _forward_threads(tiles)
    return 4 * (window.pixels * _FILTERS + parts * threads * _ACROSS * _FILTERS + planes)


def _forward_threads(tiles: Tiles) -> tuple[int, int]:
    """Return the parts of the channels that a forward block sums apart, and the threads of each.

    A tile of few segments leaves threads to share the channels; of few channels, threads that only load.
    """
    segments, rows = _segments(tiles.window), tiles.images * tiles.band
    parts = max(1, min(tiles.window.channels, tiles.threads // (rows * segments)))
    return parts, (rows if parts > 1 else max(rows, tiles.threads // segments)) * segments


def bind_sliding(
    kernels: Kernels,
    work: ConvolutionWork,
    epilogue: Epilogue = PLAIN,
    components: Components | None = None,
) -> Launch:
    """Bind a convolution, with the bias and the activation of an epilogue.

    Forward the kernel can leave packed components of the result beside it.
    """
    if isinstance(work, FilterGradient):
        return _bind_filters(kernels, work)
    tiles, result = _tiles_on(kernels.driver, work), result_of(work)
    window, filters = tiles.window, result.shape[1]
    parts, threads = _forward_threads(tiles)
    images = work.images if isinstance(work, Convolution) else work.outputs
    return _kernel(kernels, "sliding_forward", window, epilogue.activation).bind(
        _grid(tiles, filters, _FORWARD_BLOCKS * kernels.driver.multiprocessors),
        (parts * threads,),
        *window_arguments(work.samples, window),
        *(tiles.images, tiles.band, _pitch(window), filters, parts, int(isinstance(work, InputGradient))),
        *(images, work.filters, epilogue.bias, result),
        *component_arguments(components, result, 2),
        shared=_shared(work, tiles),
    )


def _bind_filters(kernels: Kernels, work: FilterGradient) -> Launch:
    tiles, window = _tiles_on(kernels.driver, work), work.window
    each = window.rows * window.channels
    slices = _FILTER_THREADS // each
    grid = _grid(tiles, work.filter_count, _FILTER_BLOCKS * kernels.driver.multiprocessors)
    partials = DeviceArray.empty(kernels.driver, (grid[0], work.filters.size), np.float32)
    launch = _kernel(kernels, "sliding_filters", window, "identity").bind(
        grid,
        (blocks(slices * each, 32) * 32,),
        *window_arguments(work.samples, window),
        *(tiles.images, tiles.band, _pitch(window), work.filter_count, slices),
        *(work.images, work.outputs, partials),
        shared=_shared(work, tiles),
    )
    sums = ColumnSums(partials, work.filters.reshape(work.filters.size))
    return in_order([launch, sums.on_device(kernels)])


def _kernel(kernels: Kernels, name: str, window: Window, activation: str) -> Kernel:
    return kernels.kernel("conv/sliding", name, COLUMNS=window.columns, ACTIVATION=activation)


def _tiles_on(driver: Driver, work: ConvolutionWork) -> Tiles:
    tiles = tiles_of(work, min(_SHARED_BYTES, driver.shared_memory), driver.multiprocessors)
    assert tiles is not None, "`fits_sliding` says whether there are any"
    return tiles


def _grid(tiles: Tiles, filters: int, most: int) -> tuple[int, int]:
    """Return the blocks that share the tiles, each as many of them, and the groups of filters."""
    groups = blocks(filters, _FILTERS)
    return blocks(tiles.count, blocks(tiles.count, max(1, most // groups))), groups
