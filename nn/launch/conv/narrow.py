"""Launches of convolutions of few channels (kernels/conv/narrow.cu, and sliding.cu where that fits)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nn.launch.column_sums import ColumnSums
from nn.launch.conv.convolution import Convolution, ConvolutionWork, FilterGradient, InputGradient
from nn.launch.conv.gathered import gathered, result_of
from nn.launch.conv.sliding import bind_sliding, fits_sliding
from nn.launch.conv.window import window_arguments
from nn.launch.gemm.product import PLAIN, Epilogue
from pyrt.arrays import DeviceArray
from pyrt.kernels import Launch, blocks, in_order

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels

# As conv/narrow.cu has them.
_THREADS, _SQUARE = 128, 4
_CORNER_BYTES = 16

_MOST_CHANNELS = 8
"""Channels that are gathered, or made, up to which tensor cores multiply zeros most of the time."""

_MOST_THREADS = 256
_SHARED_BYTES = 40 * 1024
_MOST_TILE = 256
"""Windows whose numbers are in shared memory at once; there are fewer where these take more than that."""

_BLOCKS_EACH = 4
"""Blocks a multiprocessor that share the windows of the filters' gradient."""


def fits_narrow(work: ConvolutionWork) -> bool:
    """Return whether the kernels can do the work, and tensor cores would have too little of it."""
    window, channels = gathered(work)
    if isinstance(work, InputGradient) and work.window.stride > 1:
        return False
    if isinstance(work, FilterGradient):
        few, fits = channels, _squares(work) <= _MOST_THREADS and _tile(work) > 0
    else:
        few = min(channels, result_of(work).shape[1])
        fits = window.pixels * 16 * 4 <= _SHARED_BYTES
    return few <= _MOST_CHANNELS and fits


def _squares(work: ConvolutionWork) -> int:
    """Count the threads that make all sums of the filters once."""
    return blocks(work.filter_count, _SQUARE) * blocks(work.window.pixels, _SQUARE)


def _tile(work: ConvolutionWork) -> int:
    """Return how many windows' numbers fit into shared memory; 0 where slices cannot meet there."""
    if _squares(work) * _SQUARE * _SQUARE * 4 > _SHARED_BYTES:
        return 0
    rows = blocks(work.filter_count, _SQUARE) + blocks(work.window.pixels, _SQUARE)
    return min(_MOST_TILE, _SHARED_BYTES // (_CORNER_BYTES + 4 * _SQUARE * rows))


def bind_narrow(kernels: Kernels, work: ConvolutionWork, epilogue: Epilogue = PLAIN) -> Launch:
    """Bind a convolution, with the bias and the activation of an epilogue."""
    if fits_sliding(work):
        return bind_sliding(kernels, work, epilogue)
    if isinstance(work, FilterGradient):
        return _bind_filters(kernels, work)
    window, _ = gathered(work)
    result = result_of(work)
    count, filters = result.shape
    each = 16 if filters > 8 else 8
    # Few windows: one a thread, so that there are blocks for all multiprocessors.
    windows = 4 if blocks(count, 4 * _THREADS) >= kernels.driver.multiprocessors else 1
    kernel = kernels.kernel(
        "conv/narrow", "narrow_forward", FILTERS=each, WINDOWS=windows, ACTIVATION=epilogue.activation
    )
    images = work.images if isinstance(work, Convolution) else work.outputs
    return kernel.bind(
        (blocks(count, _THREADS * windows), blocks(filters, each)),
        (_THREADS,),
        *window_arguments(work.samples, window),
        *(filters, int(isinstance(work, InputGradient)), images, work.filters, epilogue.bias, result),
        shared=window.pixels * each * 4,
    )


def _bind_filters(kernels: Kernels, work: FilterGradient) -> Launch:
    driver, squares, tile = kernels.driver, _squares(work), _tile(work)
    slices = _MOST_THREADS // squares
    windows = work.samples * work.window.places
    most = _BLOCKS_EACH * driver.multiprocessors
    tile = min(tile, max(blocks(windows, most), slices))
    down = min(blocks(windows, tile), most)
    partials = DeviceArray.empty(driver, (down, work.filters.size), np.float32)
    kernel = kernels.kernel("conv/narrow", "narrow_filters", FILTERS=8, WINDOWS=1, ACTIVATION="identity")
    rows = blocks(work.filter_count, _SQUARE) + blocks(work.window.pixels, _SQUARE)
    meeting = squares * _SQUARE * _SQUARE
    launch = kernel.bind(
        (down,),
        (blocks(squares * slices, 32) * 32,),
        *window_arguments(work.samples, work.window),
        *(work.filter_count, slices, tile, work.images, work.outputs, partials),
        shared=tile * _CORNER_BYTES + 4 * max(tile * _SQUARE * rows, meeting),
    )
    sums = ColumnSums(partials, work.filters.reshape(work.filters.size))
    return in_order([launch, sums.on_device(kernels)])
