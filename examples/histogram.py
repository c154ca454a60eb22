"""A histogram by atomics: python examples/histogram.py

Shows shared memory and atomics (histogram.cu), memory that is zeroed in stream order, and a time by the
device's own clock. NumPy checks the counts. Runs on the first GPU or, where there is none, on the emulated
device.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from pyrt.arrays import DeviceArray
from pyrt.clock import StreamClock
from pyrt.devices import first_device
from pyrt.driver import StreamHandle
from pyrt.kernels import KernelLibrary

N = 100_003
THREADS = 256  # one for each value of a byte

values = np.random.default_rng(0).normal(128, 40, N).clip(0, 255).astype(np.uint8)

driver = first_device()
clock = StreamClock(driver, driver.create_stream())
library = KernelLibrary(driver, [Path(__file__).parent])
on_device, counts = DeviceArray.from_host(driver, values), DeviceArray.empty(driver, (256,), np.uint32)
grid = (2 * driver.multiprocessors,)  # whatever their number: each block counts its share
count = library.kernel("histogram", "histogram").bind(grid, (THREADS,), N, on_device, counts)


def work(stream: StreamHandle) -> None:
    driver.fill(counts.pointer, 0, counts.nbytes, stream)
    count(stream)


seconds = clock.seconds(work)
found, expected = counts.to_host(), np.bincount(values, minlength=256)
print(f"{N} bytes on {driver.name} in {seconds * 1e6:.0f} us; the commonest is {found.argmax()}")
driver.close()
sys.exit(0 if np.array_equal(found, expected) else "the kernel and NumPy count differently")
