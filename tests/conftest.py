"""Fixtures of all tests: a device with kernels, and the project's kernels on it.

That device is a GPU where there is one, else the emulated one. Tests that use ``driver`` are marked
``kernels`` by that, and skipped where there is no C++ compiler either; tests marked ``gpu`` need a real GPU.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pyrt.cache import kernel_folder
from pyrt.driver import Driver
from pyrt.driver.emulated import EmulatedDriver
from pyrt.driver.emulated.compile import compiler
from pyrt.errors import UserError
from pyrt.kernels import KernelLibrary
from tests import LONG, rank_pool, standing_still

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels

# MPI was started here by mpi-pytest. Open MPI 4.1 leaves settings for this one process in the environment,
# with which every mpiexec that a test starts would end at once.
for _variable in ("OMPI_MCA_ess", "OMPI_MCA_pmix"):
    os.unsetenv(_variable)

# Where nothing is compiled yet, one test may wait for many kernels.
EmulatedDriver.compile = standing_still.progress(EmulatedDriver.compile)  # type: ignore[method-assign]


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


def no_kernels() -> str:
    """Why there is no device that runs kernels, not even an emulated one; empty where there is one."""
    try:
        compiler()
    except UserError as error:
        return f"{no_gpu()}; {error}" if no_gpu() else ""
    return ""


def pytest_configure(config: pytest.Config) -> None:
    kernel_folder()  # a process keeps the one that it finds first: not that of a test that moves the cache
    standing_still.start()
    config.pluginmanager.register(standing_still.Clock())
    config.pluginmanager.register(rank_pool)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import the test files in another order in each process that shares them, before they are collected.

    The first to import a file writes its bytecode, with assertions rewritten, for all: half of the time that
    processes take which collect a clean clone in the same order, each file at once.
    """
    gc.disable()  # till all is there that stays
    config = session.config
    worker = getattr(config, "workerinput", None)
    if worker is None or config.args != config.getini("testpaths"):
        return
    files = sorted(config.rootpath.glob("tests/**/test_*.py"))
    begin = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for path in (*files[begin:], *files[:begin]):
        with suppress(Exception, pytest.skip.Exception):  # which the collection meets again, and tells
            import_module(".".join(path.relative_to(config.rootpath).with_suffix("").parts))


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over modules and tests from here on: they stay to the end."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not LONG:
        _deselect_long(config, items)
    items[:] = _dealt(items, getattr(config, "workerinput", {}).get("workercount", 1))
    missing = {"gpu": no_gpu(), "kernels": no_kernels()}
    for item in items:
        if "driver" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.kernels)
        for mark, reason in missing.items():
            if reason and item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=reason))


def _deselect_long(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if item.get_closest_marker("long")]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def _dealt(items: Sequence[pytest.Item], processes: int) -> list[pytest.Item]:
    """Order tests so that each process that shares them begins with those of other numbers of ranks.

    xdist gives each the same count of tests, in order. So ranks start once, and not in every process; and the
    tests that take long come first, while the many quick ones wait to be stolen.
    """
    of_ranks: list[list[pytest.Item]] = [[] for _ in range(processes)]
    alone = []
    for item in items:
        ranks = rank_pool.ranks_of(item)
        (of_ranks[ranks % processes] if ranks > 1 else alone).append(item)
    dealt, more = [], iter(alone)
    for number, some in enumerate(of_ranks):
        share = len(items) * (number + 1) // processes - len(items) * number // processes
        dealt += [*some, *islice(more, max(0, share - len(some)))]
    return [*dealt, *more]


@pytest.fixture(scope="session")
def driver() -> Iterator[Driver]:
    """An open device that runs kernels: a GPU, or the emulated one."""
    device = EmulatedDriver() if no_gpu() else _open_gpu()
    yield device
    device.close()


def _open_gpu() -> Driver:
    from pyrt.driver.cuda import CudaDriver

    return CudaDriver(0)


@pytest.fixture(scope="session")
def library(driver: Driver) -> KernelLibrary:
    return KernelLibrary(driver)


@pytest.fixture(params=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> np.dtype:
    return np.dtype(request.param)


@pytest.fixture
def kernels(library: KernelLibrary, dtype: np.dtype) -> Kernels:
    from nn.launch.kernels import Kernels  # not wherever tests of pyrt start: it takes a fifth of that

    return Kernels(library, dtype)
