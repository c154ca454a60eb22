"""Kernels of the driver's tests, and where those of tests lie."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from pyrt.cache import kernel_folder


def folder_of(name: str, source: str) -> Path:
    """Return a folder with this kernel file in it, the same in all processes and sessions.

    What is compiled from it names its path: so it is compiled once, and found in the cache from then on.
    """
    folder = kernel_folder().path / f"of-tests-{hashlib.sha256(source.encode()).hexdigest()[:24]}"
    if not (folder / f"{name}.cu").exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = folder / f"{os.getpid()}.new"
        unfinished.write_text(source)
        unfinished.rename(folder / f"{name}.cu")
    return folder


SOURCE = r"""
// Every kind of argument, in an order that needs gaps between them.
extern "C" __global__ void arguments(int a, double b, float c, const int *d, const unsigned char *e, int f,
                                     double *out)
{
    out[0] = a, out[1] = b, out[2] = c, out[3] = d[0], out[4] = e != nullptr, out[5] = f;
}

extern "C" __global__ void shape(int *out)
{
    extern __shared__ int last[];
    if (threadIdx.x == blockDim.x - 1)
        last[255] = threadIdx.y;  // 256 ints of shared memory, which the launch must give
    out[0] = gridDim.x, out[1] = gridDim.y, out[2] = gridDim.z;
    out[3] = blockDim.x, out[4] = blockDim.y, out[5] = blockDim.z;
}

// x = a x + b: two of them in another order give something else.
extern "C" __global__ void scale(int n, float a, float b, float *x)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        x[i] = a * x[i] + b;
}

extern "C" __global__ void add(int n, const float *x, float *y)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] += x[i];
}

// Takes n ints of shared memory to their end: out gets n - 1, n - 2, ....
extern "C" __global__ void reverse(int n, int *out)
{
    extern __shared__ int numbers[];
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        numbers[n - 1 - i] = i;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        out[i] = numbers[i];
}

// Adds 1; some clock cycles lie between the load and the store.
extern "C" __global__ void late(int cycles, float *x)
{
    volatile float *mine = x + blockIdx.x * blockDim.x + threadIdx.x;
    const float before = *mine;
    for (const long long start = clock64(); clock64() - start < cycles;)
        ;
    *mine = before + 1;
}
"""
LONG = 30_000_000
"""Clock cycles: 10 ms on the fastest GPU, long enough for work in the wrong order to be seen."""
