// Pixels to numbers: the images of a batch as the input of the network.
// constants: REAL=float PIXEL=uint8|float32 NUMBER=float
// constants: REAL=double PIXEL=uint8|float32|float64 NUMBER=double
// constants: REAL=float PIXEL=uint8 NUMBER=bfloat16
//
// X = pixel / scale; or, where NUMBER is bfloat16, the pixel itself, since that holds 0 to 255 exactly:
// products on tensor cores take it so, and scale their result (gemm/wgmma.cu).

#include "nn/batch.cuh"
#include "nn/pixels.cuh"

__device__ inline void convert_wide(unsigned p, unsigned long long *numbers)
{
    bfloat16 x[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        x[i] = __float_as_uint((float)(p >> 8 * i & 0xff)) >> 16;
    *numbers = pack(x);
}

// This thread's part of one row, whose columns are a multiple of WIDTH: WIDTH neighbours every `step` columns.
// What it asks for may come while the kernel before still runs (see gather_batch).
__device__ inline void convert_wide_row(int columns, int first, int step, const pixel *image, number *x)
{
    for (int column = first; column < columns; column += AT_ONCE * step) {
        unsigned held[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (column + i * step < columns)
                held[i] = *(const unsigned *)(image + column + i * step);
        wait_for_previous_kernel();
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (column + i * step < columns)
                convert_wide(held[i], (unsigned long long *)(x + column + i * step));
    }
}

__device__ inline void convert_row(int columns, int first, int step, bool wide, real scale,
                                   const pixel *image, number *x)
{
    if (wide) {
        convert_wide_row(columns, first, step, image, x);
        return;
    }
    wait_for_previous_kernel();
    for (int column = first; column < columns; column += step)
        for (int i = column; i < min(column + WIDTH, columns); i++)
            convert(image[i], scale, x[i]);
}

// Both kernels: block 32 x 8, no shared memory; the grid's x counts blocks down the rows, y across the
// columns (of which a thread takes WIDTH), any number of each. Images have `columns` columns without gaps, X
// has the leading dimension ldx.

// X[i] = images[i] / scale.
extern "C" __global__ void scale_pixels(int rows, int columns, real scale, const pixel *images, number *X,
                                        int ldx)
{
    wait_for_previous_kernel();
    const int row_step = gridDim.x * blockDim.y, column_step = gridDim.y * blockDim.x * WIDTH;
    const int first_column = (blockIdx.y * blockDim.x + threadIdx.x) * WIDTH;
    const bool wide = WIDTH > 1 && columns % WIDTH == 0 && ldx % WIDTH == 0;
    for (offset row = blockIdx.x * blockDim.y + threadIdx.y; row < rows; row += row_step)
        convert_row(columns, first_column, column_step, wide, scale, images + row * columns,
                    X + row * ldx);
}

// X[i] = images[j] / scale and batch_labels[i] = labels[j], with j = order[*place + i]: the rows of a batch
// out of all that lie there. That `place` is read here, and is no argument, lets one graph serve every batch;
// when all blocks have read it (`arrived` counts them, from 0), it moves on to the next one's.
//
// With `starts_early`, rows come from memory while the kernel before still runs: the update of the step before,
// which has nothing to do with them, nor with the place.
extern "C" __global__ void gather_batch(int rows, int columns, real scale, const pixel *images,
                                        const int *labels, const int *order, int *place, int *arrived,
                                        int advance, int places, number *X, int ldx, int *batch_labels,
                                        int starts_early)
{
    start_beside_previous_kernel(starts_early);
    if (!starts_early)
        wait_for_previous_kernel();
    const int row_step = gridDim.x * blockDim.y, column_step = gridDim.y * blockDim.x * WIDTH;
    const int first_column = (blockIdx.y * blockDim.x + threadIdx.x) * WIDTH;
    const bool wide = WIDTH > 1 && columns % WIDTH == 0 && ldx % WIDTH == 0;
    const int *mine = order + *place;
    __syncthreads();
    const unsigned last = gridDim.x * gridDim.y - 1;
    if (threadIdx.x == 0 && threadIdx.y == 0) {
        __threadfence();
        if (atomicInc((unsigned *)arrived, last) == last)
            move_on(place, advance, places);
    }
    for (offset row = blockIdx.x * blockDim.y + threadIdx.y; row < rows; row += row_step) {
        const offset image = mine[row];
        const int label = first_column == 0 ? labels[image] : 0;
        convert_row(columns, first_column, column_step, wide, scale, images + image * columns,
                    X + row * ldx);
        if (first_column == 0)
            batch_labels[row] = label;
    }
}
