// D = f(alpha A B' + bias) for few rows of A, as inference has them: a dense layer of a few images.
// constants: REAL=float ROWS=1|8 ACTIVATION=identity|sigmoid|tanh|relu
//
// A (M, K), B (N, K), `bias` (N) or null, D (M, N): row-major, with leading dimensions. B are weights, each of which
// serves M rows: too few for tiles to pay. What counts is that all loads are on their way at once. So a warp takes a
// row of B and ROWS rows of A, and each lane holds up to 32 of the weights in registers: for up to 1024 inputs it asks
// for all of them before anything else, and while the kernel before still makes A. Sums have an order that only K
// decides.
//
// Block 256, a warp for each of 8 units; grid x: blocks of ROWS rows, y: blocks of 8 units; shared memory: 4 KB a row.

#include "common.cuh"
#include "nn/activations.cuh"
#include "vec4.cuh"
#include "warp_sum.cuh"

const int WARPS = 8;
const int AT_ONCE = 8;                        // vectors of weights that a lane holds
const int STEP = WARP * WIDTH;                // inputs that a warp takes at once
const int CHUNK = AT_ONCE * STEP;             // inputs that a block takes at once
const int TURNS = CHUNK / (WARPS * STEP);     // vectors of a row of A that a thread brings

// All threads bring CHUNK inputs of ROWS rows, from input `begin` on: 0 where there are none.
__device__ inline void bring(real (*inputs)[CHUNK], const real *A, int lda, int rows, int begin, int K)
{
    const bool aligned = whole_vectors(A, lda);
    Vec4 held[TURNS][ROWS];
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++)
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            const int k = begin + (turn * blockDim.x + threadIdx.x) * WIDTH;
            held[turn][row] = read(A + (offset)row * lda + k, inside(k, row < rows ? K : 0, aligned));
        }
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++)
#pragma unroll
        for (int row = 0; row < ROWS; row++)
            *(Vec4 *)&inputs[row][(turn * blockDim.x + threadIdx.x) * WIDTH] = held[turn][row];
}

// This kernel may bring weights while the kernel before runs, if that `starts_early`: then it must not write them.
extern "C" __global__ void __launch_bounds__(WARPS * WARP)
few_rows(int M, int N, int K, real alpha, const real *A, int lda, const real *B, int ldb, const real *bias, real *D,
         int ldd, int starts_early)
{
    start_beside_previous_kernel(starts_early);
    if (!starts_early)
        wait_for_previous_kernel();
    __shared__ alignas(16) real inputs[ROWS][CHUNK];
    const int lane = threadIdx.x % WARP, n = blockIdx.y * WARPS + threadIdx.x / WARP;
    const int first = blockIdx.x * ROWS, rows = min(M - first, ROWS);
    const real *weights = B + (offset)min(n, N - 1) * ldb;
    const real b = bias ? bias[min(n, N - 1)] : 0;
    const bool aligned = whole_vectors(B, ldb);
    real sums[ROWS] = {};
    for (int begin = 0; begin < K; begin += CHUNK) {
        Vec4 w[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int k = begin + i * STEP + lane * WIDTH;
            w[i] = read(weights + k, inside(k, K, aligned));
        }
        wait_for_previous_kernel();
        __syncthreads();  // all have read the inputs before
        bring(inputs, A + (offset)first * lda, lda, rows, begin, K);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            if (begin + i * STEP >= K)
                break;
#pragma unroll
            for (int row = 0; row < ROWS; row++) {
                const Vec4 x = *(const Vec4 *)&inputs[row][i * STEP + lane * WIDTH];
#pragma unroll
                for (int j = 0; j < WIDTH; j++)
                    sums[row] += w[i].of[j] * x.of[j];
            }
        }
    }
    real mine = 0;
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        const real sum = warp_sum(sums[row]);
        mine = lane == row ? sum : mine;
    }
    if (n < N && lane < rows)
        D[(offset)(first + lane) * ldd + n] = ACTIVATE(alpha * mine + b);
}
