"""What the kernel tests share: arrays that are freed again, launches that are waited for."""

from __future__ import annotations

import numpy as np
import pytest

from nn.launch.kernels import Kernels
from pyrt.arrays import DeviceArray
from pyrt.driver.cpu import CpuDriver


class Device:
    """The arrays and launches of one test."""

    def __init__(self, driver, stream):
        self.driver = driver
        self.stream = stream
        self.arrays = []

    def array(self, host):
        """A copy of a host array."""
        self.arrays.append(DeviceArray.from_host(self.driver, np.ascontiguousarray(host)))
        return self.arrays[-1]

    def poisoned(self, shape, dtype):
        """An array of NaN: an element that no kernel writes shows."""
        return self.array(np.full(shape, np.nan, dtype))

    def run(self, *launches):
        for launch in launches:
            launch(self.stream)
        self.driver.synchronize()

    def free(self):
        for array in self.arrays:
            self.driver.free(array.pointer)


@pytest.fixture(scope="session")
def stream(driver):
    return driver.create_stream()


@pytest.fixture
def device(driver, stream):
    device = Device(driver, stream)
    yield device
    device.free()


@pytest.fixture
def rng(request):
    """Random numbers that differ from test to test and not from run to run."""
    return np.random.default_rng(list(request.node.name.encode()))


@pytest.fixture
def real(dtype):
    """The constant REAL of a dtype."""
    return {"float32": "float", "float64": "double"}[np.dtype(dtype).name]


@pytest.fixture(params=["numpy", pytest.param("kernels", marks=pytest.mark.kernels)])
def place(request):
    """Makes arrays, and does work on them: in NumPy, and in float32 kernels."""
    if request.param == "numpy":
        driver = CpuDriver()
        return lambda host: DeviceArray.from_host(driver, host), lambda work: work.in_numpy()()
    library, device = (request.getfixturevalue(name) for name in ("library", "device"))
    kernels = Kernels(library, np.float32)
    return device.array, lambda work: device.run(work.on_device(kernels))
