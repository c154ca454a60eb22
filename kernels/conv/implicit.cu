// Convolution as a product on the tensor cores of sm_90 whose matrix of windows (im2col.cu) is never built: the
// tensor memory accelerator gathers its tiles from the images, pixel by pixel, with zeros outside.
// architectures: sm_90a
// constants: REAL=float NUMBER=bfloat16 TRANSPOSE_A=0 TRANSPOSE_B=1 COMPONENTS=11|22|33 ACTIVATION=identity|sigmoid|tanh|relu
// constants: REAL=float NUMBER=bfloat16 TRANSPOSE_A=1 TRANSPOSE_B=0 COMPONENTS=11|22|33 ACTIVATION=identity
//
// Operands are bf16 components, and sums are made, as in gemm/wgmma.cu. With P, W, Z as in im2col.cu:
// - TRANSPOSE_A=0: Z = f(P W^T + bias), a row a window, a column a filter. The gradient of the images is such a
//   product too, of windows on dZ and of the filters turned around (flip.cu), for a stride of 1.
// - TRANSPOSE_A=1: dW = dZ^T P, a row a filter.
//
// A place is a row and a column in the window; P has the channels of each place side by side. k goes along the
// channels of a place, 64 at a time, then to the next place; what is beyond the last channel is zero. Where no
// window is beyond the image at its sides, the columns of a row of the window lie side by side in memory: they
// can count as one place with more channels (`width` = columns * channels), so that fewer zeros are multiplied.

#include "gemm/wgmma_tiles.cuh"

// The windows of a convolution; `map` is how the tensor memory accelerator finds their pixels.
struct Windows {
    const WindowMap *map;
    int samples, out_height, out_width, step, top, left;
    int columns;  // places in a row of a window

    // The tile of windows from `window` on: `channels` from the first one on, of each component.
    template <int COMPONENTS_OF_IT>
    __device__ void fetch(number *tile, int component_size, int window, int place, int channel,
                          Barrier *barrier) const
    {
        const int n = window / (out_height * out_width), rest = window - n * out_height * out_width;
        const int y = rest / out_width, x = rest - y * out_width;
        for (int i = 0; i < COMPONENTS_OF_IT; i++)
            copy_windows(tile + i * component_size, map, channel, x * step - left, y * step - top,
                         n + i * samples, place % columns, place / columns, barrier);
    }
};

// P W^T: tiles of windows from m on and of filters from n on. The matrix has a row a filter, z counts places.
struct ForwardTiles {
    static const int WIDTH = 128;
    Windows windows;
    const TensorMap *filters;
    int m, n, chunks;  // tiles that the channels of a place take

    __device__ void prefetch() const
    {
        prefetch_map(windows.map);
        prefetch_map(filters);
    }

    template <int BM, int BN>
    __device__ void fetch(number *a, number *b, int tile, Barrier *barrier) const
    {
        const int place = tile / chunks, channel = (tile - place * chunks) * DEPTH;
        windows.fetch<COMPONENTS_A>(a, BM * DEPTH, m, place, channel, barrier);
        copy_box(b, filters, channel, n, place, barrier);
    }
};

// dZ^T P: tiles of filters from m on, and of channels from n on of one place; k counts windows.
struct FilterTiles {
    static const int WIDTH = 128;
    Windows windows;
    const TensorMap *gradients;
    int m, n, place;

    __device__ void prefetch() const
    {
        prefetch_map(windows.map);
        prefetch_map(gradients);
    }

    template <int BM, int BN>
    __device__ void fetch(number *a, number *b, int tile, Barrier *barrier) const
    {
        copy_box(a, gradients, 0, tile * DEPTH, m / 64, barrier);
        for (int part = 0; part < BN / 64; part++)
            windows.fetch<COMPONENTS_B>(b + part * 64 * DEPTH, BN * DEPTH, tile * DEPTH, place, n + part * 64,
                                        barrier);
    }
};

// A result whose components, as many as its operands have, are left beside it if `components` is not null: packed
// matrices, `distance` elements from one to the next. A row is a multiple of 2 then.
struct Images : Result {
    bfloat16 *components;
    int distance;
};

__device__ inline void store_more(const Images &images, int m, int n, float2 pair)
{
    if (images.components && images.has(m, n))
        split_pair(pair.x, pair.y, COMPONENTS_A, images.components + (offset)m * images.N + n, images.distance);
}

// The grid's x counts tiles down D, y across (dW: of each place by itself), z parts of k.
template <int GROUPS, int BN>
__device__ inline void convolve(const Windows &windows, const TensorMap *matrix, int depth, int width, int stages,
                                const Parts &parts, bool starts_early, Images result)
{
    const int m = blockIdx.x * 64 * GROUPS;
    if constexpr (TRANSPOSE_A) {
        const int across = (width + BN - 1) / BN, place = blockIdx.y / across;
        const int n = (blockIdx.y - place * across) * BN;
        result.D += place * width;
        result.C += result.beta != 0 ? place * width : 0;
        result.N = width;
        const FilterTiles tiles = {windows, matrix, m, n, place};
        multiply_and_store<GROUPS, BN>(tiles, m, n, depth, stages, parts, starts_early, (const Result &)result);
    } else {
        const int n = blockIdx.y * BN;
        const ForwardTiles tiles = {windows, matrix, m, n, (width + DEPTH - 1) / DEPTH};
        multiply_and_store<GROUPS, BN>(tiles, m, n, depth, stages, parts, starts_early, result);
    }
}

extern "C" __global__ void __launch_bounds__(256)
convolve_64x64(int M, int N, int depth, const WindowMap *map, const TensorMap *matrix, int samples, int out_height,
               int out_width, int step, int top, int left, int columns, int width, int stages, float4 *sums,
               int *done, int starts_early, real alpha, real beta, const real *C, int ldc, const real *bias,
               real *D, int ldd, bfloat16 *components, int distance)
{
    start_beside_previous_kernel(starts_early);
    const Windows windows = {map, samples, out_height, out_width, step, top, left, columns};
    convolve<1, 64>(windows, matrix, depth, width, stages, {sums, done}, starts_early,
                     {{M, N, alpha, beta, C, bias, D, ldc, ldd}, components, distance});
}

extern "C" __global__ void __launch_bounds__(384, RESIDENT<2, 64>)
convolve_128x64(int M, int N, int depth, const WindowMap *map, const TensorMap *matrix, int samples, int out_height,
                int out_width, int step, int top, int left, int columns, int width, int stages, float4 *sums,
                int *done, int starts_early, real alpha, real beta, const real *C, int ldc, const real *bias,
                real *D, int ldd, bfloat16 *components, int distance)
{
    start_beside_previous_kernel(starts_early);
    const Windows windows = {map, samples, out_height, out_width, step, top, left, columns};
    convolve<2, 64>(windows, matrix, depth, width, stages, {sums, done}, starts_early,
                     {{M, N, alpha, beta, C, bias, D, ldc, ldd}, components, distance});
}

extern "C" __global__ void __launch_bounds__(512, 1)
convolve_192x64(int M, int N, int depth, const WindowMap *map, const TensorMap *matrix, int samples, int out_height,
                int out_width, int step, int top, int left, int columns, int width, int stages, float4 *sums,
                int *done, int starts_early, real alpha, real beta, const real *C, int ldc, const real *bias,
                real *D, int ldd, bfloat16 *components, int distance)
{
    start_beside_previous_kernel(starts_early);
    const Windows windows = {map, samples, out_height, out_width, step, top, left, columns};
    convolve<3, 64>(windows, matrix, depth, width, stages, {sums, done}, starts_early,
                     {{M, N, alpha, beta, C, bias, D, ldc, ldd}, components, distance});
}

extern "C" __global__ void __launch_bounds__(256)
convolve_64x128(int M, int N, int depth, const WindowMap *map, const TensorMap *matrix, int samples, int out_height,
                int out_width, int step, int top, int left, int columns, int width, int stages, float4 *sums,
                int *done, int starts_early, real alpha, real beta, const real *C, int ldc, const real *bias,
                real *D, int ldd, bfloat16 *components, int distance)
{
    start_beside_previous_kernel(starts_early);
    const Windows windows = {map, samples, out_height, out_width, step, top, left, columns};
    convolve<1, 128>(windows, matrix, depth, width, stages, {sums, done}, starts_early,
                     {{M, N, alpha, beta, C, bias, D, ldc, ldd}, components, distance});
}

extern "C" __global__ void __launch_bounds__(384, 1)
convolve_128x128(int M, int N, int depth, const WindowMap *map, const TensorMap *matrix, int samples, int out_height,
                 int out_width, int step, int top, int left, int columns, int width, int stages, float4 *sums,
                 int *done, int starts_early, real alpha, real beta, const real *C, int ldc, const real *bias,
                 real *D, int ldd, bfloat16 *components, int distance)
{
    start_beside_previous_kernel(starts_early);
    const Windows windows = {map, samples, out_height, out_width, step, top, left, columns};
    convolve<2, 128>(windows, matrix, depth, width, stages, {sums, done}, starts_early,
                     {{M, N, alpha, beta, C, bias, D, ldc, ldd}, components, distance});
}

// For single components alone, as in gemm/wgmma.cu.
template <bool SINGLE>
__device__ inline void convolve_wide(const Windows &windows, const TensorMap *matrix, int depth, int width,
                                     int stages, const Parts &parts, bool starts_early, const Images &result)
{
    if constexpr (SINGLE)
        convolve<2, 256>(windows, matrix, depth, width, stages, parts, starts_early, result);
}

extern "C" __global__ void __launch_bounds__(384, 1)
convolve_128x256(int M, int N, int depth, const WindowMap *map, const TensorMap *matrix, int samples, int out_height,
                 int out_width, int step, int top, int left, int columns, int width, int stages, float4 *sums,
                 int *done, int starts_early, real alpha, real beta, const real *C, int ldc, const real *bias,
                 real *D, int ldd, bfloat16 *components, int distance)
{
    start_beside_previous_kernel(starts_early);
    const Windows windows = {map, samples, out_height, out_width, step, top, left, columns};
    convolve_wide<COMPONENTS == 11>(windows, matrix, depth, width, stages, {sums, done}, starts_early,
                     {{M, N, alpha, beta, C, bias, D, ldc, ldd}, components, distance});
}
