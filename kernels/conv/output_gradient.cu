// The gradient of a convolution's sums, dZ, on the way back, in one pass: through pooling and the activation, with
// what the products need of it: bf16 components, and the sums of its columns, db.
// constants: REAL=float ACTIVATION=identity|sigmoid|tanh|relu
//
// dZ is rows x channels, a row a pixel of an image. Apart, these operations read and write matrices of its size
// six times; here it is written once.
//
// Block w x h threads, w a power of two; grid: x counts blocks down the rows (a block takes every gridDim.x-th group
// of h rows), y across the channels, w V a block, V = 4 or 2 where that divides them, else 1. Shared memory: V sums
// a thread, at most 512 threads. Each block leaves the sums of its rows in its row of partials (gridDim.x x
// channels); the last of a column of blocks to do so adds them up, always in the order of the rows.
//
// Either dZ or components may be null: `count` (at most 3) bf16 matrices, `distance` elements from one to the next.
// So may what f' is taken from, A: then it is taken from the bf16 numbers nearest to A, its first component. Of relu
// these say whether A is positive (but of a positive number below 2^-134, which bf16 does not have).

#include "bfloat16.cuh"
#include "conv/window.cuh"
#include "last_block.cuh"
#include "nn/activations.cuh"

const int THREADS = 512;

template <int V>
struct alignas(V) Bytes {
    unsigned char of[V];
};

template <int V>
struct alignas(2 * V) Halves {
    bfloat16 of[V];
};

struct Output {
    int rows, channels;
    real *dZ;
    bfloat16 *components;
    int count, distance;
    real *partials;
    real *db;
    int *done;  // blocks of each column of blocks that have left their sums; 0 before and after a launch

    template <int V>
    __device__ void store(offset place, const Reals<V> &dz) const
    {
        if (dZ)
            *(Reals<V> *)(dZ + place) = dz;
        if (components)
            split_neighbours(dz.of, count, components + place, distance);
    }
};

// Adds up the numbers of the threads of each column of the block, in a tree; its first thread gets the sum.
template <int V>
__device__ inline void add_rows(Reals<V> &sums)
{
    __shared__ __align__(16) real meeting[THREADS * 4];
    Reals<V> *mine = (Reals<V> *)meeting + threadIdx.y * blockDim.x + threadIdx.x;
    *mine = sums;
    __syncthreads();
    for (int half = blockDim.y / 2; half > 0; half /= 2) {
        if (threadIdx.y < half) {
#pragma unroll
            for (int v = 0; v < V; v++)
                mine->of[v] += mine[half * blockDim.x].of[v];
        }
        __syncthreads();
    }
    sums = *mine;
    __syncthreads();
}

// `gradient` stores V neighbours of dZ for a row and a channel, and returns their sum over what it has stored.
template <int V, class Gradient>
__device__ inline void make_output_gradient(const Output &output, const Gradient &gradient)
{
    const int x = threadIdx.x, y = threadIdx.y, width = blockDim.x, height = blockDim.y;
    const int channel = (blockIdx.y * width + x) * V;
    Reals<V> sums = {};
    if (channel < output.channels)
        for (int row = blockIdx.x * height + y; row < output.rows; row += gridDim.x * height) {
            const Reals<V> dz = gradient.template make<V>(output, row, channel);
#pragma unroll
            for (int v = 0; v < V; v++)
                sums.of[v] += dz.of[v];
        }
    add_rows(sums);
    if (y == 0 && channel < output.channels)
        *(Reals<V> *)(output.partials + (offset)blockIdx.x * output.channels + channel) = sums;
    if (!is_last_block(output.done + blockIdx.y, gridDim.x))
        return;
    sums = {};
    if (channel < output.channels)
        for (int row = y; row < (int)gridDim.x; row += height) {
            const Reals<V> partial = *(const Reals<V> *)(output.partials + (offset)row * output.channels + channel);
#pragma unroll
            for (int v = 0; v < V; v++)
                sums.of[v] += partial.of[v];
        }
    add_rows(sums);
    if (y == 0 && channel < output.channels)
#pragma unroll
        for (int v = 0; v < V; v++)
            output.db[channel + v] = sums.of[v];  // db may begin anywhere
}

// A = f(Z), or the bf16 numbers nearest to it in its place.
struct Activations {
    const real *A;
    const bfloat16 *nearest;

    template <int V>
    __device__ Reals<V> at(offset place) const
    {
        if (A)
            return *(const Reals<V> *)(A + place);
        const Halves<V> halves = *(const Halves<V> *)(nearest + place);
        Reals<V> a;
#pragma unroll
        for (int v = 0; v < V; v++)
            a.of[v] = to_float(halves.of[v]);
        return a;
    }
};

// Through the activation: dA f'(Z), A = f(Z).
struct ThroughActivation {
    int channels;
    Activations A;
    const real *dA;

    template <int V>
    __device__ Reals<V> make(const Output &output, int row, int channel) const
    {
        const offset place = (offset)row * channels + channel;
        const Reals<V> a = A.at<V>(place);
        Reals<V> dz = *(const Reals<V> *)(dA + place);
#pragma unroll
        for (int v = 0; v < V; v++)
            dz.of[v] *= DERIVATIVE(a.of[v]);
        output.store<V>(place, dz);
        return dz;
    }
};

// Through max-pooling too: a pixel gets what the windows give whose largest it is; then it is what they made, B,
// of which f' is taken, so that the pixels themselves are not read.
struct ThroughPooling {
    Window window;
    const unsigned char *places;
    Activations B;
    const real *dB;

    template <int V>
    __device__ Reals<V> make(const Output &output, int row, int channel) const
    {
        const Place pixel(row, window.height, window.width, 1);
        const int last_y = window.last_window(pixel.y, window.top, window.out_height);
        const int last_x = window.last_window(pixel.x, window.left, window.out_width);
        Reals<V> dz = {};
        for (int y = window.first_window(pixel.y, window.top, window.rows); y <= last_y; y++)
            for (int x = window.first_window(pixel.x, window.left, window.columns); x <= last_x; x++) {
                const int place = (pixel.y + window.top - y * window.stride) * window.columns + pixel.x +
                                  window.left - x * window.stride;
                const offset at = pixel.n * window.output(window.channels) +
                                  ((offset)y * window.out_width + x) * window.channels + channel;
                const Bytes<V> largest = *(const Bytes<V> *)(places + at);
                const Reals<V> b = B.at<V>(at), db = *(const Reals<V> *)(dB + at);
#pragma unroll
                for (int v = 0; v < V; v++)
                    if (largest.of[v] == place)
                        dz.of[v] += db.of[v] * DERIVATIVE(b.of[v]);
            }
        output.store<V>((offset)row * window.channels + channel, dz);
        return dz;
    }
};

// The same where windows lie side by side: a row is a window then, and writes all its pixels. Beyond the last windows
// of a row or a column there may be a part of one more, whose pixels nobody has: zeros.
struct ThroughWindows {
    Window window;
    int across, down;  // windows an image, such parts included
    const unsigned char *places;
    Activations B;
    const real *dB;

    template <int V>
    __device__ Reals<V> make(const Output &output, int row, int channel) const
    {
        const Place at(row, down, across, 1);
        Bytes<V> largest = {};
        Reals<V> dz = {};
        if (at.y < window.out_height && at.x < window.out_width) {
            const offset place = ((offset)(at.n * window.out_height + at.y) * window.out_width + at.x) *
                                     window.channels + channel;
            largest = *(const Bytes<V> *)(places + place);
            const Reals<V> b = B.at<V>(place);
            dz = *(const Reals<V> *)(dB + place);
#pragma unroll
            for (int v = 0; v < V; v++)
                dz.of[v] *= DERIVATIVE(b.of[v]);
        }
        const int first_y = at.y * window.rows, first_x = at.x * window.columns;
        const int rows = min(window.rows, window.height - first_y);
        const int columns = min(window.columns, window.width - first_x);
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < columns; c++) {
                Reals<V> pixel;
#pragma unroll
                for (int v = 0; v < V; v++)
                    pixel.of[v] = largest.of[v] == r * window.columns + c ? dz.of[v] : 0;
                const offset place = (offset)(at.n * window.height + first_y + r) * window.width + first_x + c;
                output.store<V>(place * window.channels + channel, pixel);
            }
        return dz;
    }
};

template <class Gradient>
__device__ inline void make_output_gradient(const Output &output, const Gradient &gradient)
{
    if (output.channels % 4 == 0)
        make_output_gradient<4>(output, gradient);
    else if (output.channels % 2 == 0)
        make_output_gradient<2>(output, gradient);
    else
        make_output_gradient<1>(output, gradient);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
through_activation(int rows, int channels, const real *A, const bfloat16 *nearest, const real *dA, real *dZ,
                   bfloat16 *components, int count, int distance, real *partials, real *db, int *done)
{
    wait_for_previous_kernel();
    const Output output = {rows, channels, dZ, components, count, distance, partials, db, done};
    const ThroughActivation gradient = {channels, {A, nearest}, dA};
    make_output_gradient(output, gradient);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
through_pooling(int samples, int height, int width, int channels, int window_rows, int columns, int stride, int top,
                int left, int out_height, int out_width, const unsigned char *places, const real *B,
                const bfloat16 *nearest, const real *dB, real *dZ, bfloat16 *components, int count, int distance,
                real *partials, real *db, int *done)
{
    wait_for_previous_kernel();
    const Window window = {height, width, channels, window_rows, columns, stride, top, left, out_height, out_width};
    if (stride == window_rows && stride == columns) {
        const int across = (width + stride - 1) / stride, down = (height + stride - 1) / stride;
        const Output output = {samples * across * down, channels, dZ, components, count, distance, partials, db, done};
        const ThroughWindows gradient = {window, across, down, places, {B, nearest}, dB};
        make_output_gradient(output, gradient);
    } else {
        const Output output = {samples * height * width, channels, dZ, components, count, distance, partials, db, done};
        const ThroughPooling gradient = {window, places, {B, nearest}, dB};
        make_output_gradient(output, gradient);
    }
}
