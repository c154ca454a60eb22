"""Two ranks use each other's memory, by kernels that wait for each other and by copies: for any device."""

from __future__ import annotations

import numpy as np

from pyrt.arrays import DeviceArray
from pyrt.driver import Driver
from pyrt.job import Job
from pyrt.kernels import KernelLibrary
from tests.pyrt.sources import folder_of

N = 1000

SOURCE = r"""
// Tells the other rank that this one has come to a place, and waits for it to come there too.
__device__ void meet(int place, int *here, int *there)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence_system();
        atomicExch_system(there, place);
        while (atomicAdd_system(here, 0) < place)
            ;
        __threadfence_system();
    }
    __syncthreads();
}

// Writes x and reads what the other rank has written into its own. One block.
extern "C" __global__ void swap(int round, int n, float value, float *x, const float *theirs, float *seen,
                                int *here, int *there)
{
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        x[i] = value + i;
    meet(2 * round + 1, here, there);
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        seen[i] = theirs[i];
    meet(2 * round + 2, here, there);
}
"""


def use_each_others_memory(driver: Driver, job: Job) -> None:
    """Collective, on two ranks."""
    other = 1 - job.rank
    x, seen = (DeviceArray.from_host(driver, np.zeros(N, "f4")) for _ in range(2))
    flag = DeviceArray.from_host(driver, np.zeros(1, "i4"))
    handles = job.comm.allgather((x.export(), flag.export()))[other]
    assert x.export() == x.export()
    theirs = DeviceArray.imported(driver, handles[0], (N,), "f4")
    there = DeviceArray.imported(driver, handles[1], (1,), "i4")

    swap = KernelLibrary(driver, [folder_of("sharing", SOURCE)]).kernel("sharing", "swap")
    stream = driver.create_stream()
    for round_ in range(3):
        value = 100.0 * round_ + job.rank
        swap.bind((1,), (128,), round_, N, value, x, theirs, seen, flag, there)(stream)
        np.testing.assert_array_equal(seen.to_host(), 100 * round_ + other + np.arange(N))

    job.comm.barrier()
    theirs.rows(10, 20).set(np.full(10, -1 - job.rank, "f4"))
    job.comm.barrier()
    np.testing.assert_array_equal(x.to_host()[9:21], [209 + job.rank, *[-1 - other] * 10, 220 + job.rank])
    np.testing.assert_array_equal(theirs.to_host()[9:21], [209 + other, *[-1 - job.rank] * 10, 220 + other])

    job.comm.barrier()
    for array in (theirs, there):
        driver.release_memory(array.pointer)
    job.comm.barrier()
    for array in (x, flag, seen):
        driver.free(array.pointer)
