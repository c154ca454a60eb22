"""Fixtures of all tests: a device with kernels, and the project's kernels on it.

Tests that use ``driver`` are marked ``gpu`` by that; where there is no GPU they are skipped and say why.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from nn.launches import Kernels
from pyrt.driver import Driver
from pyrt.kernels import KernelLibrary

# MPI was started here by mpi-pytest. Open MPI 4.1 leaves settings for this one process in the environment,
# with which every mpiexec that a test starts would end at once.
for _variable in ("OMPI_MCA_ess", "OMPI_MCA_pmix"):
    os.unsetenv(_variable)


def no_gpu() -> str:
    """Why there is no GPU to test on; empty where there is one."""
    try:
        from pyrt.driver import cuda
    except ImportError as error:
        return f"needs an NVIDIA GPU and pycuda ({error})"
    try:
        return "" if cuda.visible_gpus() else "needs an NVIDIA GPU: this process sees none"
    except cuda.cuda.Error as error:
        return f"needs an NVIDIA GPU ({error})"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = no_gpu()
    for item in items:
        if "driver" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.gpu)
        if reason and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def driver() -> Iterator[Driver]:
    """An open device that runs kernels."""
    from pyrt.driver.cuda import CudaDriver

    device = CudaDriver(0)
    yield device
    device.close()


@pytest.fixture(scope="session")
def library(driver: Driver) -> KernelLibrary:
    return KernelLibrary(driver)


@pytest.fixture(params=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> np.dtype:
    return np.dtype(request.param)


@pytest.fixture
def kernels(library: KernelLibrary, dtype: np.dtype) -> Kernels:
    return Kernels(library, dtype)
