"""What the tests of the emulated device share: kernels from source text, under the checks or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from pyrt.arrays import DeviceArray
from pyrt.driver.emulated import EmulatedDriver
from pyrt.driver.emulated.compile import compiler
from pyrt.errors import UserError
from pyrt.kernels import Kernel, KernelLibrary
from tests.pyrt.sources import folder_of


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    try:
        compiler()
    except UserError as error:
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=str(error)))


class Bench:
    """A device, a stream, and kernels from source text whose arguments may be NumPy arrays."""

    def __init__(self, driver: EmulatedDriver) -> None:
        self.driver = driver
        self.stream = driver.create_stream()

    def named(self, name: str, source: str, file: str | None = None, **constants: int) -> Kernel:
        """Return a kernel of this source, in a file of its own name or another one."""
        file = file or name
        return KernelLibrary(self.driver, [folder_of(file, source)]).kernel(file, name, **constants)

    def kernel(self, source: str, **constants: int) -> Callable[..., list[np.ndarray]]:
        """A function (grid, block, *arguments) that runs the kernel ``test`` of this source and waits for it.

        It returns the arrays among the arguments as the kernel has left them.
        """
        kernel = self.named("test", source, **constants)

        def run(grid: int, block: int, *arguments: object, shared: int = 0) -> list[np.ndarray]:
            there = [
                DeviceArray.from_host(self.driver, argument) if isinstance(argument, np.ndarray) else argument
                for argument in arguments
            ]
            kernel.bind((grid,), (block,), *there, shared=shared)(self.stream)
            self.driver.synchronize()
            return [array.to_host() for array in there if isinstance(array, DeviceArray)]

        return run


@pytest.fixture(scope="session")
def plain_driver() -> Iterator[EmulatedDriver]:
    driver = EmulatedDriver()
    yield driver
    driver.close()


@pytest.fixture(scope="session")
def checking_driver() -> Iterator[EmulatedDriver]:
    driver = EmulatedDriver(sanitize=True)
    yield driver
    driver.close()


@pytest.fixture
def plain(plain_driver: EmulatedDriver) -> Bench:
    return Bench(plain_driver)


@pytest.fixture
def checking(checking_driver: EmulatedDriver) -> Bench:
    return Bench(checking_driver)
