// The epilogue of a dense layer's product: a tile of D from the sums of op(A) op(B), in the forms that are read next, and
// the sums of its columns. For kernels of gemm/layer.cu and gemm/layer_ping_pong.cu; included behind wgmma_tiles.cuh.
#pragma once

#include "last_block.cuh"

// Holds what two neighbours of a row of D need beside their sums, in as few registers as it takes.
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

    // Reads what two neighbours of D need beside their sums. Behind the last column is anything.
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

    // Tells whether 64 rows of components can be written by four elements at a time, BN of each from (m, n) on.
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

// Makes D of the sums of a warpgroup's 64 x BN, from (first_m, first_n) on, and leaves it in their place. What elements
// need beside their sums is asked for many at a time: between a load and the store before it the compiler must keep the
// order.
template <int BN>
__device__ inline void make_and_store(const Layer &layer, int first_m, int first_n, real (&d)[BN / 2])
{
    const int AT_ONCE = COMPONENTS_B > 1 ? 16 : BN < 128 ? BN / 2 : 64;  // elements, of 8 columns four a thread
    const int ALIKE = TRANSPOSE_B ? 4 : 2;                               // of these, that share what is beside them
    const bool wide = stores_wide<BN>(layer, first_m, first_n), four = layer.stores_four<BN>(first_m, first_n);
    const int m = first_m + product_row(0), n = first_n + product_column(0);
    const auto row = [=](int i) { return m + i / 2 % 2 * 8; };
    const auto column = [=](int i) { return n + i / 4 * 8; };
#pragma unroll
    for (int first = 0; first < BN / 2; first += AT_ONCE) {
        Beside beside[AT_ONCE / ALIKE] = {};
        if (!TRANSPOSE_B || layer.bias)
#pragma unroll
            for (int i = 0; i < AT_ONCE; i += ALIKE)
                layer.read(beside[i / ALIKE], row(i), column(first + i));
#pragma unroll
        for (int i = 0; i < AT_ONCE; i += 2) {
            const float2 more = beside[i / ALIKE].numbers();
            real *pair = d + first + i;
            pair[0] = layer.element(row(i), column(first + i), pair[0], more.x);
            pair[1] = layer.element(row(i), column(first + i) + 1, pair[1], more.y);
        }
        if (layer.D)
#pragma unroll
            for (int i = first; i < first + AT_ONCE; i += 2)
                layer.store(row(i), column(i), {d[i], d[i + 1]}, wide);
        if (layer.components && four) {
#pragma unroll
            for (int i = first; i < first + AT_ONCE; i += i % 8 == 2 ? 6 : 2)
                layer.store_components(row(i), column(i), {d[i], d[i + 1]}, {d[i + 4], d[i + 5]});
        } else if (layer.components) {
#pragma unroll
            for (int i = first; i < first + AT_ONCE; i += 2)
                layer.store_components(row(i), column(i), {d[i], d[i + 1]});
        }
    }
}

// Adds up the columns of a tile of D, BM x BN, the one in `row` and `column` of its tiles, as WARPS warps hold it, and at
// last those of all tiles above each other. (The first warp waits for the others at a barrier that they pass: those that
// fetched have ended. Where several tiles of a block are on their way, the one of number `index` meets at one of PLACES.)
template <int BM, int BN, int WARPS, int PLACES>
__device__ inline void add_columns(const Layer &layer, int row, int column, const real (&d)[BN / 2], int index,
                                   Barrier (&met)[PLACES])
{
    const int place = index % PLACES, warp = threadIdx.x / WARP % WARPS, lane = threadIdx.x % WARP;
    __shared__ __align__(8) real meetings[PLACES * WARPS * BN];  // a row a warp
    real *meeting = meetings + place * WARPS * BN;
#pragma unroll
    for (int i = 0; i < BN / 2; i += 4) {
        float2 sum = {d[i] + d[i + 2], d[i + 1] + d[i + 3]};
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
        return;
    wait(&met[place], index / PLACES % 2);
    real sums[BN / WARP] = {};  // of columns `lane`, `lane` + 32, ...
#pragma unroll
    for (int from = 0; from < WARPS; from++)
#pragma unroll
        for (int i = 0; i < BN / WARP; i++)
            sums[i] += meeting[from * BN + i * WARP + lane];
    const int n = column * BN + lane, columns = layer.N - n, rows = tiles_over(layer.M, BM);
    real *partials = layer.partials + n;
#pragma unroll
    for (int i = 0; i < BN / WARP; i++)
        if (i * WARP < columns)
            partials[(offset)row * layer.N + i * WARP] = sums[i];
    if (!is_last_warp(layer.done + column, rows))
        return;
#pragma unroll
    for (int i = 0; i < BN / WARP; i++)
        sums[i] = 0;
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
