"""Convolutions: which rung of the ladder (docs/explain/convolution.md) one takes, and how it is launched.

================ =======================================================================
``convolution``  the three products of a convolutional layer: forward, to the input, to the filters
``versions``     which rungs there are, and which runs where
``direct``       seven loops, a thread a result
``shared``       a tile of the image with its halo, and the filters, in shared memory
``im2col``       a matrix of all windows, then the products that are there
``narrow``       few channels, in registers and shared memory
``sliding``      the same at stride 1, where windows share pixels; part of ``narrow``
``implicit``     tensor cores of sm_90 that gather the windows on the way
``implicit_mma`` the same on those of sm_80 and later
``winograd``     transforms of tiles, and products of fewer multiplications between them
================ =======================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nn.launch.conv.direct import bind_direct
from nn.launch.conv.im2col import bind_im2col
from nn.launch.conv.implicit import bind_implicit
from nn.launch.conv.implicit_mma import bind_implicit_mma
from nn.launch.conv.narrow import bind_narrow
from nn.launch.conv.shared import bind_shared
from nn.launch.conv.winograd import OUTS, bind_small_winograd, bind_winograd, winograd_workspace
from pyrt.kernels import Launch

if TYPE_CHECKING:
    from nn.launch.conv.convolution import ConvolutionWork
    from nn.launch.kernels import Kernels

_BIND = {
    "direct": bind_direct,
    "shared": bind_shared,
    "im2col": bind_im2col,
    "narrow": bind_narrow,
    "implicit": bind_implicit,
    "implicit_mma": bind_implicit_mma,
    "winograd": bind_winograd,
    "winograd_2x2": bind_small_winograd,
}


def convolve(kernels: Kernels, work: ConvolutionWork) -> Launch:
    """Bind the version of the convolution that its sizes and the device ask for."""
    return _BIND[kernels.choose(work)](kernels, work)


def workspace_of(kernels: Kernels, work: ConvolutionWork) -> int:
    """Count the bytes of the matrix of windows, or of transformed tiles, where there are any."""
    version = kernels.choose(work)
    if version == "im2col":
        return work.matrix_size * work.images.dtype.itemsize
    if version in ("winograd", "winograd_2x2"):
        return winograd_workspace(kernels, work, OUTS if version == "winograd" else [2])
    return 0
