"""Fixtures of pyrt's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyrt.driver import Driver
from pyrt.driver.cpu import CpuDriver
from pyrt.job import Job
from pyrt.kernels import KernelLibrary
from tests.pyrt.sources import SOURCE, folder_of


@pytest.fixture
def job() -> Job:
    """The job of the processes that run this test; each has a core of its own, it is told."""
    from mpi4py import MPI

    return Job(MPI.COMM_WORLD, MPI.COMM_WORLD, "an MPI", cores=1.0)


@pytest.fixture
def cpu() -> CpuDriver:
    return CpuDriver()


@pytest.fixture(scope="module")
def folder() -> Path:
    """A directory of kernels of the tests' own."""
    return folder_of("mine", SOURCE)


@pytest.fixture(scope="module")
def mine(driver: Driver, folder: Path) -> KernelLibrary:
    return KernelLibrary(driver, [folder])
