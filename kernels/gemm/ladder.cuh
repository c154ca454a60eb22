// How the rungs of the ladder without tensor cores (ladder.cu, thread_tiles.cu) end: an element of
// D = alpha op(A) op(B) + beta C from its sum.
#pragma once

#include "common.cuh"

__device__ inline void store(int m, int n, real sum, real alpha, real beta, const real *C, int ldc,
                             real *D, int ldd)
{
    real result = alpha * sum;
    if (beta != 0)
        result += beta * C[(offset)m * ldc + n];
    D[(offset)m * ldd + n] = result;
}
