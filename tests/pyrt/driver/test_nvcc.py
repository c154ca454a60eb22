"""pyrt/driver/nvcc.py: where it is found, and options that a release takes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pyrt.driver.nvcc import find_nvcc, options

WORDS = "Copyright (c) NVIDIA Corporation\nCuda compilation tools, release {}, V{}.88\nBuild cuda"
SPLIT = ["-O3", "-Xptxas", "-split-compile=0"]


@pytest.mark.parametrize(
    ("release", "taken"),
    [("11.8", ["-O3"]), ("12.2", ["-O3"]), ("12.3", SPLIT), ("12.10", SPLIT), ("13.0", SPLIT)],
)
def test_older_releases_are_not_given_what_they_do_not_know(release: str, taken: list[str]) -> None:
    assert options(WORDS.format(release, release)) == taken


def test_a_compiler_that_says_something_else_gets_the_least() -> None:
    assert options("a wrapper of somebody's") == ["-O3"]


def test_it_is_found_where_the_toolkit_has_put_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def which(name: str, path: str | None = None) -> str | None:
        asked.append(path)
        return f"{path}/{name}" if path else None

    monkeypatch.setattr(shutil, "which", which)
    assert find_nvcc() == "/usr/local/cuda/bin/nvcc"
    assert asked == [None, "/usr/local/cuda/bin"]


KERNELS = """
extern "C" __global__ void one(float *x) { x[threadIdx.x] *= 2; }
extern "C" __global__ void two(float *x) { x[threadIdx.x] += x[threadIdx.x + 1]; }
"""


@pytest.mark.skipif(find_nvcc() is None, reason="there is no nvcc")
def test_this_one_takes_them(tmp_path: Path) -> None:
    nvcc, source = str(find_nvcc()), tmp_path / "two.cu"
    source.write_text(KERNELS)
    version = subprocess.check_output([nvcc, "--version"], text=True)
    command = [nvcc, "-cubin", "-arch=sm_90", *options(version), "-o", f"{source}bin", str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
