// Dense layers of signed bytes: Y = f(scales * (X8 W8') + b), X8 and W8 rows of bytes, with a float32 scale for each row.
// constants: REAL=float ACTIVATION=identity|sigmoid|tanh|relu
//
// X8 (samples, ld) and W8 (units, ld) have rows of ld bytes, ld a multiple of 64, filled up with zeros; ld is so small
// that sums fit in int32 (nn/launch/int8.py), and so they are exact, in any order. Y (samples, units) has no gaps;
// `bias` (units) may be null. The products on tensor cores: int8_mma.cu.

#include "quantised/mma_int8.cuh"
#include "quantised/rows.cuh"

// A row as bytes: scale = max |x| / 127, q = x / scale to the nearest integer. A row of zeros has scale 0, and one that
// is not finite a scale that is not finite, and zeros.
//
// Block QUANTISE_THREADS, a row each; shared memory: a float a thread.
extern "C" __global__ void __launch_bounds__(QUANTISE_THREADS)
quantise_rows(int columns, int ld, const real *X, signed char *Q, real *scales)
{
    wait_for_previous_kernel();
    __shared__ real room[QUANTISE_THREADS];
    const offset row = blockIdx.x;
    const real *x = X + row * columns;
    const auto larger = [](real a, real b) { return b > a || b != b ? b : a; };  // NaN stays NaN
    real most = 0;
    for (int i = threadIdx.x; i < columns; i += blockDim.x)
        most = larger(most, fabs(x[i]));
    most = over_block(most, room, [=](real a, real b) { return a != a ? a : larger(a, b); });
    const real scale = most / 127, LARGEST = 3.402823466e38f;
    const bool usable = scale > 0 && scale <= LARGEST;
    for (int i = threadIdx.x; i < ld; i += blockDim.x) {
        const real q = usable && i < columns ? rint(x[i] / scale) : real(0);
        Q[row * ld + i] = (signed char)fmin(fmax(q, real(-127)), real(127));
    }
    if (threadIdx.x == 0)
        scales[row] = scale;
}

// Naive: a thread a result, four products an instruction.
//
// Block of one dimension, grid x: blocks over the units, y: samples; no shared memory.
extern "C" __global__ void int8_thread(int units, int ld, const signed char *X, const real *sample_scales,
                                       const signed char *W, const real *weight_scales, const real *bias, real *Y)
{
    wait_for_previous_kernel();
    const int unit = blockIdx.x * blockDim.x + threadIdx.x;
    if (unit >= units)
        return;
    const unsigned *x = (const unsigned *)(X + (offset)blockIdx.y * ld);
    const unsigned *w = (const unsigned *)(W + (offset)unit * ld);
    int sum = 0;
    for (int i = 0; i < ld / 4; i++)
        sum = multiply_bytes(w[i], x[i], sum);
    Y[(offset)blockIdx.y * units + unit] =
        output(sum, weight_scales[unit], sample_scales[blockIdx.y], bias, unit);
}

// A warp a unit, each lane by 16 bytes: a row of W comes in whole transactions. For few samples, whose time is that of
// reading W.
//
// Block 32 x any, grid x: blocks over the units, a warp each, y: samples; no shared memory.
extern "C" __global__ void int8_warp(int units, int ld, const signed char *X, const real *sample_scales,
                                     const signed char *W, const real *weight_scales, const real *bias, real *Y)
{
    wait_for_previous_kernel();
    const int unit = blockIdx.x * blockDim.y + threadIdx.y;
    if (unit >= units)
        return;
    const uint4 *x = (const uint4 *)(X + (offset)blockIdx.y * ld);
    const uint4 *w = (const uint4 *)(W + (offset)unit * ld);
    int sum = 0;
#pragma unroll 4
    for (int i = threadIdx.x; i < ld / 16; i += WARP) {
        const uint4 a = w[i], b = x[i];
        sum = multiply_bytes(a.x, b.x, sum);
        sum = multiply_bytes(a.y, b.y, sum);
        sum = multiply_bytes(a.z, b.z, sum);
        sum = multiply_bytes(a.w, b.w, sum);
    }
    sum = warp_sum(sum);
    if (threadIdx.x == 0)
        Y[(offset)blockIdx.y * units + unit] =
            output(sum, weight_scales[unit], sample_scales[blockIdx.y], bias, unit);
}
