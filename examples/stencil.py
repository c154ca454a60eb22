"""A stencil of one's own, and many steps of it as one graph: python examples/stencil.py

Shows a kernel of a file beside the program (stencil.cu), launches that are bound once, and a graph: a hundred
steps are captured, and replayed with one call, for the host's time of one launch. NumPy checks the result.
Runs on the first GPU or, where there is none, on the emulated device.
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from pyrt.arrays import DeviceArray
from pyrt.devices import first_device
from pyrt.graphs import capture
from pyrt.kernels import KernelLibrary, blocks

ROWS, COLUMNS, RATE = 60, 100, np.float32(0.2)
STEPS_OF_A_GRAPH, REPLAYS = 100, 5

plate = np.zeros((ROWS, COLUMNS), np.float32)
plate[0] = 100  # one side of the rim is hot

driver = first_device()
stream = driver.create_stream()
kernel = KernelLibrary(driver, [Path(__file__).parent]).kernel("stencil", "spread_heat")
here, there = DeviceArray.from_host(driver, plate), DeviceArray.from_host(driver, plate)
block = (32, 8)
grid = (blocks(COLUMNS, 32), blocks(ROWS, 8))
forth = kernel.bind(grid, block, ROWS, COLUMNS, RATE, here, there)
back = kernel.bind(grid, block, ROWS, COLUMNS, RATE, there, here)

with capture(driver, stream) as steps:  # nothing runs here
    for _ in range(STEPS_OF_A_GRAPH // 2):
        forth(stream)
        back(stream)

started = time.perf_counter()
for _ in range(REPLAYS):
    steps(stream)
driver.synchronize_stream(stream)
seconds = time.perf_counter() - started

for _ in range(STEPS_OF_A_GRAPH * REPLAYS):
    inner = plate[1:-1, 1:-1]
    neighbours = plate[1:-1, :-2] + plate[1:-1, 2:] + plate[:-2, 1:-1] + plate[2:, 1:-1]
    plate[1:-1, 1:-1] = inner + RATE * (neighbours - 4 * inner)
error = np.abs(here.to_host() - plate).max()
print(f"{STEPS_OF_A_GRAPH * REPLAYS} steps on {driver.name}: {seconds:.3f} s, {REPLAYS} replays of a graph")
print(f"in the middle {plate[ROWS // 2, COLUMNS // 2]:.4f}, farthest from NumPy {error:.1e}")
driver.close()
sys.exit(0 if error < 1e-3 else "the kernel and NumPy differ")
