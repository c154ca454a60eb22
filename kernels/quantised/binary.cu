// Dense layers of signs (XNOR-Net, Rastegari et al. 2016): Y = f(alpha beta (sign(X) sign(W)') + b).
// constants: REAL=float ACTIVATION=identity|sigmoid|tanh|relu
//
// alpha is the mean of |W| for each unit, beta the mean of |X| for each sample, and the sign of 0 is +1. A sign is a bit,
// 1 where it is negative, and a row has `words` words of 32 bits, a multiple of 4, filled up with zeros. A product of
// signs is negative where their bits differ, so a sum is `inputs` - 2 popc(x ^ w): exact. X bits (samples, words), W bits
// (units, words), Y (samples, units), without gaps; `bias` (units) may be null.

#include "quantised/rows.cuh"

// A row as bits, and the mean of |x|; NaN stays NaN. A warp makes a word at a time: a lane a bit.
//
// Block QUANTISE_THREADS, a row each; shared memory: a float a thread.
extern "C" __global__ void __launch_bounds__(QUANTISE_THREADS)
binarise_rows(int columns, int words, const real *X, unsigned *bits, real *scales)
{
    wait_for_previous_kernel();
    __shared__ real room[QUANTISE_THREADS];
    const offset row = blockIdx.x;
    const real *x = X + row * columns;
    real sum = 0;
    for (int word = threadIdx.x / WARP; word < words; word += QUANTISE_THREADS / WARP) {
        const int i = word * WARP + threadIdx.x % WARP;
        const real value = i < columns ? x[i] : real(0);
        const unsigned signs = __ballot_sync(ALL_LANES, value < 0);
        if (threadIdx.x % WARP == 0)
            bits[row * words + word] = signs;
        sum += fabs(value);
    }
    sum = over_block(sum, room, [](real a, real b) { return a + b; });
    if (threadIdx.x == 0)
        scales[row] = sum / columns;
}

// Naive: a thread a result, 32 products an instruction.
//
// Block of one dimension, grid x: blocks over the units, y: samples; no shared memory.
extern "C" __global__ void binary_thread(int units, int inputs, int words, const unsigned *X,
                                         const real *sample_scales, const unsigned *W, const real *weight_scales,
                                         const real *bias, real *Y)
{
    wait_for_previous_kernel();
    const int unit = blockIdx.x * blockDim.x + threadIdx.x;
    if (unit >= units)
        return;
    const unsigned *x = X + (offset)blockIdx.y * words, *w = W + (offset)unit * words;
    int differ = 0;
    for (int i = 0; i < words; i++)
        differ += __popc(x[i] ^ w[i]);
    Y[(offset)blockIdx.y * units + unit] =
        output(inputs - 2 * differ, weight_scales[unit], sample_scales[blockIdx.y], bias, unit);
}

// A warp a unit, each lane by 16 bytes: a row of W comes in whole transactions. For few samples, whose time is that of
// reading W.
//
// Block 32 x any, grid x: blocks over the units, a warp each, y: samples; no shared memory.
extern "C" __global__ void binary_warp(int units, int inputs, int words, const unsigned *X, const real *sample_scales,
                                       const unsigned *W, const real *weight_scales, const real *bias, real *Y)
{
    wait_for_previous_kernel();
    const int unit = blockIdx.x * blockDim.y + threadIdx.y;
    if (unit >= units)
        return;
    const uint4 *x = (const uint4 *)(X + (offset)blockIdx.y * words), *w = (const uint4 *)(W + (offset)unit * words);
    int differ = 0;
#pragma unroll 4
    for (int i = threadIdx.x; i < words / 4; i += WARP) {
        const uint4 a = w[i], b = x[i];
        differ += __popc(a.x ^ b.x) + __popc(a.y ^ b.y) + __popc(a.z ^ b.z) + __popc(a.w ^ b.w);
    }
    differ = warp_sum(differ);
    if (threadIdx.x == 0)
        Y[(offset)blockIdx.y * units + unit] =
            output(inputs - 2 * differ, weight_scales[unit], sample_scales[blockIdx.y], bias, unit);
}

const int SIDE = 32;        // units and samples of a block
const int DEPTH = 32;       // words of a tile
const int ACROSS = 16, EACH = SIDE / ACROSS;  // threads along a side, and what each has of it

// A tile of W and one of X in shared memory: each word is read from global memory once for 32 results. For many samples.
// A thread has 2 x 2 results, 16 apart. Rows of a tile are a word longer than they need be: 16 neighbours of a column
// are in different banks.
//
// Block 16 x 16; grid x: 32 units each, y: 32 samples each; shared memory: 8.4 KB.
extern "C" __global__ void __launch_bounds__(ACROSS * ACROSS)
binary_tile(int samples, int units, int inputs, int words, const unsigned *X, const real *sample_scales,
            const unsigned *W, const real *weight_scales, const real *bias, real *Y)
{
    wait_for_previous_kernel();
    __shared__ unsigned x[SIDE][DEPTH + 1];
    __shared__ unsigned w[SIDE][DEPTH + 1];
    const int first_unit = blockIdx.x * SIDE, first_sample = blockIdx.y * SIDE;
    const int thread = threadIdx.y * ACROSS + threadIdx.x;
    int differ[EACH][EACH] = {};
    for (int from = 0; from < words; from += DEPTH) {
        for (int i = thread; i < SIDE * DEPTH; i += ACROSS * ACROSS) {
            const int line = i / DEPTH, k = i % DEPTH, sample = first_sample + line, unit = first_unit + line;
            const bool inside = from + k < words;
            x[line][k] = inside && sample < samples ? X[(offset)sample * words + from + k] : 0;
            w[line][k] = inside && unit < units ? W[(offset)unit * words + from + k] : 0;
        }
        __syncthreads();
#pragma unroll 8
        for (int k = 0; k < DEPTH; k++)
#pragma unroll
            for (int i = 0; i < EACH; i++)
#pragma unroll
                for (int j = 0; j < EACH; j++)
                    differ[i][j] += __popc(x[threadIdx.y + i * ACROSS][k] ^ w[threadIdx.x + j * ACROSS][k]);
        __syncthreads();
    }
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) {
            const int sample = first_sample + threadIdx.y + i * ACROSS, unit = first_unit + threadIdx.x + j * ACROSS;
            if (sample < samples && unit < units)
                Y[(offset)sample * units + unit] =
                    output(inputs - 2 * differ[i][j], weight_scales[unit], sample_scales[sample], bias, unit);
        }
}
