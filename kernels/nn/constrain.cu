// Changes weight gradients so that pruned weights stay 0 and shared ones equal (nn/model/constraint.py).
// constants: REAL=float|double

#include "common.cuh"

// A weight that is 0 gets no gradient, so that it stays 0.
//
// Blocks and grid of one dimension, any number of threads, no shared memory.
extern "C" __global__ void keep_zeros(int size, const real *weights, real *gradients)
{
    wait_for_previous_kernel();
    const int step = gridDim.x * blockDim.x;
    for (offset i = blockIdx.x * blockDim.x + threadIdx.x; i < size; i += step)
        if (weights[i] == 0)
            gradients[i] = 0;
}

// Weights that share a value all get the sum of their gradients. The weights of value v are
// places[starts[v]] to places[starts[v + 1]], without the latter; a weight has one value, so no two blocks
// touch the same gradient.
//
// A block a value, of 256 threads; shared memory: a sum a thread. Each thread sums every 256th gradient, then a
// tree adds these sums: an order that only the places decide.
extern "C" __global__ void __launch_bounds__(256)
sum_shared(const int *starts, const int *places, real *gradients)
{
    wait_for_previous_kernel();
    __shared__ real partial[256];

    const int first = starts[blockIdx.x], end = starts[blockIdx.x + 1];
    real sum = 0;
    for (int i = first + threadIdx.x; i < end; i += blockDim.x)
        sum += gradients[places[i]];
    partial[threadIdx.x] = sum;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half)
            partial[threadIdx.x] += partial[threadIdx.x + half];
        __syncthreads();
    }
    for (int i = first + threadIdx.x; i < end; i += blockDim.x)
        gradients[places[i]] = partial[0];
}
