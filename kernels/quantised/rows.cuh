// The parts that kernels of quantised layers share: a scale for each row, sums over a block, results.
#pragma once

#include "common.cuh"
#include "nn/activations.cuh"

const int QUANTISE_THREADS = 256;  // of a block that quantises a row
const unsigned ALL_LANES = 0xffffffff;

// f of an integer sum times both scales. The scale of a sample that is not finite makes its results NaN.
__device__ inline real output(int sum, real weight_scale, real sample_scale, const real *bias, int unit)
{
    const real z = weight_scale * sample_scale * sum;
    return ACTIVATE(bias ? z + bias[unit] : z);
}

// A butterfly; integers have no roundings, so any order is the same.
__device__ inline int warp_sum(int value)
{
    for (int distance = WARP / 2; distance > 0; distance /= 2)
        value += __shfl_xor_sync(ALL_LANES, value, distance);
    return value;
}

// join(a, b) of all threads' values, for all of them, by a tree whose order is fixed. `room` is shared memory for a
// value of each thread.
template <class Join>
__device__ inline real over_block(real value, real *room, Join join)
{
    const int i = threadIdx.x;
    room[i] = value;
    __syncthreads();
    for (int half = QUANTISE_THREADS / 2; half > 0; half /= 2) {
        if (i < half)
            room[i] = join(room[i], room[i + half]);
        __syncthreads();
    }
    return room[0];
}
