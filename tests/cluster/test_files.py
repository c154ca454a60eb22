"""Files over several nodes: one rank reads the data, and one rank of each node compiles for its cache."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from pyrt.cache import VARIABLE as CACHE
from pyrt.driver.emulated.compile import compiler
from tests import mpi
from tests.cluster.cluster import Cluster

pytestmark = pytest.mark.long

SMALL = [*("--hidden", "8", "--batch", "50", "--val-fraction", "0", "--epochs", "2"), "--check"]

COUNTS_OPENS = """
import os, sys

def see(event, arguments):
    if event == "open" and arguments[0] == os.environ["WATCHED"]:
        with open("/dev/shm/opened", "a") as file:
            file.write(f"{os.getpid()}\\n")

sys.addaudithook(see)
"""
"""A process notes, on its node, that it opens a file."""


def digits(path: Path, samples: int = 200) -> None:
    """Write a small data set."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (samples, 8, 8, 1)).astype(np.uint8)
    labels = np.arange(samples) % 10
    np.savez(path, x_train=images, y_train=labels)


def train(cluster: Cluster, *arguments: str, env: dict[str, str]) -> None:
    done = cluster.run(2, sys.executable, "train.py", *SMALL, *arguments, env=env, timeout=10 * mpi.TIMEOUT)
    assert done.returncode == 0, done.stderr
    assert "\ncheck passed: " in done.stdout


@pytest.mark.parametrize("everywhere", [True, False], ids=["on a shared file system", "on one node"])
def test_no_more_than_one_rank_of_a_node_reads_the_data(
    nodes: Cluster, tmp_path: Path, everywhere: bool
) -> None:
    (tmp_path / "sitecustomize.py").write_text(COUNTS_OPENS)
    digits(tmp_path / "digits.npz")
    data = tmp_path / "digits.npz"
    if not everywhere:
        nodes.on(0, f"cp {data} /dev/shm/digits.npz")
        data = Path("/dev/shm/digits.npz")
    path = os.pathsep.join([str(tmp_path), mpi.environment()["PYTHONPATH"]])
    train(nodes, "--device", "cpu", "--data", str(data), env={"PYTHONPATH": path, "WATCHED": str(data)})
    readers = [set(nodes.on(node, "cat /dev/shm/opened 2>/dev/null || true").split()) for node in (0, 1)]
    assert [len(of_node) for of_node in readers] == [1, 0]


COUNTS_LIBRARIES = """#!/bin/sh
case " $* " in *" -shared "*) echo library >>/dev/shm/compiled;; esac
exec {compiler} "$@"
"""
"""Notes, on its node, that it makes a library."""


@pytest.mark.kernels
def test_kernels_are_compiled_once_a_node(nodes: Cluster, tmp_path: Path) -> None:
    command, _ = compiler()
    own = tmp_path / "compiler"
    own.write_text(COUNTS_LIBRARIES.format(compiler=" ".join(command)))
    own.chmod(0o755)
    environment = {CACHE: "/dev/shm/cache", "CXX": str(own)}
    train(nodes, "--device", "emulated", "--samples", "60", env=environment)
    for node in (0, 1):
        kept = nodes.on(node, "ls /dev/shm/cache/kernels/*/library.so").split()
        assert len(nodes.on(node, "cat /dev/shm/compiled").split()) == len(kept) > 5
