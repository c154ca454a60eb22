// Tiles of products on the tensor cores of sm_80 and later: they pass through shared memory, their operands are split,
// and their sums are in registers. D = op(A) op(B), op(A) M x K, op(B) K x N; with the constants TRANSPOSE_A, TRANSPOSE_B,
// COMPONENTS.
//
// These tensor cores multiply TF32 numbers: float32 of which the low 13 bits are ignored, 11 bits that count
// instead of 24.
//
// COMPONENTS == 2: x = hi + lo, hi the nearest TF32 number, lo = x - hi what is left, exactly. Then
//     x y = hi hi + (hi lo + lo hi) + what is below 2^-22 of it,
// three products instead of one, for float32's accuracy (after Ootomo and Yokota, "Recovering single
// precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak performance", 2022). lo has
// up to 12 bits, of which the tensor cores take 11: it needs no rounding. hi is rounded, not cut: cut, lo
// lo, which is left out, would be 2^-22 of x y on average and always of its sign; now it is of either. The
// split costs three instructions a number, in registers. Tensor cores round toward zero when they add, 6e-6
// off over a long K: so they add up 32 along k, small products before large ones in each 8, and those sums
// are added in float32. An infinite number, or one of 3.4027e38 or more, has an infinite hi and no finite lo:
// what it meets is NaN.
//
// COMPONENTS == 1: plain TF32, errors of 2^-11 of each number, added up by the tensor cores alone. Numbers are
// rounded to the nearest: cut, all would be too small, and so would their sums. Half a last bit is added to
// the bits (of cvt.rna nvcc makes the same, and an instruction more); not to a NaN's, which could become a
// zero's.
#pragma once

#include "common.cuh"
#include "gemm/mma.cuh"
#include "gemm/result.cuh"

const int DEPTH = 32;   // of a tile along k
const int STAGES = 3;   // tiles in shared memory: one that is multiplied, the others on their way
const int VECTOR = 4;   // floats in 16 bytes
const int PATCH = 4;    // a lane reads 4 x 4 floats of an operand at a time
const int STEP_K = 16;  // along k that a warp has in registers: its lanes' patches side by side
const int SQUARE = 32;  // lines of an operand that a warp has in registers

// ---------------------------------------------------------------------------------------------------------
// Tiles.
//
// A "line" is what an operand has besides k: a row m of op(A), a column n of op(B). A tile keeps the layout
// of its operand, rows that are contiguous along k or along the lines: cp.async brings what lies together in
// memory, and cannot transpose.
//
// The mma instruction wants its numbers spread over the lanes: lane (g, t) = (lane / 4, lane % 4) holds k = t
// and t + 4 of lines g, g + 8, ... But any numbering of the lines and of k will do, as long as both operands
// have the same of k. Here lane (g, t) reads lines 4 g to 4 g + 3, k from 4 t to 4 t + 3: patches of 4 x 4,
// four loads of 16 bytes in either layout. Its results are 4 x 8 neighbours of D.
//
// The 8 lanes that load 16 bytes at once, two g of four t, must meet all 32 banks. Along k they read 16
// floats of lines 4 apart: every second four lines have the halves of their rows swapped. Along the lines
// they read 8 floats of rows 4 apart: a row's groups of 8 are permuted by xor with k / 4.
// ---------------------------------------------------------------------------------------------------------

template <bool K_CONTIGUOUS, int LINES>
__device__ inline int slot(int line, int k)
{
    return K_CONTIGUOUS ? line * DEPTH + (k ^ (line & 4) << 2) : k * LINES + (line ^ (k & 12) << 1);
}

// A thread's share of the copy of a tile: four neighbours in each of ROWS rows of memory, STEP apart.
template <bool K_CONTIGUOUS, int LINES, int THREADS>
struct Share {
    static const int WIDTH = K_CONTIGUOUS ? DEPTH : LINES, HEIGHT = K_CONTIGUOUS ? LINES : DEPTH;
    static const int ACROSS = WIDTH / VECTOR, STEP = THREADS / ACROSS, ROWS = HEIGHT / STEP;

    // In the tile: the first of the neighbours, and row i.
    __device__ static int column() { return threadIdx.x % ACROSS * VECTOR; }
    __device__ static int row(int i) { return threadIdx.x / ACROSS + i * STEP; }
    __device__ static real *target(real *tile, int i)
    {
        return tile + (K_CONTIGUOUS ? slot<true, LINES>(row(i), column()) : slot<false, LINES>(column(), row(i)));
    }
};

struct Operand {
    const real *data;
    int ld, lines, K;

    __device__ bool wide() const { return (size_t)data % 16 == 0 && ld % VECTOR == 0; }
};

// The lines of an operand from `first_line` on. What lies outside the operand is zero.
template <bool K_CONTIGUOUS, int LINES, int THREADS>
struct Lines {
    typedef Share<K_CONTIGUOUS, LINES, THREADS> Mine;

    Operand operand;
    int first_line;
    bool wide;

    __device__ Lines(const Operand &operand, int first_line)
        : operand(operand), first_line(first_line), wide(operand.wide())
    {
    }

    // Starts this thread's copies of the tile from `first_k` on.
    __device__ void fetch(AsyncCopies &copies, real *tile, int first_k) const
    {
        const int column = (K_CONTIGUOUS ? first_k : first_line) + Mine::column();
        const int row = (K_CONTIGUOUS ? first_line : first_k) + Mine::row(0);
        const int rows = K_CONTIGUOUS ? operand.lines : operand.K;
        const int inside = max(0, min((K_CONTIGUOUS ? operand.K : operand.lines) - column, VECTOR));
        const real *source = operand.data + (offset)row * operand.ld + column;
        const offset next = (offset)Mine::STEP * operand.ld;
#pragma unroll
        for (int i = 0; i < Mine::ROWS; i++) {
            real *target = Mine::target(tile, i);
            const int count = row + i * Mine::STEP < rows ? inside : 0;
            if (wide) {
                copies.start<16>(target, source, count);
            } else {
#pragma unroll
                for (int v = 0; v < VECTOR; v++)
                    copies.start<4>(target + v, source + v, v < count);
            }
            source += next;
        }
    }
};

// patch[i][j]: line + i, k + j.
template <bool K_CONTIGUOUS, int LINES>
__device__ inline void read_patch(real (&patch)[PATCH][PATCH], const real *tile, int line, int k)
{
#pragma unroll
    for (int i = 0; i < PATCH; i++) {
        const int from = K_CONTIGUOUS ? slot<true, LINES>(line + i, k) : slot<false, LINES>(line, k + i);
        const float4 row = *(const float4 *)(tile + from);
        const real values[VECTOR] = {row.x, row.y, row.z, row.w};
#pragma unroll
        for (int j = 0; j < PATCH; j++)
            (K_CONTIGUOUS ? patch[i][j] : patch[j][i]) = values[j];
    }
}

// ---------------------------------------------------------------------------------------------------------
// Numbers for the tensor cores.
// ---------------------------------------------------------------------------------------------------------

const unsigned HALF_BIT = 1 << 12, IGNORED = (1 << 13) - 1;

// COUNT numbers as COMPONENTS numbers each, hi[i] + lo[i].
template <int COUNT>
struct Split {
    real hi[COUNT], lo[COUNT];

    __device__ void set(int i, real x)
    {
        const unsigned bits = __float_as_uint(x);
        if (COMPONENTS == 1) {
            hi[i] = __uint_as_float(bits + (x == x ? HALF_BIT : 0));
        } else {
            hi[i] = __uint_as_float((bits + HALF_BIT) & ~IGNORED);  // a NaN goes on in lo
            lo[i] = x - hi[i];
        }
    }
};

// 32 x 32 sums of a warp: for each 16 x 8 those of an mma, [i][j] of lines 4 g + 2 i and 4 g + 2 i + 1 of A
// and lines 8 t + j and 8 t + 4 + j of B.
typedef real Sums[2][4][4];

// Adds the products of two patches, 16 along k.
__device__ inline void multiply_patches(Sums &sums, const real (&a)[PATCH][PATCH],
                                        const real (&b)[PATCH][PATCH])
{
#pragma unroll
    for (int k = 0; k < PATCH; k += 2) {
        Split<4> left[2];
        Split<2> right[4];
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int v = 0; v < 4; v++)
                left[i].set(v, a[2 * i + v % 2][k + v / 2]);
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int v = 0; v < 2; v++)
                right[j].set(v, b[j][k + v]);
#pragma unroll
        for (int term = COMPONENTS == 1 ? 2 : 0; term < 3; term++)
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    multiply_add(sums[i][j], term == 0 ? left[i].lo : left[i].hi,
                                 term == 1 ? right[j].lo : right[j].hi);
    }
}

// ---------------------------------------------------------------------------------------------------------
// The product.
//
// Block: a warp for each WARP_M x WARP_N of BM x BN of D; the grid's x counts tiles down D, y across, z parts
// of K. Dynamic shared memory: STAGES tiles of both operands, 48 KiB at 64 x 64, 96 KiB at 128 x 128. While
// one is multiplied, the next ones are on their way; one barrier a tile. Where D has too few tiles to fill
// the device, K is split into parts, whose sums are added in their order (sum_parts.cu).
//
// `sums`, unless null, gets the sums over k of the M rows of op(A) (with parts of K: of each part). They are
// made by the blocks of the first column of tiles, from patches that are in registers anyway: of dW = dZ' X
// they are the gradient of the bias, and dZ is not read again for it.
// ---------------------------------------------------------------------------------------------------------

template <int BM, int BN, int WARP_M, int WARP_N>
struct Block {
    static const int THREADS = WARP * (BM / WARP_M) * (BN / WARP_N);
    static const int STAGE = (BM + BN) * DEPTH;  // floats
    static const int SQUARES_M = WARP_M / SQUARE, SQUARES_N = WARP_N / SQUARE;

    real *ring;
    int first_m, first_n;  // of the block
    int line_m, line_n;    // of the lane's first patches in the tiles
    bool summing;

    Sums sums[SQUARES_M][SQUARES_N] = {};
    real row_sums[SQUARES_M][PATCH] = {};  // over the k of this lane

    __device__ Block(real *ring, int first_m, int first_n, bool wants_sums)
        : ring(ring), first_m(first_m), first_n(first_n)
    {
        const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
        const int warp_m = warp / (BN / WARP_N), warp_n = warp % (BN / WARP_N);
        line_m = warp_m * WARP_M + lane / 4 * PATCH, line_n = warp_n * WARP_N + lane / 4 * PATCH;
        summing = wants_sums && first_n == 0 && warp_n == 0;
    }

    // The block's part of K. `a` and `b` know how to `fetch` the tiles of an operand.
    template <class A, class B>
    __device__ void multiply_part(int K, const A &a, const B &b)
    {
        const int tiles = (K + DEPTH - 1) / DEPTH, part = blockIdx.z;
        const int first = tiles * part / gridDim.z, end = tiles * (part + 1) / gridDim.z;
        multiply_tiles(first, end - first, a, b);
    }

    // The tiles of k from `first` on, `count` of them.
    template <class A, class B>
    __device__ void multiply_tiles(int first, int count, const A &a, const B &b)
    {
        AsyncCopies copies;
        auto start = [&](int tile) {
            if (tile < count) {
                real *stage = ring + tile % STAGES * STAGE;
                const int k = (first + tile) * DEPTH;
                a.fetch(copies, stage, k);
                b.fetch(copies, stage + BM * DEPTH, k);
            }
            copies.end_group();  // an empty one counts too, so that the number of those pending is constant
        };
        for (int tile = 0; tile < STAGES - 1; tile++)
            start(tile);
        for (int tile = 0; tile < count; tile++) {
            copies.wait<STAGES - 2>();
            __syncthreads();  // all copies of this tile are there, and nobody reads the one before any more
            start(tile + STAGES - 1);
            multiply_tile(ring + tile % STAGES * STAGE);
        }
    }

    __device__ void multiply_tile(const real *tile)
    {
        if (COMPONENTS == 1) {
            add_products(sums, tile);
            return;
        }
        Sums products[SQUARES_M][SQUARES_N] = {};
        add_products(products, tile);
#pragma unroll
        for (int i = 0; i < (int)(sizeof sums / sizeof(real)); i++)
            (&sums[0][0][0][0][0])[i] += (&products[0][0][0][0][0])[i];
    }

    __device__ void add_products(Sums (&to)[SQUARES_M][SQUARES_N], const real *tile)
    {
        const int lane_k = threadIdx.x % 4 * PATCH;
#pragma unroll
        for (int k = 0; k < DEPTH; k += STEP_K) {
            real b[SQUARES_N][PATCH][PATCH];
#pragma unroll
            for (int j = 0; j < SQUARES_N; j++)
                read_patch<TRANSPOSE_B, BN>(b[j], tile + BM * DEPTH, line_n + j * SQUARE, k + lane_k);
#pragma unroll
            for (int i = 0; i < SQUARES_M; i++) {
                real a[PATCH][PATCH];
                read_patch<!TRANSPOSE_A, BM>(a, tile, line_m + i * SQUARE, k + lane_k);
                if (summing)
                    add_rows(row_sums[i], a);
#pragma unroll
                for (int j = 0; j < SQUARES_N; j++)
                    multiply_patches(to[i][j], a, b[j]);
            }
        }
    }

    __device__ static void add_rows(real (&to)[PATCH], const real (&a)[PATCH][PATCH])
    {
#pragma unroll
        for (int i = 0; i < PATCH; i++)
            to[i] += (a[i][0] + a[i][1]) + (a[i][2] + a[i][3]);
    }

    // Vec4 lanes share a row.
    __device__ void store_row_sums(real *to, int M)
    {
#pragma unroll
        for (int i = 0; i < SQUARES_M; i++)
#pragma unroll
            for (int row = 0; row < PATCH; row++) {
                real sum = row_sums[i][row];
                sum += __shfl_xor_sync(0xffffffff, sum, 1);
                sum += __shfl_xor_sync(0xffffffff, sum, 2);
                const int m = first_m + line_m + i * SQUARE + row;
                if (threadIdx.x % 4 == 0 && m < M)
                    to[m] = sum;
            }
    }

    // To D through `result`, or as they are to `partials` (of this part, as large as D). Of M rows of op(A) row m
    // is at rows(m) of D.
    template <class Rows>
    __device__ void store(int M, real *partials, const Result &result, const Rows &rows) const
    {
        real *to = partials ? partials : result.D;
        const int N = result.N, ld = partials ? N : result.ldd;
        const bool wide = (size_t)to % 16 == 0 && ld % VECTOR == 0;
        const int n0 = first_n + line_n - threadIdx.x % WARP / 4 * PATCH + threadIdx.x % 4 * 8;
#pragma unroll
        for (int i = 0; i < SQUARES_M; i++)
#pragma unroll
            for (int row = 0; row < PATCH; row++) {
                const int m = first_m + line_m + i * SQUARE + row;
                if (m >= M)
                    continue;
                real *line = to + (offset)rows(m) * ld;
#pragma unroll
                for (int j = 0; j < SQUARES_N; j++)
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        const int n = n0 + j * SQUARE + half * VECTOR;
                        real values[VECTOR];
#pragma unroll
                        for (int v = 0; v < VECTOR; v++)
                            values[v] = sums[i][j][row / 2][v][row % 2 * 2 + half];
                        store_vector(line + n, values, m, n, N, wide, !partials, result);
                    }
            }
    }

    __device__ static void store_vector(real *to, real (&values)[VECTOR], int m, int n, int N, bool wide,
                                        bool finish, const Result &result)
    {
#pragma unroll
        for (int v = 0; v < VECTOR; v++)
            if (finish)
                values[v] = result.value(m, n + v, values[v]);
        if (wide && n + VECTOR <= N) {
            *(float4 *)to = make_float4(values[0], values[1], values[2], values[3]);
        } else {
#pragma unroll
            for (int v = 0; v < VECTOR; v++)
                if (n + v < N)
                    to[v] = values[v];
        }
    }
};
