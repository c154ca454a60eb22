// Convolution from shared memory: a tile of the image with its halo, and some channels of the filters.
// constants: REAL=float|double
//
// With A, W, Z as in direct.cu. What a block needs again and again it copies into shared memory, some
// channels at a time: the pixels that its windows see (windows lie over each other, so the tile of pixels has
// a border more than that of results: its halo), and the filters. A thread makes EACH x EACH results, so that
// what it reads from shared memory it uses EACH times.
//
// All: blocks of `lanes` x `groups` threads, 256 at most; grid of one dimension, a block for each tile.
// nn/launch/conv/shared.py chooses tiles and counts the shared memory that a launch gives. Each sum is added
// up in an order that only the sizes decide.

#include "conv/window.cuh"

const int EACH = 4;

// The shared memory of the launch: it holds the pixels of a patch, and behind them weights or gradients.
__device__ inline real *shared_memory()
{
    extern __shared__ __align__(16) real shared[];
    return shared;
}

__device__ inline int thread_of_block() { return threadIdx.y * blockDim.x + threadIdx.x; }
__device__ inline int threads_of_block() { return blockDim.y * blockDim.x; }

__device__ inline int parts_of(int size, int part) { return (size + part - 1) / part; }

// One sample: (height, width, channels).
struct Image {
    const real *pixels;
    int height, width, channels;
};

// A part of an image in shared memory: `rows` x `columns` pixels from (y, x) on, so many channels of each.
// Beyond the image it has zeros.
struct Patch {
    int rows, columns;
    int pitch;  // elements from a pixel to the next: odd, so that neighbours lie in different banks

    __device__ Patch(int rows, int columns, int most_channels)
        : rows(rows), columns(columns), pitch(most_channels | 1)
    {
    }
    __device__ int at(int row, int column) const { return (row * columns + column) * pitch; }
    __device__ int size() const { return rows * columns * pitch; }

    __device__ void load(real *to, const Image &image, int y, int x, int first_channel, int channels) const
    {
        for (int i = thread_of_block(); i < rows * columns * channels; i += threads_of_block()) {
            const int k = i % channels, pixel = i / channels;
            const int v = y + pixel / columns, u = x + pixel % columns, channel = first_channel + k;
            const bool inside =
                0 <= v && v < image.height && 0 <= u && u < image.width && channel < image.channels;
            to[pixel * pitch + k] =
                inside ? image.pixels[((offset)v * image.width + u) * image.channels + channel] : 0;
        }
    }
};

// ---------------------------------------------------------------------------------------------------------
// Forward and to the input are one sum, of a `source` and of taps of the filters:
//   result[a, b, j] = sum over t, u, k of source[a step + y + t, b step + x + u, k] weight[t, u, k, j]
// ---------------------------------------------------------------------------------------------------------

struct Taps {
    const real *weights;  // where t, u, k and j are 0
    int rows, columns, channels, results;
    offset by_row, by_column, by_channel, by_result;  // elements from one to the next; may be negative

    // Copy so many channels of `width` results as [t][u][k][j]; a line has an element more, for the banks.
    __device__ void load(real *to, int first_channel, int count, int first_result, int width) const
    {
        for (int i = thread_of_block(); i < rows * columns * count * width; i += threads_of_block()) {
            // Neighbouring threads read what lies side by side in memory: results or channels.
            const int tap = i / count / width, rest = i - tap * count * width;
            const int k = by_result == 1 ? rest / width : rest % count;
            const int j = by_result == 1 ? rest % width : rest / count;
            const offset weight = tap / columns * by_row + tap % columns * by_column +
                                  (first_channel + k) * by_channel + (first_result + j) * by_result;
            to[(tap * count + k) * (width + 1) + j] = first_result + j < results ? weights[weight] : 0;
        }
    }
};

// The tile of results of a block, and how many channels it has in shared memory at a time.
struct Tile {
    int rows, columns, channels;
};

// Where the results are in memory.
struct Results {
    real *values;
    int rows, columns;
    offset by_row, by_column;
};

// `block` has the tile's place, and in `channel` which results it takes.
__device__ inline void convolve(const Image &source, const Taps &taps, const Results &results, const Tile &tile,
                                const Place &block, int step, int y, int x)
{
    const int lanes = blockDim.x, groups = blockDim.y, lane = threadIdx.x, group = threadIdx.y;
    const int width = EACH * lanes, first_result = block.channel * width;
    const int first_a = block.y * tile.rows, first_b = block.x * tile.columns;
    const Patch patch((tile.rows - 1) * step + taps.rows, (tile.columns - 1) * step + taps.columns, tile.channels);
    real *pixels = shared_memory(), *weights = pixels + patch.size();

    int places[EACH];  // of the thread's windows in the patch
    for (int i = 0; i < EACH; i++) {
        const int p = min(group + i * groups, tile.rows * tile.columns - 1);
        places[i] = patch.at(p / tile.columns * step, p % tile.columns * step);
    }
    real sums[EACH][EACH] = {};
    for (int first = 0; first < taps.channels; first += tile.channels) {
        const int count = min(tile.channels, taps.channels - first);
        patch.load(pixels, source, first_a * step + y, first_b * step + x, first, count);
        taps.load(weights, first, count, first_result, width);
        __syncthreads();
        for (int t = 0; t < taps.rows; t++)
            for (int u = 0; u < taps.columns; u++) {
                const real *pixel = pixels + patch.at(t, u);
                const real *weight = weights + (t * taps.columns + u) * count * (width + 1) + lane;
                for (int k = 0; k < count; k++, pixel++, weight += width + 1) {
                    real mine[EACH], w[EACH];
#pragma unroll
                    for (int i = 0; i < EACH; i++) {
                        mine[i] = pixel[places[i]];
                        w[i] = weight[i * lanes];
                    }
#pragma unroll
                    for (int i = 0; i < EACH; i++)
#pragma unroll
                        for (int j = 0; j < EACH; j++)
                            sums[i][j] += mine[i] * w[j];
                }
            }
        __syncthreads();  // nobody copies to where others still read
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int p = group + i * groups, a = first_a + p / tile.columns, b = first_b + p % tile.columns;
        if (p >= tile.rows * tile.columns || a >= results.rows || b >= results.columns)
            continue;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int result = first_result + lane + j * lanes;
            if (result < taps.results)
                results.values[a * results.by_row + b * results.by_column + result] = sums[i][j];
        }
    }
}

// Shared memory: the patch of a tile's windows, and a weight for each tap, channel of the tile and result.
// The source is the image, as it is.
extern "C" __global__ void __launch_bounds__(256)
shared_forward(int samples, int height, int width, int channels, int rows, int columns, int stride, int top,
               int left, int out_height, int out_width, int filters, const real *A, const real *W, real *Z,
               int tile_rows, int tile_columns, int tile_channels)
{
    wait_for_previous_kernel();
    const Window w = {height, width, channels, rows, columns, stride, top, left, out_height, out_width};
    const Place block((offset)blockIdx.x, parts_of(out_height, tile_rows), parts_of(out_width, tile_columns),
                      parts_of(filters, EACH * blockDim.x));
    const offset filter = (offset)rows * columns * channels;
    const Image image = {A + block.n * w.image(), height, width, channels};
    const Taps taps = {W, rows, columns, channels, filters, (offset)columns * channels, channels, 1, filter};
    const Results results = {Z + block.n * w.output(filters), out_height, out_width,
                             (offset)out_width * filters, filters};
    convolve(image, taps, results, {tile_rows, tile_columns, tile_channels}, block, stride, -top, -left);
}

// Shared memory: as forward. The source is dZ. Pixel (u, v) gets something from window (y, x) through weight
// (u + top - y stride, v + left - x stride). So all pixels of one phase (u mod stride, v mod stride) have the
// same weights, every stride-th one; and from pixel to pixel of a phase the windows move on by one. That is
// a convolution with stride 1 and the filters backwards, for each phase.
extern "C" __global__ void __launch_bounds__(256)
shared_input(int samples, int height, int width, int channels, int rows, int columns, int stride, int top,
             int left, int out_height, int out_width, int filters, const real *dZ, const real *W, real *dA,
             int tile_rows, int tile_columns, int tile_channels)
{
    wait_for_previous_kernel();
    const Window w = {height, width, channels, rows, columns, stride, top, left, out_height, out_width};
    Place block((offset)blockIdx.x, parts_of(parts_of(height, stride), tile_rows),
                parts_of(parts_of(width, stride), tile_columns), parts_of(channels, EACH * blockDim.x));
    const int phases_down = min(stride, height), phases_across = min(stride, width);
    const int phase_y = block.n % phases_down, phase_x = block.n / phases_down % phases_across;
    block.n /= phases_down * phases_across;

    // The phase's weights in a row of the filter are first_r, first_r + stride, ...: `taps_down`, perhaps none.
    const int first_r = (phase_y + top) % stride, first_c = (phase_x + left) % stride;
    const int taps_down = parts_of(max(0, rows - first_r), stride);
    const int taps_across = parts_of(max(0, columns - first_c), stride);
    const offset last = ((offset)(first_r + (taps_down - 1) * stride) * columns + first_c +
                         (taps_across - 1) * stride) * channels;
    const Taps taps = {W + last,
                       taps_down,
                       taps_across,
                       filters,
                       channels,
                       -(offset)stride * columns * channels,
                       -(offset)stride * channels,
                       (offset)rows * columns * channels,
                       1};
    const Image gradients = {dZ + block.n * w.output(filters), out_height, out_width, filters};
    const Results results = {dA + block.n * w.image() + ((offset)phase_y * width + phase_x) * channels,
                             parts_of(height - phase_y, stride), parts_of(width - phase_x, stride),
                             (offset)stride * width * channels, (offset)stride * channels};
    convolve(gradients, taps, results, {tile_rows, tile_columns, tile_channels}, block, 1,
             (phase_y + top) / stride - (taps_down - 1), (phase_x + left) / stride - (taps_across - 1));
}

// Shared memory: the patch of a tile's windows, and the gradients of the tile's outputs, EACH lanes filters
// of them. A block makes the weights of these filters and of some channels at EACH groups places of the
// window, and takes one of `chunks` of all tiles. The sum of each tile is added up by itself, then those of
// the block's tiles, and those of all chunks by column sums behind this kernel: long sums round little.
// `partials` is (chunks, filters rows columns channels).
extern "C" __global__ void __launch_bounds__(256)
shared_filters(int samples, int height, int width, int channels, int rows, int columns, int stride, int top,
               int left, int out_height, int out_width, int filters, const real *A, const real *dZ,
               real *partials, int tile_rows, int tile_columns, int tile_channels, int chunks)
{
    wait_for_previous_kernel();
    const Window w = {height, width, channels, rows, columns, stride, top, left, out_height, out_width};
    const int lanes = blockDim.x, groups = blockDim.y, lane = threadIdx.x, group = threadIdx.y;
    const Place block((offset)blockIdx.x, parts_of(rows * columns * tile_channels, EACH * groups),
                      parts_of(channels, tile_channels), parts_of(filters, EACH * lanes));
    const int first_filter = block.channel * EACH * lanes, first_channel = block.x * tile_channels;
    const int count = min(tile_channels, channels - first_channel);
    const Patch patch((tile_rows - 1) * stride + rows, (tile_columns - 1) * stride + columns, tile_channels);
    const Patch out(tile_rows, tile_columns, EACH * lanes);
    real *pixels = shared_memory(), *gradients = pixels + patch.size();

    int weights[EACH], places[EACH];  // of the thread's weights: where in a filter, and in the patch
    for (int i = 0; i < EACH; i++) {
        const int q = (block.y * EACH + i) * groups + group, tap = q / count, k = q % count;
        const bool inside = tap < rows * columns;
        weights[i] = inside ? tap * channels + first_channel + k : -1;
        places[i] = inside ? patch.at(tap / columns, tap % columns) + k : 0;
    }
    const int down = parts_of(out_height, tile_rows), across = parts_of(out_width, tile_columns);
    const offset tiles = (offset)samples * down * across;
    real totals[EACH][EACH] = {};
    for (offset i = tiles * block.n / chunks; i < tiles * (block.n + 1) / chunks; i++) {
        const Place at(i, down, across, 1);
        const int first_y = at.y * tile_rows, first_x = at.x * tile_columns;
        const Image image = {A + at.n * w.image(), height, width, channels};
        const Image outputs = {dZ + at.n * w.output(filters), out_height, out_width, filters};
        patch.load(pixels, image, w.pixel_y(first_y, 0), w.pixel_x(first_x, 0), first_channel, count);
        out.load(gradients, outputs, first_y, first_x, first_filter, EACH * lanes);
        __syncthreads();
        real sums[EACH][EACH] = {};
        for (int y = 0; y < min(tile_rows, out_height - first_y); y++)
            for (int x = 0; x < min(tile_columns, out_width - first_x); x++) {
                const real *pixel = pixels + patch.at(y * stride, x * stride);
                const real *gradient = gradients + out.at(y, x) + lane;
                real mine[EACH], g[EACH];
#pragma unroll
                for (int i = 0; i < EACH; i++) {
                    mine[i] = pixel[places[i]];
                    g[i] = gradient[i * lanes];
                }
#pragma unroll
                for (int i = 0; i < EACH; i++)
#pragma unroll
                    for (int j = 0; j < EACH; j++)
                        sums[i][j] += mine[i] * g[j];
            }
#pragma unroll
        for (int i = 0; i < EACH; i++)
#pragma unroll
            for (int j = 0; j < EACH; j++)
                totals[i][j] += sums[i][j];
        __syncthreads();  // nobody copies to where others still read
    }
    const int filter = rows * columns * channels;
#pragma unroll
    for (int i = 0; i < EACH; i++)
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int f = first_filter + lane + j * lanes;
            if (weights[i] >= 0 && f < filters)
                partials[((offset)block.n * filters + f) * filter + weights[i]] = totals[i][j];
        }
}
