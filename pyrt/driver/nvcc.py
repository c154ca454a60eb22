"""CUDA's compiler: where it is, and how it is told to compile; needs no GPU."""

from __future__ import annotations

import re
import shutil

_SIDE_BY_SIDE = (12, 3)
"""The release from which on ptxas can assemble the kernels of a file side by side: a first start waits for
the file that takes longest, gemm/wgmma.cu. The kernels are the same byte for byte. nvcc's own
--split-compile, which saves more, makes others: of fused_classifier a thread spills into local memory."""


def find_nvcc() -> str | None:
    """Find nvcc on PATH, or where the toolkit installs it without being on PATH."""
    return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


def options(version: str) -> list[str]:
    """List the options for every kernel; ``version`` is what ``nvcc --version`` says."""
    found = re.search(r"release (\d+)\.(\d+)", version)
    release = (int(found[1]), int(found[2])) if found else (0, 0)
    return ["-O3", *(["-Xptxas", "-split-compile=0"] if release >= _SIDE_BY_SIDE else [])]
