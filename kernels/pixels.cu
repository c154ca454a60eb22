// Pixels to numbers: X[i] = images[order[i]] / scale, the rows of a batch gathered and scaled.
// constants: REAL=float|double PIXEL=uint8|float32

#include "common.cuh"

typedef unsigned char uint8;
typedef float float32;
typedef PIXEL pixel;

// images and X have `columns` columns without gaps; order has an image's row for each row of X, or is null,
// which means the first `rows` images in their own order.
//
// Block 32 x 8, no shared memory; the grid's x counts blocks down the rows, y across the columns, any
// number of each. A division and not a product with 1 / scale: it rounds as NumPy's does, so host and
// device agree to the bit.
extern "C" __global__ void scale_pixels(int rows, int columns, real scale, const pixel *images,
                                        const int *order, real *X)
{
    const int row_step = gridDim.x * blockDim.y, column_step = gridDim.y * blockDim.x;
    for (offset row = blockIdx.x * blockDim.y + threadIdx.y; row < rows; row += row_step) {
        const offset image = order ? order[row] : row;
        for (offset column = blockIdx.y * blockDim.x + threadIdx.x; column < columns; column += column_step)
            X[row * columns + column] = (real)images[image * columns + column] / scale;
    }
}
