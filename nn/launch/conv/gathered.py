"""A convolution as a product: what its windows are gathered from, the other operand, the result."""

from __future__ import annotations

from dataclasses import replace

from nn.launch.conv.convolution import Convolution, ConvolutionWork, FilterGradient, InputGradient
from nn.model.window import Window
from pyrt.arrays import DeviceArray

FORWARD_PARTS = (1, 2, 3, 4, 6, 8)
FILTER_PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Parts of k; k of filters counts windows, of which there are many."""


def gathered(work: ConvolutionWork) -> tuple[Window, int]:
    """Return the windows that the kernel gathers, and the channels of what it gathers them from.

    For the gradient of the images these are windows on the gradient of the outputs, for a stride of 1.
    """
    window = work.window
    if not isinstance(work, InputGradient):
        return window, window.channels
    turned = replace(
        window,
        height=window.out_height,
        width=window.out_width,
        channels=work.filter_count,
        top=window.rows - 1 - window.top,
        left=window.columns - 1 - window.left,
        out_height=window.height,
        out_width=window.width,
    )
    return turned, work.filter_count


def result_of(work: ConvolutionWork) -> DeviceArray:
    """Return what a convolution writes as a matrix."""
    if isinstance(work, FilterGradient):
        return work.filters
    columns = work.filter_count if isinstance(work, Convolution) else work.window.channels
    (result,) = work.writes
    return result.reshape(result.size // columns, columns)


def operands_of(work: ConvolutionWork) -> tuple[DeviceArray, DeviceArray]:
    """Return what the kernel gathers windows from, (pixels, channels), and the other operand, as matrices.

    The filters for the gradient of the images are as they are: `FlipFilters` turns them around.
    """
    images = work.images.reshape(work.images.size // work.window.channels, work.window.channels)
    outputs = work.outputs.reshape(work.outputs.size // work.filter_count, work.filter_count)
    if isinstance(work, FilterGradient):
        return images, outputs
    return (images if isinstance(work, Convolution) else outputs), work.filters
