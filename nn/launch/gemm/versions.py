"""Which version of the matrix product (the ladder of docs/explain/gemm.md) runs: by dtype, device and sizes.

How those on tensor cores cut it into tiles: `choose_mma_tiling` (nn/launch/gemm/mma.py), `choose_tiling`
(nn/launch/gemm/wgmma.py).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import DTypeLike

from nn.launch.gemm.mma import MMA_COMPONENTS, has_mma

PLAIN_GEMM_VERSIONS = ("naive", "shared", "register", "block", "vector", "warp", "tiled")
"""Versions of the matrix product that every device runs, in both dtypes, from the first to the fastest."""

GEMM_VERSIONS = (*PLAIN_GEMM_VERSIONS, "mma", "wgmma")
"""All versions; the last two are for float32, and for tensor cores that not all devices have: `runs_gemm`."""

TENSOR_ARCHITECTURES = ("sm_90a", "emulated")
"""Those with the tensor cores of ``wgmma``."""

THIN, THIN_GEMM = 32, "register"
"""K up to which tensor cores are not worth while, and what is fastest there."""

NARROW = 32
"""M or N up to which operands are not worth splitting into components: tiles of D are mostly empty anyway."""


def fastest_gemm(dtype: DTypeLike, architecture: str) -> str:
    """Return the version of the matrix product that is fastest for this dtype on this architecture."""
    if np.dtype(dtype) == np.float32 and architecture != "emulated":  # whose fastest is what does least
        if architecture in TENSOR_ARCHITECTURES:
            return "wgmma"
        if has_mma(architecture):
            return "mma"
    return PLAIN_GEMM_VERSIONS[-1]


def common_gemm(dtype: DTypeLike, architectures: Iterable[str]) -> str:
    """Return the version for devices of all these architectures: of the fastest on each, the first in
    `GEMM_VERSIONS`, which the others run too."""
    return min((fastest_gemm(dtype, each) for each in architectures), key=GEMM_VERSIONS.index)


def runs_gemm(version: str, architecture: str) -> bool:
    """Return whether devices of this architecture run a version of the matrix product."""
    if version == "wgmma":
        return architecture in TENSOR_ARCHITECTURES
    return version != "mma" or has_mma(architecture)


def version_for(version: str, M: int, N: int, K: int, math: str) -> str:
    """Choose the version for these sizes, given the ``version`` asked for, or the best for large ones."""
    if version in ("mma", "wgmma") and K <= THIN:
        return THIN_GEMM
    if version == "wgmma" and min(M, N) <= NARROW and math in MMA_COMPONENTS:
        return "mma"
    return version
