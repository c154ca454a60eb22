"""Which version of a convolution (the ladder of docs/explain/convolution.md) runs."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import DTypeLike

from nn.launch.gemm.mma import has_mma

CONV_VERSIONS = ("direct", "shared", "im2col", "implicit", "winograd")
"""All versions, in the order of the ladder; ``implicit`` is for float32, on tensor cores from sm_80 on.

``winograd`` rounds more than the others; `Kernels` takes its small tiles, which do not, where that is faster.
"""


def fastest_convolution(dtype: DTypeLike, architecture: str) -> str:
    """Return the version that is fastest for this dtype on this architecture."""
    if architecture == "emulated":
        return "direct"  # what does least
    return "implicit" if runs_convolution("implicit", dtype, architecture) else "im2col"


def common_convolution(dtype: DTypeLike, architectures: Iterable[str]) -> str:
    """Return the version for devices of all these architectures: of the fastest on each, the first in
    `CONV_VERSIONS`, which the others run too."""
    return min((fastest_convolution(dtype, each) for each in architectures), key=CONV_VERSIONS.index)


def runs_convolution(version: str, dtype: DTypeLike, architecture: str) -> bool:
    """Return whether devices of this architecture run a version in this dtype."""
    return version != "implicit" or (has_mma(architecture) and np.dtype(dtype) == np.float32)
