// Sums over ranks of what MPI has brought together on one of them.
// constants: REAL=float|double

#include "common.cuh"

// sums[i] = parts[0, i] + parts[1, i] + .. in the order of the ranks, so that the same bits come out twice.
// parts (ranks x size), sums (size).
//
// Blocks of one dimension, any number of threads; grid of one dimension, any size; no shared memory.
// Neighbouring threads take neighbouring elements: each row is read once, in whole memory transactions.
extern "C" __global__ void sum_over_ranks(int ranks, int size, const real *parts, real *sums)
{
    wait_for_previous_kernel();
    const offset step = (offset)gridDim.x * blockDim.x;
    for (offset i = (offset)blockIdx.x * blockDim.x + threadIdx.x; i < size; i += step) {
        real sum = parts[i];
#pragma unroll 4
        for (int rank = 1; rank < ranks; rank++)
            sum += parts[(offset)rank * size + i];
        sums[i] = sum;
    }
}
