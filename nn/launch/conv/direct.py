"""Launches of convolutions as seven loops (kernels/conv/direct.cu)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nn.launch.conv.convolution import Convolution, ConvolutionWork, InputGradient
from nn.launch.conv.window import window_arguments
from nn.launch.shapes import line_shape
from pyrt.kernels import Launch

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels

_FILTER_BLOCK = (256,)
_MOST_BLOCKS = 65536


def bind_direct(kernels: Kernels, work: ConvolutionWork) -> Launch:
    """Bind one launch for all samples."""
    arguments = (*window_arguments(work.samples, work.window), work.filter_count)
    if isinstance(work, Convolution):
        kernel, result = kernels.kernel("conv/direct", "direct_forward"), work.outputs
    elif isinstance(work, InputGradient):
        kernel, result = kernels.kernel("conv/direct", "direct_input"), work.images
    else:
        kernel = kernels.kernel("conv/direct", "direct_filters")
        grid = (min(work.filters.size, _MOST_BLOCKS),)
        return kernel.bind(grid, _FILTER_BLOCK, *arguments, *work.reads, work.filters)
    return kernel.bind(*line_shape(result.size), *arguments, *work.reads, result)
