"""Launches of convolutions of few channels (kernels/conv/narrow.cu)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nn.launch.column_sums import ColumnSums
from nn.launch.conv.convolution import Convolution, ConvolutionWork, FilterGradient, InputGradient
from nn.launch.conv.gathered import gathered, result_of
from nn.launch.conv.window import window_arguments
from nn.launch.gemm.product import PLAIN, Epilogue
from pyrt.arrays import DeviceArray
from pyrt.kernels import Launch, blocks, in_order

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels

# As conv/narrow.cu has them.
_THREADS, _WINDOWS = 128, 4
_TILE, _SQUARE = 32, 4

_MOST_CHANNELS = 8
"""Channels that are gathered, or made, up to which tensor cores multiply zeros most of the time."""

_MOST_THREADS = 256
_SHARED_BYTES = 48 * 1024
_BLOCKS_EACH = 4
"""Blocks a multiprocessor that share the windows of the filters' gradient."""


def fits_narrow(work: ConvolutionWork) -> bool:
    """Return whether the kernels can do the work, and tensor cores would have too little of it."""
    window, channels = gathered(work)
    if isinstance(work, InputGradient) and work.window.stride > 1:
        return False
    if isinstance(work, FilterGradient):
        few, fits = channels, _squares(work) <= _MOST_THREADS and _filters_shared(work) <= _SHARED_BYTES
    else:
        few = min(channels, result_of(work).shape[1])
        fits = window.pixels * 16 * 4 <= _SHARED_BYTES
    return few <= _MOST_CHANNELS and fits


def _squares(work: ConvolutionWork) -> int:
    """Count the threads that make all sums of the filters once."""
    return blocks(work.filter_count, _SQUARE) * blocks(work.window.pixels, _SQUARE)


def _filters_shared(work: ConvolutionWork) -> int:
    """Count the bytes of shared memory that the filters' gradient takes."""
    rows = blocks(work.filter_count, _SQUARE) + blocks(work.window.pixels, _SQUARE)
    return 4 * max(_TILE * _SQUARE * rows, _squares(work) * _SQUARE * _SQUARE)


def bind_narrow(kernels: Kernels, work: ConvolutionWork, epilogue: Epilogue = PLAIN) -> Launch:
    """Bind a convolution, with the bias and the activation of an epilogue."""
    if isinstance(work, FilterGradient):
        return _bind_filters(kernels, work)
    window, _ = gathered(work)
    result = result_of(work)
    count, filters = result.shape
    each = 16 if filters > 8 else 8
    kernel = kernels.kernel("conv/narrow", "narrow_forward", FILTERS=each, ACTIVATION=epilogue.activation)
    images = work.images if isinstance(work, Convolution) else work.outputs
    return kernel.bind(
        (blocks(count, _THREADS * _WINDOWS), blocks(filters, each)),
        (_THREADS,),
        *window_arguments(work.samples, window),
        *(filters, int(isinstance(work, InputGradient)), images, work.filters, epilogue.bias, result),
        shared=window.pixels * each * 4,
    )


def _bind_filters(kernels: Kernels, work: FilterGradient) -> Launch:
    driver, squares = kernels.driver, _squares(work)
    slices = _MOST_THREADS // squares
    windows = work.samples * work.window.places
    down = min(blocks(windows, _TILE), _BLOCKS_EACH * driver.multiprocessors)
    partials = DeviceArray.empty(driver, (down, work.filters.size), np.float32)
    kernel = kernels.kernel("conv/narrow", "narrow_filters", FILTERS=8, ACTIVATION="identity")
    launch = kernel.bind(
        (down,),
        (blocks(squares * slices, 32) * 32,),
        *window_arguments(work.samples, work.window),
        *(work.filter_count, slices, work.images, work.outputs, partials),
        shared=_filters_shared(work),
    )
    sums = ColumnSums(partials, work.filters.reshape(work.filters.size))
    return in_order([launch, sums.on_device(kernels)])
