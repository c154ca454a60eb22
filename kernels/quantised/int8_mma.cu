// Dense layers of signed bytes on the tensor cores of sm_80 and later, for many samples: see int8.cu.
// architectures: sm_80 sm_90a
// constants: REAL=float ACTIVATION=identity|sigmoid|tanh|relu

#include "async_copies.cuh"
#include "quantised/mma_int8.cuh"
#include "quantised/rows.cuh"

const int WARPS = 4;            // of a block
const int ROWS = 16;            // units of a warp
const int SAMPLES = 64;         // of a block
const int STEP = 64;            // bytes along k
const int STAGES = 3;           // of samples in shared memory: one that is used, the others on their way
const int AHEAD = 4;            // steps of weights on their way
const int EIGHTS = SAMPLES / 8;  // of samples, as the tensor cores take them

// Starts the copies of a step of the samples from the `first` on; what there is not is 0.
__device__ inline void fetch(AsyncCopies &copies, uint4 (&tile)[SAMPLES][STEP / 16], const signed char *X, int first,
                             int samples, int ld, int k)
{
#pragma unroll
    for (int i = threadIdx.x; i < SAMPLES * STEP / 16; i += WARPS * WARP) {
        const int sample = first + i / (STEP / 16), piece = i % (STEP / 16);
        const bool there = sample < samples && k < ld;
        const signed char *from = there ? X + (offset)sample * ld + k + piece * 16 : X;
        copies.start<16>((float *)&tile[i / (STEP / 16)][piece], (const float *)from, there ? 4 : 0);
    }
    copies.end_group();
}

// Sums of a part of k, from step blockIdx.z * steps on, as many steps: partials (gridDim.z, samples, units), which
// int8_add_parts adds up. A warp has 16 units and 64 samples. Weights are used by one warp alone, so they go from global
// memory to registers; samples pass through shared memory for all warps. A lane reads 16 bytes of a row along k: any
// numbering of k will do, as long as weights and samples have the same.
//
// Block 128; grid x: 64 units each, y: 64 samples each, z: parts; shared memory: 12 KB.
extern "C" __global__ void __launch_bounds__(WARPS * 32)
int8_mma(int samples, int units, int ld, int steps, const signed char *X, const signed char *W, int *partials)
{
    wait_for_previous_kernel();
    __shared__ uint4 tiles[STAGES][SAMPLES][STEP / 16];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    const int unit = (blockIdx.x * WARPS + warp) * ROWS + g, first = blockIdx.y * SAMPLES;
    const int begin = blockIdx.z * steps, end = min(begin + steps, ld / STEP);
    const uint4 *rows[2];  // the last one stands for those that there are not
    for (int i = 0; i < 2; i++)
        rows[i] = (const uint4 *)(W + (offset)min(unit + 8 * i, units - 1) * ld) + t;

    AsyncCopies copies;
    for (int i = 0; i < STAGES - 1; i++)
        fetch(copies, tiles[i], X, first, samples, ld, (begin + i) * STEP);
    uint4 weights[AHEAD][2] = {};
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (begin + i < end)
            for (int j = 0; j < 2; j++)
                weights[i][j] = rows[j][(begin + i) * (STEP / 16)];

    int sums[EIGHTS][4] = {};
    int stage = 0;
    for (int group = begin; group < end; group += AHEAD) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int step = group + i;
            if (step >= end)
                break;
            copies.wait<STAGES - 2>();
            __syncthreads();
            fetch(copies, tiles[(stage + STAGES - 1) % STAGES], X, first, samples, ld, (step + STAGES - 1) * STEP);
            const uint4 a = weights[i][0], b = weights[i][1];
            if (step + AHEAD < end)
                for (int j = 0; j < 2; j++)
                    weights[i][j] = rows[j][(step + AHEAD) * (STEP / 16)];
#pragma unroll
            for (int n = 0; n < EIGHTS; n++) {
                const uint4 x = tiles[stage][8 * n + g][t];
                multiply_add(sums[n], a.x, b.x, a.y, b.y, x.x, x.y);
                multiply_add(sums[n], a.z, b.z, a.w, b.w, x.z, x.w);
            }
            stage = (stage + 1) % STAGES;
        }
    }
    copies.wait<0>();

    int *mine = partials + (offset)blockIdx.z * samples * units;
#pragma unroll
    for (int n = 0; n < EIGHTS; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = unit + i / 2 * 8, sample = first + 8 * n + 2 * t + i % 2;
            if (row < units && sample < samples)
                mine[(offset)sample * units + row] = sums[n][i];
        }
}

// Y of the sums of parts.
//
// Block of one dimension, grid x: blocks over the units, y: samples; no shared memory.
extern "C" __global__ void int8_add_parts(int samples, int units, int parts, const int *partials,
                                          const real *sample_scales, const real *weight_scales, const real *bias,
                                          real *Y)
{
    wait_for_previous_kernel();
    const int unit = blockIdx.x * blockDim.x + threadIdx.x, sample = blockIdx.y;
    if (unit >= units)
        return;
    const offset place = (offset)sample * units + unit;
    int sum = 0;
    for (int part = 0; part < parts; part++)
        sum += partials[(offset)part * samples * units + place];
    Y[place] = output(sum, weight_scales[unit], sample_scales[sample], bias, unit);
}
