// Pixels to numbers: the images of a batch, scaled, as the input of the network.
// constants: REAL=float|double PIXEL=uint8|float32

#include "common.cuh"

typedef unsigned char uint8;
typedef float float32;
typedef PIXEL pixel;

// Both kernels: block 32 x 8, no shared memory; the grid's x counts blocks down the rows, y across the
// columns, any number of each. All arrays have `columns` columns without gaps. A division and not a product
// with 1 / scale: it rounds as NumPy's does, so host and device agree to the bit.

// X[i] = images[i] / scale.
extern "C" __global__ void scale_pixels(int rows, int columns, real scale, const pixel *images, real *X)
{
    const int row_step = gridDim.x * blockDim.y, column_step = gridDim.y * blockDim.x;
    for (offset row = blockIdx.x * blockDim.y + threadIdx.y; row < rows; row += row_step)
        for (offset column = blockIdx.y * blockDim.x + threadIdx.x; column < columns; column += column_step)
            X[row * columns + column] = (real)images[row * columns + column] / scale;
}

// X[i] = images[j] / scale and batch_labels[i] = labels[j], with j = order[*place + i]: the rows of a batch
// out of a whole set. That `place` is read here, and is no argument, lets one graph serve every batch.
extern "C" __global__ void gather_batch(int rows, int columns, real scale, const pixel *images,
                                        const int *labels, const int *order, const int *place, real *X,
                                        int *batch_labels)
{
    const int row_step = gridDim.x * blockDim.y, column_step = gridDim.y * blockDim.x;
    const int first_column = blockIdx.y * blockDim.x + threadIdx.x;
    const int *mine = order + *place;
    for (offset row = blockIdx.x * blockDim.y + threadIdx.y; row < rows; row += row_step) {
        const offset image = mine[row];
        for (offset column = first_column; column < columns; column += column_step)
            X[row * columns + column] = (real)images[image * columns + column] / scale;
        if (first_column == 0)
            batch_labels[row] = labels[image];
    }
}
