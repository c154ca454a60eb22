// Strips of a matrix packed one behind the other, for MPI, and back.
// constants: REAL=float|double
//
// Blocks of one dimension, any number of threads; grid of two: any number of blocks, and one row of blocks for
// each strip; no shared memory. Each thread moves four numbers of a strip at a time, at once where they are
// aligned.

#include "strips.cuh"

extern "C" __global__ void pack(const Strip *strips, real *packed)
{
    wait_for_kernel_before();
    const Strip strip = strips[blockIdx.y];
    real *there = packed + (offset)strip.place * WIDTH;
    const int fours = fours_of(strip);
    for (int four = blockIdx.x * blockDim.x + threadIdx.x; four < fours; four += gridDim.x * blockDim.x)
        *(Four *)(there + (offset)four * WIDTH) = take_out(strip, four);
}

extern "C" __global__ void unpack(const Strip *strips, const real *packed)
{
    wait_for_kernel_before();
    const Strip strip = strips[blockIdx.y];
    const real *here = packed + (offset)strip.place * WIDTH;
    const int fours = fours_of(strip);
    for (int four = blockIdx.x * blockDim.x + threadIdx.x; four < fours; four += gridDim.x * blockDim.x)
        put_in(strip, four, *(const Four *)(here + (offset)four * WIDTH));
}
