// Slices of a matrix packed one behind the other, for MPI, and back.
// constants: REAL=float|double
//
// Blocks of one dimension, any number of threads; grid of two: any number of blocks, and one row of blocks for
// each slice; no shared memory. Each thread moves four numbers of a slice at a time, at once where they are
// aligned.

#include "comm/slices.cuh"

extern "C" __global__ void pack(const Slice *slices, real *packed)
{
    wait_for_previous_kernel();
    const Slice slice = slices[blockIdx.y];
    real *there = packed + (offset)slice.place * WIDTH;
    const int vec4s = vec4s_of(slice);
    for (int vec4 = blockIdx.x * blockDim.x + threadIdx.x; vec4 < vec4s; vec4 += gridDim.x * blockDim.x)
        *(Vec4 *)(there + (offset)vec4 * WIDTH) = take_out(slice, vec4);
}

extern "C" __global__ void unpack(const Slice *slices, const real *packed)
{
    wait_for_previous_kernel();
    const Slice slice = slices[blockIdx.y];
    const real *here = packed + (offset)slice.place * WIDTH;
    const int vec4s = vec4s_of(slice);
    for (int vec4 = blockIdx.x * blockDim.x + threadIdx.x; vec4 < vec4s; vec4 += gridDim.x * blockDim.x)
        put_in(slice, vec4, *(const Vec4 *)(here + (offset)vec4 * WIDTH));
}
