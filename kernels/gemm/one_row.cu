// D = f(alpha A B' + bias) for one row A of many numbers: a wide dense layer of a single image.
// constants: REAL=float ACTIVATION=identity|sigmoid|tanh|relu
//
// A (K), B (N, K) with a leading dimension, `bias` (N) or null, D (N). In few_rows.cu a warp takes a row of B, 1024
// numbers at a time: of 9216 it waits nine times, and 128 such rows occupy 16 multiprocessors. Here a whole block
// takes a row, and has 8192 weights on their way at once, while the kernel before still makes A. Sums have an order
// that only K decides.
//
// Block 256; grid x: rows of B; shared memory: a number a warp.

#include "common.cuh"
#include "nn/activations.cuh"
#include "vec4.cuh"
#include "warp_sum.cuh"

const int THREADS = 256, WARPS = THREADS / WARP;
const int AT_ONCE = 8;               // vectors of weights that a thread holds
const int STEP = THREADS * WIDTH;    // inputs that a block takes side by side
const int CHUNK = AT_ONCE * STEP;    // inputs that a block takes at once

// This kernel may bring weights while the kernel before runs, if that `starts_early`: then it must not write them.
extern "C" __global__ void __launch_bounds__(THREADS)
one_row(int K, real alpha, const real *A, const real *B, int ldb, const real *bias, real *D, int starts_early)
{
    start_beside_previous_kernel(starts_early);
    if (!starts_early)
        wait_for_previous_kernel();
    const int n = blockIdx.x;
    const real *weights = B + (offset)n * ldb;
    const real b = bias ? bias[n] : 0;
    const bool aligned_A = whole_vectors(A, 0), aligned_B = whole_vectors(B, ldb);
    real sum = 0;
    for (int begin = threadIdx.x * WIDTH; begin < K; begin += CHUNK) {
        Vec4 w[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            w[i] = read(weights + begin + i * STEP, inside(begin + i * STEP, K, aligned_B));
        wait_for_previous_kernel();
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const Vec4 x = read(A + begin + i * STEP, inside(begin + i * STEP, K, aligned_A));
#pragma unroll
            for (int j = 0; j < WIDTH; j++)
                sum += w[i].of[j] * x.of[j];
        }
    }
    wait_for_previous_kernel();  // also where a thread has no inputs: D may be read till then
    __shared__ real sums[WARPS];
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0)
        sums[threadIdx.x / WARP] = sum;
    __syncthreads();
    if (threadIdx.x > 0)
        return;
#pragma unroll
    for (int i = 1; i < WARPS; i++)
        sum += sums[i];
    D[n] = ACTIVATE(alpha * sum + b);
}
