// Convolution of images of few channels at stride 1: a window that slides along a row shares all but one of its
// columns with the one before. So a thread has ACROSS neighbouring windows, and each pixel that it reads serves as
// many of them as have it; narrow.cu, for any window, reads it once for each.
// constants: REAL=float COLUMNS=3|5 ACTIVATION=identity|sigmoid|tanh|relu
// architectures: sm_80 sm_90a
//
// With images X (samples, height, width, channels), filters V and their results Y (windows, filters), K numbers in
// a window, as direct.cu has them:
//   sliding_forward   Y = f(P V^T + bias). Also the gradient of images, of windows on dZ, with the filters turned
//                     around: `turned`, V is then W (channels of P, places, filters of Y)
//   sliding_filters   dV = dY^T P, as partial sums of the blocks, for column_sums to add up
//
// Both: a block has FILTERS of the filters (grid's y) and takes every gridDim.x-th tile: `band` rows of outputs of
// `images` images (more than one only if a band is all rows), with the pixels that they need, a plane for each
// channel, in shared memory. A plane's rows are `pitch` long, an odd number: neighbours are in different banks.
//
// These kernels wait for the one before them only in their second line, and so are not launched beside it: blocks
// that come early crowd the multiprocessors that are free first, and each has as much to do as any other.

#include "async_copies.cuh"
#include "bfloat16.cuh"
#include "conv/window.cuh"
#include "nn/activations.cuh"

const int FILTERS = 8;
const int ACROSS = 5;
const int PIXELS = ACROSS + COLUMNS - 1;  // a row of ACROSS windows

struct Tiles {
    Window w;
    int samples, images, band, pitch;

    __device__ int plane() const { return min(band + w.rows - 1, w.height) * pitch; }
    __device__ int image() const { return w.channels * plane(); }
    __device__ int segments() const { return (w.out_width + ACROSS - 1) / ACROSS; }
    __device__ int bands() const { return (w.out_height + band - 1) / band; }
    __device__ int count() const { return (samples + images - 1) / images * bands(); }
};

// A tile: its first image and row of outputs, and how many of both it has.
struct Tile {
    int image, images, row, rows;
    int top;            // the row of pixels that is a plane's first
    offset first_line;  // of all images' rows of outputs; the tile's follow it

    __device__ Tile(const Tiles &tiles, int number)
    {
        const int bands = tiles.bands();
        image = number / bands * tiles.images;
        row = number % bands * tiles.band;
        images = min(tiles.images, tiles.samples - image);
        rows = min(tiles.band, tiles.w.out_height - row);
        top = max(0, row - tiles.w.top);
        first_line = (offset)image * tiles.w.out_height + row;
    }

    __device__ int lines() const { return images * rows; }
};

// How a block goes over lines of `size` items: a thread stays at its item, and goes down the lines.
struct Line {
    int size, span, first, row, step;

    __device__ Line(int size) : size(size)
    {
        span = min(size, (int)blockDim.x);
        row = threadIdx.x / span;
        first = threadIdx.x - row * span;
        step = blockDim.x / span;
        if (row >= step)
            first = size;
    }
};

// Zeros beside what tiles write: once is enough.
__device__ inline void clear(real *numbers, int size)
{
    for (int i = threadIdx.x; i < size; i += blockDim.x)
        numbers[i] = 0;
}

// Starts to copy the pixels of a tile.
__device__ inline void load_pixels(AsyncCopies &copies, const Tiles &tiles, const Tile &tile, const real *X,
                                   real *planes)
{
    const Window &w = tiles.w;
    const Line line(w.width * w.channels);
    const int rows = min(tile.row - w.top + tile.rows + w.rows - 1, w.height) - tile.top;
    const int from_step = line.step * line.size, to_step = line.step * tiles.pitch;
    for (int i = line.first; i < line.size; i += line.span) {
        const int x = i / w.channels, channel = i - x * w.channels;
        for (int image = 0; image < tile.images; image++) {
            const real *from = X + (tile.image + image) * w.image() + (offset)(tile.top + line.row) * line.size + i;
            real *to = planes + image * tiles.image() + channel * tiles.plane() + line.row * tiles.pitch + x + w.left;
            for (int row = line.row; row < rows; row += line.step) {
                copies.start<4>(to, from, 1);
                from += from_step;
                to += to_step;
            }
        }
    }
}

// sums += pixels, neighbours, times four filters' numbers.
template <int N>
__device__ inline void add_products(real (&sums)[N][FILTERS], int f, const real *pixels, float4 v)
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        sums[i][f] += pixels[i] * v.x;
        sums[i][f + 1] += pixels[i] * v.y;
        sums[i][f + 2] += pixels[i] * v.z;
        sums[i][f + 3] += pixels[i] * v.w;
    }
}

// Starts to copy the block's filters in the order (row, channel, column, filter), zeros for those that there are not.
__device__ inline void load_weights(AsyncCopies &copies, const Window &w, int filters, int first_filter, bool turned,
                                    const real *V, real *weights)
{
    const int places = w.rows * COLUMNS, K = places * w.channels, here = min(FILTERS, filters - first_filter);
    for (int i = threadIdx.x; i < K * FILTERS; i += blockDim.x) {
        const int f = i % FILTERS, k = i / FILTERS;  // neighbours read neighbours where the filters are turned
        const int place = k / w.channels, channel = k - place * w.channels;
        const int row = place / COLUMNS, column = place - row * COLUMNS;
        const real *from = V;
        if (f < here)
            from += turned ? ((offset)channel * places + places - 1 - place) * filters + first_filter + f
                           : (offset)(first_filter + f) * K + k;
        copies.start<4>(weights + ((row * w.channels + channel) * COLUMNS + column) * FILTERS + f, from, f < here);
    }
}

// Where results go: to Y and, where `components` is not null, as bf16 components too, `terms` (at most 3) matrices,
// `distance` elements from one to the next; filters are then a multiple of 2.
struct Output {
    int filters;
    const real *bias;
    real *Y;
    bfloat16 *components;
    int terms, distance;
};

// Adds up what the parts have of a tile, and stores the results, V filters of a window at a time: one, or two with
// their components. A row of results is `padded` windows in shared memory; a part's are `part_size` numbers.
template <int V>
__device__ inline void store_results(const Output &output, const Tile &tile, int width, int first_filter, int padded,
                                     int parts, int part_size, const real *results)
{
    const int filters = output.filters, across = min(FILTERS, filters - first_filter) / V;
    const Line line(width * across);
    for (int j = line.first; j < line.size; j += line.span) {
        const int window = j / across, f = (j - window * across) * V;
        Reals<V> start = {};
        if (output.bias)
#pragma unroll
            for (int v = 0; v < V; v++)
                start.of[v] = output.bias[first_filter + f + v];
        const real *from = results + (line.row * padded + window) * FILTERS + f;
        offset place = ((tile.first_line + line.row) * width + window) * filters + first_filter + f;
#pragma unroll 1
        for (int row = line.row; row < tile.lines(); row += line.step) {
            Reals<V> sums = start;
            for (int one = 0; one < parts; one++) {
                const Reals<V> sum = *(const Reals<V> *)(from + one * part_size);
#pragma unroll
                for (int v = 0; v < V; v++)
                    sums.of[v] += sum.of[v];
            }
#pragma unroll
            for (int v = 0; v < V; v++)
                sums.of[v] = ACTIVATE(sums.of[v]);
            *(Reals<V> *)(output.Y + place) = sums;
            if constexpr (V > 1)
                split_neighbours(sums.of, output.terms, output.components + place, output.distance);
            from += line.step * padded * FILTERS;
            place += line.step * width * filters;
        }
    }
}

// Block: `parts` groups of threads, a part of the channels each; in a group one for each segment of a tile, ACROSS
// windows of a row, and a multiple of the segments of a row; up to 256 threads, 192 where two blocks are to find
// registers. Dynamic shared memory: K * FILTERS weights; ACROSS * FILTERS sums of each thread, where parts meet and
// neighbours write neighbours; the planes.
extern "C" __global__ void __launch_bounds__(256)
sliding_forward(int samples, int height, int width, int channels, int rows, int columns, int stride, int top, int left,
                int out_height, int out_width, int images, int band, int pitch, int filters, int parts, int turned,
                const real *X, const real *V, const real *bias, real *Y, bfloat16 *components, int terms,
                int distance)
{
    extern __shared__ __align__(16) real weights[];
    wait_for_previous_kernel();
    const Tiles tiles = {{height, width, channels, rows, columns, stride, top, left, out_height, out_width},
                         samples, images, band, pitch};
    const Output output = {filters, bias, Y, components, terms, distance};
    const int first_filter = blockIdx.y * FILTERS;
    real *results = weights + rows * COLUMNS * channels * FILTERS;
    real *planes = results + blockDim.x * (ACROSS * FILTERS);
    clear(planes, images * tiles.image());
    AsyncCopies copies;
    load_weights(copies, tiles.w, filters, first_filter, turned, V, weights);

    const int count = tiles.count(), segments = tiles.segments(), padded = segments * ACROSS;
    const int group = blockDim.x / parts, part = threadIdx.x / group, thread = threadIdx.x - part * group;
    const int own = thread / segments, x = (thread - own * segments) * ACROSS;
    const int first_channel = channels * part / parts, last_channel = channels * (part + 1) / parts;
    for (int number = blockIdx.x; number < count; number += gridDim.x) {
        const Tile tile(tiles, number);
        __syncthreads();
        load_pixels(copies, tiles, tile, X, planes);
        copies.end_group();
        copies.wait<0>();
        __syncthreads();
        if (own < tile.lines()) {
            real sums[ACROSS][FILTERS] = {};
            const int image = own / tile.rows, first_y = tile.row + own - image * tile.rows - top;
            const real *plane =
                planes + image * tiles.image() + first_channel * tiles.plane() + (first_y - tile.top) * pitch + x;
            // The rows of the window that are in the image.
            const int end = min(rows, height - first_y);
#pragma unroll 1
            for (int r = max(0, -first_y); r < end; r++) {
                const real *pixel = plane + r * pitch;
                const float4 *next =
                    (const float4 *)weights + (r * channels + first_channel) * (COLUMNS * FILTERS / 4);
#pragma unroll 1
                for (int c = first_channel; c < last_channel; c++, pixel += tiles.plane()) {
                    real pixels[PIXELS];
#pragma unroll
                    for (int i = 0; i < PIXELS; i++)
                        pixels[i] = pixel[i];
#pragma unroll
                    for (int column = 0; column < COLUMNS; column++)
#pragma unroll
                        for (int f = 0; f < FILTERS; f += 4)
                            add_products<ACROSS>(sums, f, pixels + column, *next++);
                }
            }
            float4 *to = (float4 *)(results + threadIdx.x * (ACROSS * FILTERS));
#pragma unroll
            for (int i = 0; i < ACROSS; i++)
#pragma unroll
                for (int f = 0; f < FILTERS; f += 4)
                    *to++ = {sums[i][f], sums[i][f + 1], sums[i][f + 2], sums[i][f + 3]};
        }
        __syncthreads();
        if (components)
            store_results<2>(output, tile, out_width, first_filter, padded, parts, group * ACROSS * FILTERS, results);
        else
            store_results<1>(output, tile, out_width, first_filter, padded, parts, group * ACROSS * FILTERS, results);
    }
}

// Starts to copy the gradients of a tile's outputs, V filters at once.
template <int V>
__device__ inline void load_gradients(AsyncCopies &copies, const Tiles &tiles, const Tile &tile, int filters,
                                      int first_filter, const real *dY, real *gradients)
{
    const int across = min(FILTERS, filters - first_filter) / V, padded = tiles.segments() * ACROSS;
    const int width = tiles.w.out_width;
    const Line line(width * across);
    const int from_step = line.step * width * filters, to_step = line.step * padded * FILTERS;
    for (int j = line.first; j < line.size; j += line.span) {
        const int window = j / across, f = (j - window * across) * V;
        const real *from = dY + ((tile.first_line + line.row) * width + window) * filters + first_filter + f;
        real *to = gradients + (line.row * padded + window) * FILTERS + f;
        for (int row = line.row; row < tile.lines(); row += line.step) {
            copies.start<4 * V>(to, from, V);
            from += from_step;
            to += to_step;
        }
    }
}

// Block of any number of threads, a multiple of 32 up to 256; of them `slices` groups, each of a thread for each row
// and channel of a window, share the segments of a tile. A thread makes COLUMNS x FILTERS sums. Dynamic shared memory:
// the gradients of a tile, ACROSS * FILTERS numbers a segment, then the planes; used again for the slices to meet:
// COLUMNS * FILTERS numbers a thread. Each block leaves its sums in its row of partials, filters * K long.
extern "C" __global__ void __launch_bounds__(256, 2)
sliding_filters(int samples, int height, int width, int channels, int rows, int columns, int stride, int top, int left,
                int out_height, int out_width, int images, int band, int pitch, int filters, int slices,
                const real *X, const real *dY, real *partials)
{
    extern __shared__ __align__(16) real gradients[];
    wait_for_previous_kernel();
    const Tiles tiles = {{height, width, channels, rows, columns, stride, top, left, out_height, out_width},
                         samples, images, band, pitch};
    const int segments = tiles.segments(), padded = segments * ACROSS;
    const int first_filter = blockIdx.y * FILTERS, here = min(FILTERS, filters - first_filter);
    const int each = rows * channels, slice = threadIdx.x / each, own = threadIdx.x - slice * each;
    const int r = own / channels, channel = own - r * channels;
    real *planes = gradients + images * band * padded * FILTERS;
    clear(gradients, images * (band * padded * FILTERS + tiles.image()));
    AsyncCopies copies;
    const int count = tiles.count();

    real sums[COLUMNS][FILTERS] = {};
    for (int number = blockIdx.x; number < count; number += gridDim.x) {
        const Tile tile(tiles, number);
        __syncthreads();
        load_pixels(copies, tiles, tile, X, planes);
        if (filters % 4 == 0 && here % 4 == 0)
            load_gradients<4>(copies, tiles, tile, filters, first_filter, dY, gradients);
        else if (filters % 2 == 0)
            load_gradients<2>(copies, tiles, tile, filters, first_filter, dY, gradients);
        else
            load_gradients<1>(copies, tiles, tile, filters, first_filter, dY, gradients);
        copies.end_group();
        copies.wait<0>();
        __syncthreads();
        if (slice < slices)
            for (int i = slice; i < tile.lines() * segments; i += slices) {
                const int row = i / segments, x = (i - row * segments) * ACROSS;
                const int image = row / tile.rows, y = row - image * tile.rows;
                const int pixel_y = tile.row + y + r - top;
                if (pixel_y < 0 || pixel_y >= height)
                    continue;
                const real *pixel = planes + image * tiles.image() + channel * tiles.plane() +
                                    (pixel_y - tile.top) * pitch + x;
                const float4 *next = (const float4 *)gradients + i * (ACROSS * FILTERS / 4);
                real pixels[PIXELS];
#pragma unroll
                for (int j = 0; j < PIXELS; j++)
                    pixels[j] = pixel[j];
#pragma unroll
                for (int j = 0; j < ACROSS; j++)
#pragma unroll
                    for (int f = 0; f < FILTERS; f += 4)
                        add_products<COLUMNS>(sums, f, pixels + j, *next++);
            }
    }
    __syncthreads();
    real *meeting = gradients;
#pragma unroll
    for (int column = 0; column < COLUMNS; column++)
#pragma unroll
        for (int f = 0; f < FILTERS; f++)
            meeting[(column * FILTERS + f) * blockDim.x + threadIdx.x] = sums[column][f];
    __syncthreads();
    const int K = each * COLUMNS;
    for (int i = threadIdx.x; i < here * K; i += blockDim.x) {
        const int f = i / K, k = i - f * K, c = k % channels, place = k / channels;
        const int row = place / COLUMNS, column = place - row * COLUMNS;
        const real *from = meeting + (column * FILTERS + f) * blockDim.x + row * channels + c;
        real sum = 0;
        for (int one = 0; one < slices; one++)
            sum += from[one * each];
        partials[((offset)blockIdx.x * filters + first_filter + f) * K + k] = sum;
    }
}
