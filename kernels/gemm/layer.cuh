// The epilogue of a dense layer's product: a tile of D from the sums of op(A) op(B), in the forms that are read next, and
// the sums of its columns. For kernels of gemm/layer.cu and gemm/layer_ping_pong.cu; included behind wgmma_tiles.cuh.
#pragma once

#include "last_block.cuh"

// What two neighbours of a row of D need beside their sums, in as few registers as it takes.
struct Bias {
    real first, second;

    __device__ float2 numbers() const { return {first, second}; }
};

struct Made {
    unsigned pairs[COMPONENTS_B];  // of components

    __device__ float2 numbers() const
    {
        float2 sum = {0, 0};
#pragma unroll
        for (int i = 0; i < COMPONENTS_B; i++) {
            sum.x += __uint_as_float(pairs[i] << 16);
            sum.y += __uint_as_float(pairs[i] & 0xffff0000);
        }
        return sum;
    }
};

template <bool FORWARD>
struct BesideOf {
    typedef Bias Type;
};

template <>
struct BesideOf<false> {
    typedef Made Type;
};

typedef BesideOf<TRANSPOSE_B>::Type Beside;

struct Layer : Result {
    bfloat16 *components;
    int components_ld, distance;
    const bfloat16 *made;
    int made_ld, made_distance;
    real *partials, *column_sums;
    int *done;

    // What two neighbours of D need beside their sums. Behind the last column is anything.
    __device__ void read(Bias &beside, int, int n) const
    {
        beside = {n < N ? bias[n] : 0, n + 1 < N ? bias[n + 1] : 0};
    }

    __device__ void read(Made &beside, int m, int n) const
    {
#pragma unroll
        for (int i = 0; i < COMPONENTS_B; i++)
            beside.pairs[i] =
                has(m, n) ? *(const unsigned *)(made + (offset)m * made_ld + n + (offset)i * made_distance) : 0;
    }

    // An element of D; 0 where D has no such element. (The same instructions for all: behind a branch nothing of the
    // next element would begin before this one is there.)
    __device__ real element(int m, int n, real sum, real beside) const
    {
        real made;
        if constexpr (!TRANSPOSE_B)
            made = alpha * sum * DERIVATIVE(beside);
        else if constexpr (COMPONENTS_B < 3)
            made = ACTIVATE_QUICKLY(alpha * sum + beside);
        else
            made = ACTIVATE(alpha * sum + beside);
        return has(m, n) ? made : 0;
    }

    __device__ void store(int m, int n, float2 d, bool wide) const
    {
        real *place = D + ((offset)m * ldd + n);
        if (wide) {
            *(float2 *)place = d;
        } else {
            if (has(m, n))
                place[0] = d.x;
            if (has(m, n + 1))
                place[1] = d.y;
        }
    }

    // The second may lie behind the last column, where nothing else does.
    __device__ void store_components(int m, int n, float2 d) const
    {
        if (has(m, n))
            split_pair(d.x, d.y, COMPONENTS_B, components + (offset)m * components_ld + n, distance);
    }

    // Whether 64 rows of components can be written by four elements at a time, BN of each from (m, n) on.
    template <int BN>
    __device__ bool stores_four(int m, int n) const
    {
        return has(m + 63, n + BN - 1) && components_ld % 4 == 0 && distance % 4 == 0 &&
               (size_t)components % 8 == 0;
    }

    // Two pairs of a row, the second 8 columns behind the first. Lanes side by side exchange one each, so that each
    // stores four neighbours, and four lanes whole sectors of 32 bytes.
    __device__ void store_components(int m, int n, float2 first, float2 second) const
    {
        const bool odd = threadIdx.x % 2;
        bfloat16 *place = components + (offset)m * components_ld + (odd ? n + 6 : n);
#pragma unroll
        for (int i = 0; i < COMPONENTS_B; i++) {
            const unsigned one = take_pair(first.x, first.y, i == 0), two = take_pair(second.x, second.y, i == 0);
            const unsigned other = __shfl_xor_sync(0xffffffff, odd ? one : two, 1);
            *(uint2 *)(place + (offset)i * distance) = odd ? uint2{other, two} : uint2{one, other};
        }
    }
};

// Elements of a thread of which D is made at a time, of 8 columns four. What they need beside their sums is asked for at
// once; where there is a store between, the compiler asks no earlier, and has registers enough.
template <int BN>
const int AT_ONCE = COMPONENTS_B > 1 ? 16 : BN < 128 ? BN / 2 : 64;

// Makes D of a warpgroup's 64 x BN, from (first_m, first_n) on, of the sums from `first` on, and leaves it in their place.
template <int BN>
__device__ inline void make(const Layer &layer, int first_m, int first_n, int first, real (&d)[BN / 2])
{
    const int ALIKE = TRANSPOSE_B ? 4 : 2;  // elements that share what is beside them
    const int m = first_m + product_row(0), n = first_n + product_column(0);
    Beside beside[AT_ONCE<BN> / ALIKE] = {};
    if (!TRANSPOSE_B || layer.bias)
#pragma unroll
        for (int i = 0; i < AT_ONCE<BN>; i += ALIKE)
            layer.read(beside[i / ALIKE], m + i / 2 % 2 * 8, n + (first + i) / 4 * 8);
#pragma unroll
    for (int i = 0; i < AT_ONCE<BN>; i += 2) {
        const int row = m + i / 2 % 2 * 8, column = n + (first + i) / 4 * 8;
        const float2 more = beside[i / ALIKE].numbers();
        d[first + i] = layer.element(row, column, d[first + i], more.x);
        d[first + i + 1] = layer.element(row, column + 1, d[first + i + 1], more.y);
    }
}

// Stores what `make` has made, in the forms that are asked for.
template <int BN>
__device__ inline void store_made(const Layer &layer, int first_m, int first_n, int first, const real (&d)[BN / 2])
{
    const bool wide = stores_wide<BN>(layer, first_m, first_n), four = layer.stores_four<BN>(first_m, first_n);
    const int m = first_m + product_row(0), n = first_n + product_column(0), end = first + AT_ONCE<BN>;
    if (layer.D)
#pragma unroll
        for (int i = first; i < end; i += 2)
            layer.store(m + i / 2 % 2 * 8, n + i / 4 * 8, {d[i], d[i + 1]}, wide);
    if (layer.components && four) {
#pragma unroll
        for (int i = first; i < end; i += i % 8 == 2 ? 6 : 2)
            layer.store_components(m + i / 2 % 2 * 8, n + i / 4 * 8, {d[i], d[i + 1]}, {d[i + 4], d[i + 5]});
    } else if (layer.components) {
#pragma unroll
        for (int i = first; i < end; i += 2)
            layer.store_components(m + i / 2 % 2 * 8, n + i / 4 * 8, {d[i], d[i + 1]});
    }
}

template <int BN>
__device__ inline void make_and_store(const Layer &layer, int first_m, int first_n, real (&d)[BN / 2])
{
#pragma unroll
    for (int first = 0; first < BN / 2; first += AT_ONCE<BN>) {
        make<BN>(layer, first_m, first_n, first, d);
        store_made<BN>(layer, first_m, first_n, first, d);
    }
}

// Adds up the columns of a tile of D, BM x BN, the one in `row` and `column` of its tiles, as WARPS warps hold it, and
// leaves their sums in `partials`: whether this warp is the last one of all tiles above each other, and is to add those.
// `own(i)` is what a thread has of column product_column(i). (The first warp waits for the others at a barrier that they
// pass: those that fetched have ended. Where several tiles of a block are on their way, the one of number `index` meets at
// one of PLACES. It has a fence, which waits for all that the warp has stored: best before D is.)
template <int BM, int BN, int WARPS, int PLACES, class Own>
__device__ inline bool leave_column_sums(const Layer &layer, int row, int column, const Own &own, int index,
                                         Barrier (&met)[PLACES])
{
    const int place = index % PLACES, warp = threadIdx.x / WARP % WARPS, lane = threadIdx.x % WARP;
    __shared__ __align__(8) real meetings[PLACES * WARPS * BN];  // a row a warp
    real *meeting = meetings + place * WARPS * BN;
#pragma unroll
    for (int i = 0; i < BN / 2; i += 4) {
        float2 sum = {own(i), own(i + 1)};
#pragma unroll
        for (int distance = 4; distance < WARP; distance *= 2) {
            sum.x += __shfl_xor_sync(0xffffffff, sum.x, distance);
            sum.y += __shfl_xor_sync(0xffffffff, sum.y, distance);
        }
        if (lane < 4)
            *(float2 *)(meeting + warp * BN + product_column(i)) = sum;
    }
    __syncwarp();
    if (lane == 0)
        arrive(&met[place]);
    if (warp > 0)
        return false;
    wait(&met[place], index / PLACES % 2);
    real sums[BN / WARP] = {};  // of columns `lane`, `lane` + 32, ...
#pragma unroll
    for (int from = 0; from < WARPS; from++)
#pragma unroll
        for (int i = 0; i < BN / WARP; i++)
            sums[i] += meeting[from * BN + i * WARP + lane];
    const int n = column * BN + lane;
#pragma unroll
    for (int i = 0; i < BN / WARP; i++)
        if (n + i * WARP < layer.N)
            layer.partials[(offset)row * layer.N + n + i * WARP] = sums[i];
    return is_last_warp(layer.done + column, tiles_over(layer.M, BM));
}

// Adds up what the tiles above each other have left, by one warp.
template <int BM, int BN>
__device__ inline void add_column_sums(const Layer &layer, int column)
{
    const int n = column * BN + threadIdx.x % WARP, columns = layer.N - n, rows = tiles_over(layer.M, BM);
    real sums[BN / WARP] = {};
    const real *partials = layer.partials + n;
#pragma unroll 2048 / BN
    for (int from = 0; from < rows; from++)
#pragma unroll
        for (int i = 0; i < BN / WARP; i++)
            sums[i] += i * WARP < columns ? partials[(offset)from * layer.N + i * WARP] : 0;
#pragma unroll
    for (int i = 0; i < BN / WARP; i++)
        if (i * WARP < columns)
            layer.column_sums[n + i * WARP] = sums[i];
}
