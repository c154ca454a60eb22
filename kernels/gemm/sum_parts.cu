// The end of a matrix product whose K was split into parts: D = f(alpha sum + beta C + bias) of the sums of
// the parts, which mma.cu leaves where D has too few tiles to fill the device.
// constants: REAL=float ACTIVATION=identity|sigmoid|tanh|relu
//
// Block 32 x 8, no shared memory; the grid's x counts blocks down the rows, y across the columns, any
// number of each. The parts (`parts` x M x N) are added in their order, so that the same bits come out twice.
// Where `sums` is not null, it gets the sums of M rows of op(A), those of each part from `row_sums` (`parts`
// x M).

#include "common.cuh"
#include "gemm/result.cuh"

// x[0] + x[step] + ... , `count` of them.
__device__ inline real add_up(const real *x, offset step, int count)
{
    real sum = 0;
#pragma unroll 4
    for (int i = 0; i < count; i++)
        sum += x[i * step];
    return sum;
}

extern "C" __global__ void sum_parts(int M, int N, int parts, const real *partials, const real *row_sums,
                                     real *sums, real alpha, real beta, const real *C, int ldc,
                                     const real *bias, real *D, int ldd)
{
    wait_for_previous_kernel();
    const Result result = {M, N, alpha, beta, C, bias, D, ldc, ldd};
    const int row_step = gridDim.x * blockDim.y, column_step = gridDim.y * blockDim.x;
    for (int m = blockIdx.x * blockDim.y + threadIdx.y; m < M; m += row_step) {
        for (int n = blockIdx.y * blockDim.x + threadIdx.x; n < N; n += column_step)
            D[(offset)m * ldd + n] =
                result.value(m, n, add_up(partials + (offset)m * N + n, (offset)M * N, parts));
        if (sums && blockIdx.y == 0 && threadIdx.x == 0)
            sums[m] = add_up(row_sums + m, M, parts);
    }
}
