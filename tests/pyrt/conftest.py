"""Fixtures of pyrt's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyrt.driver import Driver
from pyrt.driver.cpu import CpuDriver
from pyrt.job import Job
from pyrt.kernels import KernelLibrary
from tests.pyrt.sources import SOURCE


@pytest.fixture
def job() -> Job:
    """The job of the processes that run this test; each has a core of its own, it is told."""
    from mpi4py import MPI

    return Job(MPI.COMM_WORLD, MPI.COMM_WORLD, "an MPI", cores=1.0)


@pytest.fixture
def cpu() -> CpuDriver:
    return CpuDriver()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of kernels of the tests' own, with its cache in ``cache``."""
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "mine.cu").write_text(SOURCE)
    return folder


@pytest.fixture(scope="module")
def mine(driver: Driver, folder: Path) -> KernelLibrary:
    return KernelLibrary(driver, [folder], str(folder / "cache"))
