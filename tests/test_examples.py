"""The programs in examples/, as their first lines say that they are started."""

from __future__ import annotations

import re
import sys

import pytest

from tests import few
from tests.mpi import mpirun


def run(ranks: int, *words: str) -> list[str]:
    """Run a program to its end; the lines that it prints."""
    done = mpirun(ranks, sys.executable, *words, timeout=120)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout.splitlines()


def example(ranks: int, name: str, *words: str) -> list[str]:
    return run(ranks, f"examples/{name}.py", *words)


@pytest.mark.kernels
def test_stencil() -> None:
    steps, middle = example(1, "stencil")
    assert re.fullmatch(r"500 steps on (cuda|emulated): [\d.]+ s, 5 replays of a graph", steps)
    assert re.fullmatch(r"in the middle 3\.3\d+, farthest from NumPy \S+", middle)


@pytest.mark.kernels
def test_histogram() -> None:
    (line,) = example(1, "histogram")
    assert re.fullmatch(r"100003 bytes on (cuda|emulated) in \d+ us; the commonest is 1[23]\d", line)


SUMS = [
    pytest.param("emulated", 3, 6, marks=pytest.mark.kernels),
    ("cpu", 3, 4),
    ("cpu", 1, 6),
    pytest.param("emulated", 2, 6, marks=pytest.mark.kernels),
]


@pytest.mark.parametrize(("device", "ranks", "right"), few(SUMS[:1], of=SUMS))
def test_allreduce(device: str, ranks: int, right: int) -> None:
    lines = example(ranks, "allreduce", device)
    names = [line.split(":")[0] for line in lines]
    assert names == ["root", "blocking", "host", "device", "peer", "hierarchical"]
    assert sum(f"{ranks} rank(s) on {device}" in line and "right, twice" in line for line in lines) == right
    assert all("right" in line or "the CPU has no kernels" in line for line in lines)


@pytest.mark.kernels
def test_my_gemm() -> None:
    words = ["--file", "examples/my_gemm.cu", "--kernel", "my_gemm", "--shape", "70,50,33"]
    lines = run(1, "-m", "bench.gemm", *words)
    assert "my_gemm, 70 x 50 x 33" in lines
    rows = {line.split()[0]: line.split()[1:] for line in lines if line}
    assert {"my_gemm", "naive", "tiled", "auto"} <= rows.keys()
    assert float(rows["my_gemm"][0]) > 0 and float(rows["my_gemm"][-1]) < 1e-6


TRAININGS = [
    ("train", "emulated", 2),
    ("own_layer", "emulated", 2),
    ("own_layer", "cpu", 3),
    ("train", "cpu", 3),
]


@pytest.mark.kernels
@pytest.mark.parametrize(("name", "device", "ranks"), few(TRAININGS[-1:], of=TRAININGS))
def test_training(name: str, device: str, ranks: int) -> None:
    *_, last = example(ranks, name, device)
    match = re.search(r"test accuracy ([\d.]+)$", last)
    assert match and float(match[1]) > 0.85
