// The sum of a warp's numbers.
#pragma once

#include "common.cuh"

const unsigned ALL_LANES = 0xffffffff;

// A butterfly: after it every lane holds the same bits, since a + b == b + a.
__device__ inline real warp_sum(real value)
{
    for (int distance = WARP / 2; distance > 0; distance /= 2)
        value += __shfl_xor_sync(ALL_LANES, value, distance);
    return value;
}
