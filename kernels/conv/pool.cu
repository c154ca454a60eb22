// Pooling: the largest pixel of each window, or the mean, channel by channel; and the gradients back.
// constants: REAL=float|double
//
// Images A (samples, height, width, channels), results B (samples, out_height, out_width, channels). Windows
// may lie over each other, or leave pixels between them; none is over the edge.
//
// All: blocks and grid of one dimension, any number of threads, no shared memory. A thread takes results a
// whole grid apart; neighbours are neighbouring channels. Where `components` is not null, results are left as bf16
// components too: `count` (at most 3) arrays, `distance` elements from one to the next.

#include "bfloat16.cuh"
#include "conv/window.cuh"

// `places` gets where in its window, in row order, the largest pixel is: all that the way back needs. Of
// equal pixels the first is the largest; a NaN is larger than any number.
//
// A thread takes V neighbouring channels, four or two where that divides them: so it reads whole vectors.
template <int V>
struct alignas(V) Bytes {
    unsigned char of[V];
};

template <int V>
__device__ inline void largest(const Window &w, int samples, const real *A, real *B, unsigned char *places,
                               bfloat16 *components, int count, int distance)
{
    const int across = w.channels / V, rows = w.rows, columns = w.columns;
    const offset size = samples * w.output(across), step = (offset)gridDim.x * blockDim.x;
    for (offset i = blockIdx.x * (offset)blockDim.x + threadIdx.x; i < size; i += step) {
        const Place at(i, w.out_height, w.out_width, across);
        const real *first =
            A + at.n * w.image() +
            ((offset)w.pixel_y(at.y, 0) * w.width + w.pixel_x(at.x, 0)) * w.channels + at.channel * V;
        Reals<V> best = *(const Reals<V> *)first;
        Bytes<V> place = {};
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < columns; c++) {
                const Reals<V> pixel = *(const Reals<V> *)(first + ((offset)r * w.width + c) * w.channels);
#pragma unroll
                for (int v = 0; v < V; v++)
                    if (!(pixel.of[v] <= best.of[v]) && best.of[v] == best.of[v]) {
                        best.of[v] = pixel.of[v];
                        place.of[v] = r * columns + c;
                    }
            }
        *(Reals<V> *)(B + i * V) = best;
        *(Bytes<V> *)(places + i * V) = place;
        if (components)
            split_neighbours(best.of, count, components + i * V, distance);
    }
}

extern "C" __global__ void max_pool(int samples, int height, int width, int channels, int rows, int columns,
                                    int stride, int top, int left, int out_height, int out_width,
                                    const real *A, real *B, unsigned char *places, bfloat16 *components,
                                    int count, int distance)
{
    wait_for_previous_kernel();
    const Window w = {height, width, channels, rows, columns, stride, top, left, out_height, out_width};
    if (channels % 4 == 0)
        largest<4>(w, samples, A, B, places, components, count, distance);
    else if (channels % 2 == 0)
        largest<2>(w, samples, A, B, places, components, count, distance);
    else
        largest<1>(w, samples, A, B, places, components, count, distance);
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
                                     const real *A, real *B, bfloat16 *components, int count,
                                     int distance)
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
        const real mean = sum / (rows * columns);
        B[i] = mean;
        if (components)
            split(mean, count, components + i, distance);
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
