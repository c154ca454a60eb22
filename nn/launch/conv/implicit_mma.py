"""Convolutions on tensor cores of sm_80 and later, whose windows are gathered on the way.

The kernels: kernels/conv/implicit_mma.cu.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nn.launch.conv.convolution import Convolution, ConvolutionWork, FilterGradient, InputGradient
from nn.launch.conv.gathered import FILTER_PARTS, FORWARD_PARTS, operands_of, result_of
from nn.launch.conv.window import window_arguments
from nn.launch.gemm.mma import MmaTiling, add_parts, choose_mma_tiling, room_for_parts
from nn.launch.gemm.product import PLAIN, Epilogue
from pyrt.kernels import Launch, blocks

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels


def bind_implicit_mma(kernels: Kernels, work: ConvolutionWork, epilogue: Epilogue = PLAIN) -> Launch:
    """Bind a convolution, with the bias and the activation of an epilogue; all arrays are float32.

    Only of outputs there are kernels with an epilogue.
    """
    driver, result, tiling = kernels.driver, result_of(work), choose(kernels, work)
    phases, lines, _ = products_of(work)
    partials = room_for_parts(driver, tiling.parts, result.size)
    kernel = kernels.kernel(
        "conv/implicit_mma",
        f"gather_{tiling.rows}x{tiling.columns}",
        TRANSPOSE_A=int(isinstance(work, FilterGradient)),
        TRANSPOSE_B=int(isinstance(work, Convolution)),
        COMPONENTS=kernels.mma_components,
        ACTIVATION=epilogue.activation,
    )
    launch = kernel.bind(
        (phases * blocks(lines, tiling.rows), blocks(result.shape[1], tiling.columns), tiling.parts),
        (tiling.threads,),
        *window_arguments(work.samples, work.window),
        work.filter_count,
        *operands_of(work),
        *(partials, epilogue.bias, result),
        shared=tiling.shared,
    )
    if partials is None:
        return launch
    return add_parts(kernels, launch, tiling.parts, partials, result, epilogue)


def choose(kernels: Kernels, work: ConvolutionWork) -> MmaTiling:
    """Choose the cut of least predicted time."""
    driver, (phases, lines, K) = kernels.driver, products_of(work)
    return choose_mma_tiling(
        phases * lines,
        result_of(work).shape[1],
        K,
        kernels.mma_components,
        driver.multiprocessors,
        driver.shared_memory,
        FILTER_PARTS if isinstance(work, FilterGradient) else FORWARD_PARTS,
    )


def products_of(work: ConvolutionWork) -> tuple[int, int, int]:
    """Return how many products a convolution is, the most rows that one of them has, and their K on average.

    The gradient of the images is one for each phase of their pixels: `PixelsOfPhase` in the kernel's file.
    """
    window = work.window
    if isinstance(work, FilterGradient):
        return 1, work.filter_count, work.samples * window.places
    if isinstance(work, Convolution):
        return 1, work.samples * window.places, window.pixels
    assert isinstance(work, InputGradient)
    down, across = min(window.stride, window.height), min(window.stride, window.width)
    lines = work.samples * blocks(window.height, window.stride) * blocks(window.width, window.stride)
    return down * across, lines, blocks(window.rows * window.columns * work.filter_count, window.stride**2)
