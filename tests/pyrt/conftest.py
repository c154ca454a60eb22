"""Fixtures of pyrt's tests."""

from __future__ import annotations

import pytest

from pyrt.driver.cpu import CpuDriver
from pyrt.job import Job


@pytest.fixture
def job() -> Job:
    """The job of the processes that run this test; each has a core of its own, it is told."""
    from mpi4py import MPI

    return Job(MPI.COMM_WORLD, MPI.COMM_WORLD, "an MPI", cores=1.0)


@pytest.fixture
def cpu() -> CpuDriver:
    return CpuDriver()
