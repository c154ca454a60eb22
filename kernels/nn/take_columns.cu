// Some columns of a matrix, copied without gaps: channels of images, or rows of pixels, that a rank convolves.
// constants: REAL=float|double

#include "common.cuh"

// Y (rows x columns, without gaps) = X, whose rows begin `ldx` numbers apart.
//
// Block 32 x 8, no shared memory; the grid's x counts blocks down the rows, y across the columns, any number of
// each.
extern "C" __global__ void take_columns(int rows, int columns, const real *X, offset ldx, real *Y)
{
    wait_for_previous_kernel();
    const int row_step = gridDim.x * blockDim.y, column_step = gridDim.y * blockDim.x;
    for (offset row = blockIdx.x * blockDim.y + threadIdx.y; row < rows; row += row_step)
        for (int column = blockIdx.y * blockDim.x + threadIdx.x; column < columns; column += column_step)
            Y[row * columns + column] = X[row * ldx + column];
}
