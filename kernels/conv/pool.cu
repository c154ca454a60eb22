// Pooling: the largest pixel of each window, or the mean, channel by channel; and the gradients back.
// constants: REAL=float|double
//
// Images A (samples, height, width, channels), results B (samples, out_height, out_width, channels). Windows
// may lie over each other, or leave pixels between them; none is over the edge.
//
// All: blocks and grid of one dimension, any number of threads, no shared memory. A thread takes results a
// whole grid apart; neighbours are neighbouring channels.

#include "conv/window.cuh"

// `places` gets where in its window, in row order, the largest pixel is: all that the way back needs. Of
// equal pixels the first is the largest; a NaN is larger than any number.
extern "C" __global__ void max_pool(int samples, int height, int width, int channels, int rows, int columns,
                                    int stride, int top, int left, int out_height, int out_width,
                                    const real *A, real *B, unsigned char *places)
{
    wait_for_previous_kernel();
    const Window w = {height, width, channels, rows, columns, stride, top, left, out_height, out_width};
    const offset size = samples * w.output(channels), step = (offset)gridDim.x * blockDim.x;
    for (offset i = blockIdx.x * (offset)blockDim.x + threadIdx.x; i < size; i += step) {
        const Place at(i, out_height, out_width, channels);
        const real *first = A + at.n * w.image() +
                            ((offset)w.pixel_y(at.y, 0) * width + w.pixel_x(at.x, 0)) * channels + at.channel;
        real best = *first;
        int place = 0;
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < columns; c++) {
                const real pixel = first[(r * width + c) * channels];
                if (!(pixel <= best) && best == best) {
                    best = pixel;
                    place = r * columns + c;
                }
            }
        B[i] = best;
        places[i] = place;
    }
}

// Each pixel asks the windows that have it whether it is their largest: a fixed order, and no atomics.
extern "C" __global__ void max_pool_backward(int samples, int height, int width, int channels, int rows,
                                             int columns, int stride, int top, int left, int out_height,
                                             int out_width, const unsigned char *places, const real *dB,
                                             real *dA)
{
    wait_for_previous_kernel();
    const Window w = {height, width, channels, rows, columns, stride, top, left, out_height, out_width};
    const offset size = samples * w.image(), step = (offset)gridDim.x * blockDim.x;
    for (offset i = blockIdx.x * (offset)blockDim.x + threadIdx.x; i < size; i += step) {
        const Place at(i, height, width, channels);
        real sum = 0;
        const int last_y = w.last_window(at.y, top, out_height), last_x = w.last_window(at.x, left, out_width);
        for (int y = w.first_window(at.y, top, rows); y <= last_y; y++)
            for (int x = w.first_window(at.x, left, columns); x <= last_x; x++) {
                const offset window = at.n * w.output(channels) + ((offset)y * out_width + x) * channels + at.channel;
                const int place = (at.y + top - y * stride) * columns + at.x + left - x * stride;
                if (places[window] == place)
                    sum += dB[window];
            }
        dA[i] = sum;
    }
}

extern "C" __global__ void mean_pool(int samples, int height, int width, int channels, int rows, int columns,
                                     int stride, int top, int left, int out_height, int out_width,
                                     const real *A, real *B)
{
    wait_for_previous_kernel();
    const Window w = {height, width, channels, rows, columns, stride, top, left, out_height, out_width};
    const offset size = samples * w.output(channels), step = (offset)gridDim.x * blockDim.x;
    for (offset i = blockIdx.x * (offset)blockDim.x + threadIdx.x; i < size; i += step) {
        const Place at(i, out_height, out_width, channels);
        const real *first = A + at.n * w.image() +
                            ((offset)w.pixel_y(at.y, 0) * width + w.pixel_x(at.x, 0)) * channels + at.channel;
        real sum = 0;
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < columns; c++)
                sum += first[((offset)r * width + c) * channels];
        B[i] = sum / (rows * columns);
    }
}

extern "C" __global__ void mean_pool_backward(int samples, int height, int width, int channels, int rows,
                                              int columns, int stride, int top, int left, int out_height,
                                              int out_width, const real *dB, real *dA)
{
    wait_for_previous_kernel();
    const Window w = {height, width, channels, rows, columns, stride, top, left, out_height, out_width};
    const offset size = samples * w.image(), step = (offset)gridDim.x * blockDim.x;
    for (offset i = blockIdx.x * (offset)blockDim.x + threadIdx.x; i < size; i += step) {
        const Place at(i, height, width, channels);
        real sum = 0;
        const int last_y = w.last_window(at.y, top, out_height), last_x = w.last_window(at.x, left, out_width);
        for (int y = w.first_window(at.y, top, rows); y <= last_y; y++)
            for (int x = w.first_window(at.x, left, columns); x <= last_x; x++)
                sum += dB[at.n * w.output(channels) + ((offset)y * out_width + x) * channels + at.channel];
        dA[i] = sum / (rows * columns);
    }
}
