"""What only a GPU's driver must get right: its name, its context, the end of the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pyrt.arrays import DeviceArray
from pyrt.devices import open_device
from pyrt.driver import Driver
from pyrt.errors import UserError
from pyrt.job import Job
from tests.mpi import TIMEOUT, environment

pytestmark = pytest.mark.gpu


def run_alone(code: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=TIMEOUT
    )


def test_it_says_what_it_is(driver: Driver) -> None:
    assert (driver.name, driver.has_kernels) == ("cuda", True)
    assert driver.architecture.startswith("sm_")
    assert driver.device_name


def test_a_rank_gets_it_without_asking(driver: Driver, job: Job) -> None:
    device = open_device("auto", job, share_gpus=False)
    try:
        assert device.driver.device_name == driver.device_name
        assert device.why == "a GPU for every rank"
    finally:
        device.driver.close()
    assert DeviceArray.from_host(driver, np.ones(3)).to_host().sum() == 3  # the other driver is still open


SOURCE = 'extern "C" __global__ void test(int *x) { x[0] = 1; }'


def test_another_compiler_or_architecture_compiles_anew(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for changes in ({}, {}, {"architecture": "sm_75"}, {"version": "another"}):
        with monkeypatch.context() as patch:
            if "architecture" in changes:
                patch.setattr(driver, "architecture", changes["architecture"])
            if "version" in changes:
                patch.setattr("pycuda.compiler.get_nvcc_version", lambda nvcc: "another")
            driver.compile(SOURCE, str(tmp_path))
    assert sum(path.is_dir() for path in tmp_path.iterdir()) == 3


def test_a_broken_nvcc_is_named(driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "nvcc"
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    for script, words in (
        ("echo broken >&2; exit 3", "nvcc does not run: .*nvcc"),
        ("[ $1 = --version ] && echo 1 && exit; echo broken >&2; exit 3", "does not compile it\nbroken"),
    ):
        compiler.write_text(f"#!/bin/sh\n{script}\n")
        compiler.chmod(0o755)
        with pytest.raises(UserError, match=words):
            driver.compile(SOURCE, str(tmp_path / "cache"))
    assert not [path for path in (tmp_path / "cache").glob("*") if path.is_dir()]


class TestEnd:
    """Else pycuda aborts the process: "context stack was not empty"."""

    START = "from pyrt.driver.cuda import CudaDriver; driver = CudaDriver(0); driver.allocate(4096);"

    @pytest.mark.parametrize(
        ("how", "code"),
        [
            ("pass", 0),
            ("driver.close(); driver.close()", 0),
            ("import sys; sys.exit(3)", 3),
            ("raise ValueError('mine')", 1),
        ],
    )
    def test_a_process_ends_as_it_meant_to(self, driver: Driver, how: str, code: int) -> None:
        done = run_alone(f"{self.START} {how}")
        assert done.returncode == code, done.stderr
        assert "context stack" not in done.stderr
        assert ("ValueError: mine" in done.stderr) == (code == 1)
