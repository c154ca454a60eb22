// Sums of columns: sums[j] = sum over i of X[i, j], in an order that only the shape and the launch decide.
// constants: REAL=float|double

#include "common.cuh"

// X is rows x columns with leading dimension ldx.
//
// Block w x h with h a power of two and w h <= 1024; grid of one dimension, any size; shared memory: a sum
// a thread. A block takes w columns: w large enough that a row's part fills whole memory transactions, yet
// small, since every w columns bring another block. Each thread sums every h-th row of its column, then a
// tree adds the h sums. The short chains that result also round less than one long one.
extern "C" __global__ void __launch_bounds__(1024)
column_sums(int rows, int columns, const real *X, int ldx, real *sums)
{
    wait_for_previous_kernel();
    __shared__ real partial[1024];

    const int width = blockDim.x, height = blockDim.y;
    const int x = threadIdx.x, y = threadIdx.y;
    real *mine = &partial[y * width + x];

    for (offset first = blockIdx.x * width; first < columns; first += gridDim.x * width) {
        const offset column = first + x;
        real sum = 0;
        if (column < columns)
            for (offset row = y; row < rows; row += height)
                sum += X[row * ldx + column];
        *mine = sum;
        __syncthreads();
        for (int half = height / 2; half > 0; half /= 2) {
            if (y < half)
                *mine += mine[half * width];
            __syncthreads();
        }
        if (y == 0 && column < columns)
            sums[column] = *mine;
    }
}
