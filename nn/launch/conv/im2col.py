"""Launches of convolutions as matrix products (kernels/conv/im2col.cu), for some samples at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nn.launch.conv.convolution import Convolution, ConvolutionWork, InputGradient
from nn.launch.conv.window import window_arguments
from nn.launch.gemm import gemm
from nn.launch.gemm.product import Epilogue, Product
from nn.launch.shapes import line_shape
from nn.model.window import Window
from pyrt.arrays import DeviceArray
from pyrt.kernels import Launch, in_order

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels


def bind_im2col(kernels: Kernels, work: ConvolutionWork) -> Launch:
    """Bind the launches for all samples; the matrix of windows is for one slice of them."""
    window = work.window
    matrix = kernels.workspace((work.matrix_size,), work.images.dtype)
    launches: list[Launch] = []
    for start, stop in work.slices:
        images, outputs = work.of_samples(start, stop)
        count = outputs.shape[0]
        P = matrix.rows(0, count * window.pixels).reshape(count, window.pixels)
        if isinstance(work, InputGradient):
            launches.append(gemm(kernels, Product(P, outputs, work.filters)))
            arguments = window_arguments(stop - start, window)
            kernel = kernels.kernel("conv/im2col", "col2im")
            launches.append(kernel.bind(*line_shape(images.size), *arguments, P, images))
            continue
        launches.append(bind_windows(kernels, window, images, P))
        if isinstance(work, Convolution):
            launches.append(gemm(kernels, Product(outputs, P, work.filters, transpose_b=True)))
        else:
            product = Product(work.filters, outputs, P, transpose_a=True)
            launches.append(gemm(kernels, product, Epilogue(beta=float(start > 0))))
    return in_order(launches)


def bind_windows(kernels: Kernels, window: Window, images: DeviceArray, P: DeviceArray) -> Launch:
    """Bind the launch that lays out the windows of images (samples, size) as P (windows, pixels)."""
    kernel = kernels.kernel("conv/im2col", "im2col")
    return kernel.bind(*line_shape(P.size), *window_arguments(images.shape[0], window), images, P)
