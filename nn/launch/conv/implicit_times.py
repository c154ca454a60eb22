"""Predicts how long a cut of a convolution on tensor cores of sm_90 takes (kernels/conv/implicit.cu).

Fitted to 140 convolutions of bench/nets.py's networks on one H200, each with all cuts: the root mean square
error is 6%; the cut of least predicted time takes 1% longer than the fastest in the mean, 16% at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nn.launch.gemm.wgmma import Tiling
from pyrt.kernels import blocks


@dataclass(frozen=True)
class Times:
    """Microseconds of a block's work, by the rows and columns of its tile of the result."""

    begin_and_end: Mapping[tuple[int, int], float]
    each: Mapping[tuple[int, int], float]
    """For each tile along k."""
    part: float
    """For each 64 x 64 numbers of another part of k that are added."""


def _alike(begin_and_end: float, each: Mapping[tuple[int, int], float], part: float) -> Times:
    return Times(dict.fromkeys(each, begin_and_end), each, part)


# By the components of an operand. Of tiles 128 x 64 of one component two blocks run at once: to begin and to
# end takes less.
FORWARD = {
    1: Times(
        {**dict.fromkeys(((64, 64), (192, 64), (64, 128), (128, 128), (128, 256)), 4.9), (128, 64): 2.73},
        {
            **{(64, 64): 0.091, (128, 64): 0.245, (192, 64): 0.362},
            **{(64, 128): 0.214, (128, 128): 0.372, (128, 256): 0.787},
        },
        0.173,
    ),
    2: _alike(
        4.43,
        {(64, 64): 0.32, (128, 64): 0.591, (192, 64): 0.986, (64, 128): 0.576, (128, 128): 1.108},
        0.147,
    ),
    3: _alike(
        3.73,
        {(64, 64): 0.606, (128, 64): 1.173, (192, 64): 2.56, (64, 128): 1.096, (128, 128): 2.897},
        0.0,
    ),
}
"""Forward and to the images."""

FILTERS = {
    1: _alike(
        3.07,
        {
            **{(64, 64): 0.235, (128, 64): 0.281, (192, 64): 0.357},
            **{(64, 128): 0.343, (128, 128): 0.361, (128, 256): 0.687},
        },
        0.139,
    ),
    2: _alike(
        1.66,
        {(64, 64): 0.425, (128, 64): 0.545, (192, 64): 0.888, (64, 128): 0.632, (128, 128): 1.013},
        0.081,
    ),
    3: _alike(
        1.16,
        {(64, 64): 0.599, (128, 64): 1.078, (192, 64): 2.439, (64, 128): 1.077, (128, 128): 2.644},
        0.112,
    ),
}
"""To the filters."""


def predicted(times: Times, tiling: Tiling, tiles: int, depth: int, multiprocessors: int) -> float:
    """Microseconds of so many tiles of the result, ``depth`` tiles along k, cut like this."""
    tile, count = (tiling.rows, tiling.columns), tiles * tiling.parts
    # A few blocks a multiprocessor run in waves; of many the last wave is a small part.
    waves = blocks(count, multiprocessors) if count < 4 * multiprocessors else count / multiprocessors
    time = times.begin_and_end[tile] + blocks(depth, tiling.parts) * times.each[tile]
    return waves * (time + (tiling.parts - 1) * tiling.rows * tiling.columns / (64 * 64) * times.part)
