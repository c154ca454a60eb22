"""nn/launch/conv/implicit.py: the cuts of a convolution on tensor cores of sm_90, and which one is chosen."""

from functools import partial

import numpy as np
import pytest

from nn.launch.conv.convolution import Convolution, FilterGradient
from nn.launch.conv.gathered import operands_of
from nn.launch.conv.implicit import ImplicitConvolution, choose, tilings
from nn.launch.gemm.components import COMPONENTS, Components
from nn.model.conv2d import Conv2d
from pyrt.arrays import DeviceArray
from pyrt.driver.null import DeviceProperties, NullDriver

HOPPER = DeviceProperties("a GPU", "sm_90a", 132, 232448)
SHARED_OF_ALL = 233472
"""Bytes of a multiprocessor's shared memory, of which each block takes 1024 more than it asks for."""


def convolution(kind, samples, side, channels, filters, math):
    """A convolution of 3 x 3 places with padding, on arrays that are not there."""
    empty = partial(DeviceArray.empty, NullDriver(HOPPER))
    window = Conv2d(filters, 3, padding=1).window((side, side, channels))
    shapes = (samples, side * side * channels), (filters, 9 * channels), (samples, side * side * filters)
    images, weights, outputs = (empty(shape, np.float32) for shape in shapes)
    work = kind(images=images, filters=weights, outputs=outputs, window=window)
    parts = (Components.within(empty, COMPONENTS[math], *operand.shape) for operand in operands_of(work))
    return ImplicitConvolution(work, *parts)


@pytest.mark.parametrize("math", COMPONENTS)
@pytest.mark.parametrize("kind", [Convolution, FilterGradient])
def test_blocks_find_their_shared_memory(kind, math):
    """Two of them where they are to run at once: forward, of single components, tiles of 128 x 64."""
    for cut in tilings(convolution(kind, 128, 16, 64, 64, math), HOPPER.shared_memory):
        count = COMPONENTS[math]
        two = kind is Convolution and count == 1 and (cut.rows, cut.columns) == (128, 64)
        asked = cut.stages * cut.stage_bytes(count, count) + 1024  # for barriers, and to be aligned
        assert cut.stages >= 2
        assert (2 if two else 1) * (asked + 1024) <= SHARED_OF_ALL


# As measured on one H200: the fastest of all cuts, or within 2% of it.
@pytest.mark.parametrize(
    ("kind", "sizes", "math", "tile"),
    [
        (Convolution, (128, 32, 64, 64), "bf16", (128, 64)),
        (Convolution, (128, 16, 128, 128), "tf32", (128, 128)),
        (Convolution, (64, 28, 512, 512), "bf16", (128, 256)),
        (Convolution, (64, 28, 512, 512), "float32", (64, 128)),
        (FilterGradient, (128, 32, 64, 64), "tf32", (64, 64)),
        (FilterGradient, (1024, 16, 128, 128), "bf16", (128, 128)),
    ],
)
def test_the_fastest_tile_is_chosen(kind, sizes, math, tile):
    made = convolution(kind, *sizes, math)
    chosen = choose(made, HOPPER.multiprocessors, HOPPER.shared_memory)
    assert (chosen.rows, chosen.columns) == tile
