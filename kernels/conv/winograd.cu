// Convolution of 3 x 3 windows at stride 1 with fewer multiplications (Winograd 1980; Lavin and Gray, "Fast
// algorithms for convolutional neural networks", 2015): the transforms before and after the matrix products.
// constants: REAL=float|double TILE=2|4
//
// Results are made in tiles of OUT x OUT. A tile sees IN x IN pixels d; with a filter g of 3 x 3
//   tile = A^T [(G g G^T) * (B^T d B)] A        * element by element
// Each of the IN x IN products is summed over channels. So there is one matrix product for each place,
//   M[place] = V[place] U[place]^T     V = B^T d B (tiles x channels)   U = G g G^T (filters x channels)
// The formula is linear in tile, g and d. So the gradient of g has the same three matrices:
//   dg = G^T [(A dtile A^T) * (B^T d B)] G      summed over tiles: dU[place] = S[place]^T V[place]
// The gradient of d is a convolution again, of dZ with the filters turned around.
//
// A, W and Z as in direct.cu; tiles in the order (sample, row, column). Transformed arrays are IN x IN matrices,
// one below the other. What lies outside an image is 0, what lies outside the results is not written.
//
// All: blocks and grid of one dimension, any number of threads, no shared memory. A thread transforms a tile of a
// channel, or of two, or a filter's 3 x 3 weights of a channel, and takes them a whole grid apart. Neighbouring threads are
// neighbouring columns of the matrices. Of a place there are fewer than 2^31 numbers.

#include "bfloat16.cuh"
#include "conv/window.cuh"

const int OUT = TILE, IN = TILE + 2, SIDE = 3;

// From the values of polynomials at the points 0, 1, -1 (and 2, -2) and infinity: docs/explain/convolution.md.
#if TILE == 2
__device__ constexpr real B_T[IN][IN] = {{1, 0, -1, 0}, {0, 1, 1, 0}, {0, -1, 1, 0}, {0, -1, 0, 1}};
__device__ constexpr real G[IN][SIDE] = {{1, 0, 0}, {0.5, 0.5, 0.5}, {0.5, -0.5, 0.5}, {0, 0, 1}};
__device__ constexpr real A_T[OUT][IN] = {{1, 1, 1, 0}, {0, 1, -1, 1}};
#else
__device__ constexpr real B_T[IN][IN] = {{4, 0, -5, 0, 1, 0},  {0, -4, -4, 1, 1, 0}, {0, 4, -4, -1, 1, 0},
                                         {0, -2, -1, 2, 1, 0}, {0, 2, -1, -2, 1, 0}, {0, 4, 0, -5, 0, 1}};
__device__ constexpr real G[IN][SIDE] = {{real(1) / 4, 0, 0},
                                         {real(-1) / 6, real(-1) / 6, real(-1) / 6},
                                         {real(-1) / 6, real(1) / 6, real(-1) / 6},
                                         {real(1) / 24, real(1) / 12, real(1) / 6},
                                         {real(1) / 24, real(-1) / 12, real(1) / 6},
                                         {0, 0, 1}};
__device__ constexpr real A_T[OUT][IN] = {
    {1, 1, 1, 1, 1, 0}, {0, 1, -1, 2, -2, 0}, {0, 1, 1, 4, 4, 0}, {0, 1, -1, 8, -8, 1}};
#endif

// The same number of N neighbouring channels, which a thread reads and writes at once.
template <int N>
struct alignas(N * sizeof(real)) Channels {
    real of[N];

    __device__ void add(real factor, const Channels &x)
    {
#pragma unroll
        for (int n = 0; n < N; n++)
            of[n] += factor * x.of[n];
    }
};

template <int N>
__device__ inline Channels<N> read(const real *place, bool inside)
{
    return inside ? *(const Channels<N> *)place : Channels<N>{};
}

// Gives `store` the elements of T x T^T, T (TO x FROM), row by row. The loops are unrolled: nothing is multiplied
// by a zero of T, and x stays in registers.
template <int TO, int FROM, int N, class Matrix, class Store>
__device__ inline void transform(const Matrix &T, const Channels<N> (&x)[FROM][FROM], const Store &store)
{
#pragma unroll
    for (int i = 0; i < TO; i++) {
        Channels<N> row[FROM] = {};
#pragma unroll
        for (int j = 0; j < FROM; j++) {
#pragma unroll
            for (int k = 0; k < FROM; k++)
                if (T(i, k) != 0)
                    row[j].add(T(i, k), x[k][j]);
        }
#pragma unroll
        for (int j = 0; j < TO; j++) {
            Channels<N> sum = {};
#pragma unroll
            for (int k = 0; k < FROM; k++)
                if (T(j, k) != 0)
                    sum.add(T(j, k), row[k]);
            store(i, j, sum);
        }
    }
}

// An operand of the products, (rows x columns) for each place: numbers, or for tensor cores of sm_90 `count` bf16
// components of them, `distance` elements from one to the next. The other pointer is null. Rows are ld apart.
struct Operand {
    int rows, ld;
    real *numbers;
    bfloat16 *components;
    int count, distance;

    // Two components are a word, and one instruction rounds them: a thread takes two of an even number of channels.
    __device__ bool takes_pairs(int channels) const { return components && channels % 2 == 0; }

    template <int N>
    __device__ void store(int place, int row, int column, const Channels<N> &x) const
    {
        const offset to = ((offset)place * rows + row) * ld + column;
        if (numbers)
            *(Channels<N> *)(numbers + to) = x;
        else if constexpr (N == 2)
            split_pair(x.of[0], x.of[1], count, components + to, distance);
        else
            split(x.of[0], count, components + to, distance);
    }
};

// The index of a tile among all.
struct Tiles {
    int down, across;

    __device__ Tiles(const Window &w)
        : down((w.out_height + OUT - 1) / OUT), across((w.out_width + OUT - 1) / OUT) {}
    __device__ int count(int samples) const { return samples * down * across; }
    __device__ int index(const Place &at) const { return (at.n * down + at.y) * across + at.x; }
};

// U from W (filters, 3, 3, channels). With `turned` the filters are turned around, and U has a row a channel.
extern "C" __global__ void winograd_filters(int filters, int channels, const real *W, int turned, int rows, int ld,
                                            real *numbers, bfloat16 *components, int count, int distance)
{
    wait_for_previous_kernel();
    const Operand U = {rows, ld, numbers, components, count, distance};
    const int columns = turned ? filters : channels, size = filters * channels;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < size; i += gridDim.x * blockDim.x) {
        const int row = i / columns, column = i % columns;
        const int filter = turned ? column : row, channel = turned ? row : column;
        Channels<1> g[SIDE][SIDE];
#pragma unroll
        for (int r = 0; r < SIDE; r++)
#pragma unroll
            for (int c = 0; c < SIDE; c++) {
                const int tap = r * SIDE + c;
                g[r][c].of[0] = W[((offset)filter * SIDE * SIDE + (turned ? SIDE * SIDE - 1 - tap : tap)) * channels +
                                  channel];
            }
        transform<IN>([](int k, int j) { return G[k][j]; }, g,
                      [&](int r, int c, const Channels<1> &x) { U.store(r * IN + c, row, column, x); });
    }
}

// N channels a thread.
template <int N>
__device__ inline void transform_images(const Window &w, int samples, const real *A, const Operand &V)
{
    const Tiles cut(w);
    const int across = w.channels / N, size = cut.count(samples) * across;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < size; i += gridDim.x * blockDim.x) {
        const Place at(i, cut.down, cut.across, across);
        const real *image = A + at.n * w.image() + at.channel * N;
        Channels<N> d[IN][IN];
#pragma unroll
        for (int r = 0; r < IN; r++)
#pragma unroll
            for (int c = 0; c < IN; c++) {
                const int y = w.pixel_y(at.y * OUT, r), x = w.pixel_x(at.x * OUT, c);
                d[r][c] = read<N>(image + ((offset)y * w.width + x) * w.channels, w.inside(y, x));
            }
        transform<IN>([](int k, int j) { return B_T[k][j]; }, d, [&](int r, int c, const Channels<N> &x) {
            V.store(r * IN + c, cut.index(at), at.channel * N, x);
        });
    }
}

// V from images A.
extern "C" __global__ void winograd_images(int samples, int height, int width, int channels, int rows, int columns,
                                           int stride, int top, int left, int out_height, int out_width,
                                           const real *A, int tiles, int ld, real *numbers, bfloat16 *components,
                                           int count, int distance)
{
    wait_for_previous_kernel();
    const Window w = {height, width, channels, rows, columns, stride, top, left, out_height, out_width};
    const Operand V = {tiles, ld, numbers, components, count, distance};
    if (V.takes_pairs(channels))
        transform_images<2>(w, samples, A, V);
    else
        transform_images<1>(w, samples, A, V);
}

// Z from M, (tiles x filters) for each place.
extern "C" __global__ void winograd_outputs(int samples, int height, int width, int channels, int rows, int columns,
                                            int stride, int top, int left, int out_height, int out_width,
                                            int filters, const real *M, real *Z)
{
    wait_for_previous_kernel();
    const Window w = {height, width, channels, rows, columns, stride, top, left, out_height, out_width};
    const Tiles cut(w);
    const int size = cut.count(samples) * filters;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < size; i += gridDim.x * blockDim.x) {
        const Place at(i, cut.down, cut.across, filters);
        Channels<1> m[IN][IN];
#pragma unroll
        for (int r = 0; r < IN; r++)
#pragma unroll
            for (int c = 0; c < IN; c++)
                m[r][c].of[0] = M[(r * IN + c) * (offset)size + i];
        real *outputs = Z + at.n * w.output(filters) + at.channel;
        transform<OUT>([](int k, int j) { return A_T[k][j]; }, m, [&](int r, int c, const Channels<1> &z) {
            const int y = at.y * OUT + r, x = at.x * OUT + c;
            if (y < out_height && x < out_width)
                outputs[((offset)y * out_width + x) * filters] = z.of[0];
        });
    }
}

template <int N>
__device__ inline void transform_gradients(const Window &w, int samples, int filters, const real *dZ,
                                           const Operand &S)
{
    const Tiles cut(w);
    const int across = filters / N, size = cut.count(samples) * across;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < size; i += gridDim.x * blockDim.x) {
        const Place at(i, cut.down, cut.across, across);
        const real *gradients = dZ + at.n * w.output(filters) + at.channel * N;
        Channels<N> dz[OUT][OUT];
#pragma unroll
        for (int r = 0; r < OUT; r++)
#pragma unroll
            for (int c = 0; c < OUT; c++) {
                const int y = at.y * OUT + r, x = at.x * OUT + c;
                const bool inside = y < w.out_height && x < w.out_width;
                dz[r][c] = read<N>(gradients + ((offset)y * w.out_width + x) * filters, inside);
            }
        transform<IN>([](int k, int j) { return A_T[j][k]; }, dz, [&](int r, int c, const Channels<N> &x) {
            S.store(r * IN + c, cut.index(at), at.channel * N, x);
        });
    }
}

// S from dZ.
extern "C" __global__ void winograd_gradients(int samples, int height, int width, int channels, int rows,
                                              int columns, int stride, int top, int left, int out_height,
                                              int out_width, int filters, const real *dZ, int tiles, int ld,
                                              real *numbers, bfloat16 *components, int count, int distance)
{
    wait_for_previous_kernel();
    const Window w = {height, width, channels, rows, columns, stride, top, left, out_height, out_width};
    const Operand S = {tiles, ld, numbers, components, count, distance};
    if (S.takes_pairs(filters))
        transform_gradients<2>(w, samples, filters, dZ, S);
    else
        transform_gradients<1>(w, samples, filters, dZ, S);
}

// dW from dU, (filters x channels) for each place.
extern "C" __global__ void winograd_filter_gradient(int filters, int channels, const real *dU, real *dW)
{
    wait_for_previous_kernel();
    const int size = filters * channels;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < size; i += gridDim.x * blockDim.x) {
        const int filter = i / channels, channel = i % channels;
        Channels<1> du[IN][IN];
#pragma unroll
        for (int r = 0; r < IN; r++)
#pragma unroll
            for (int c = 0; c < IN; c++)
                du[r][c].of[0] = dU[(r * IN + c) * (offset)size + i];
        transform<SIDE>([](int k, int j) { return G[j][k]; }, du, [&](int r, int c, const Channels<1> &g) {
            dW[((offset)filter * SIDE * SIDE + r * SIDE + c) * channels + channel] = g.of[0];
        });
    }
}
