// The products of a dense layer on the tensor cores of sm_90, as in gemm/wgmma.cu, with all that follows them in the
// epilogue: nothing else passes over a layer's outputs, or over their gradient.
// architectures: sm_90a
// constants: REAL=float NUMBER=bfloat16 TRANSPOSE_A=0 TRANSPOSE_B=1 COMPONENTS=11|12|13|22|33 ACTIVATION=sigmoid|tanh|relu
// constants: REAL=float NUMBER=bfloat16 TRANSPOSE_A=0 TRANSPOSE_B=0 COMPONENTS=11|22|33 ACTIVATION=sigmoid|tanh|relu
//
// - TRANSPOSE_B=1, forward: D = f(alpha A B' + bias), A the layer's inputs, B its weights.
// - TRANSPOSE_B=0, on the way back: D = alpha A B f'(made), A the gradient of the outputs of the layer above, B the
//   weights of that layer, `made` the outputs of this layer; and the sums of D's columns, the gradient of its bias.
//
// D is left as bf16 components, as many as B has, for the products that read it next, as float32, or both: `D` or
// `components` may be null. So may `bias` and `column_sums`. Of matrices of components row m begins at m * ld, the
// next component `distance` elements behind; ld is even. f' is taken from the components of `made` alone: three of
// them are its float32 numbers to the last bit.
//
// Launch, and shared memory: see gemm/wgmma_tiles.cuh; on the way back 8 KB at most are static. For the sums of
// columns each block leaves those of its tile in its row of `partials` (gridDim.x x N); the last block of a column of
// tiles adds them up, always from the first row on. `meetings` has a counter for each tile, then one for each column
// of tiles, 0 before and after a launch.

#include "gemm/wgmma_tiles.cuh"
#include "gemm/matrix_tiles.cuh"
#include "last_block.cuh"

struct Layer : Result {
    bfloat16 *components;
    int components_ld, distance;
    const bfloat16 *made;
    int made_ld, made_distance;
    real *partials, *column_sums;
    int *done;

    // Two neighbours of a row of D from their sums; 0 where D has no such element.
    __device__ float2 pair(int m, int n, real first, real second) const
    {
        float2 d = {0, 0};
        if (!has(m, n))
            return d;
        if constexpr (TRANSPOSE_B) {
            d.x = value(m, n, first);
            if (n + 1 < N)
                d.y = value(m, n + 1, second);
        } else {
            const float2 a = outputs(m, n);
            d.x = alpha * first * DERIVATIVE(a.x);
            if (n + 1 < N)
                d.y = alpha * second * DERIVATIVE(a.y);
        }
        return d;
    }

    // Two neighbours of `made`; behind the last column is anything.
    __device__ float2 outputs(int m, int n) const
    {
        float2 a = {0, 0};
#pragma unroll
        for (int i = 0; i < COMPONENTS_B; i++) {
            const unsigned both = *(const unsigned *)(made + (offset)m * made_ld + n + (offset)i * made_distance);
            a.x += __uint_as_float(both << 16);
            a.y += __uint_as_float(both & 0xffff0000);
        }
        return a;
    }

    __device__ void store(int m, int n, float2 d, bool wide) const
    {
        real *place = D + ((offset)m * ldd + n);
        if (D && wide) {
            *(float2 *)place = d;
        } else if (D) {
            if (has(m, n))
                place[0] = d.x;
            if (has(m, n + 1))
                place[1] = d.y;
        }
        if (components && has(m, n))  // the second may lie behind the last column, where nothing else does
            split_pair(d.x, d.y, COMPONENTS_B, components + (offset)m * components_ld + n, distance);
    }
};

// Adds up the columns of a tile of D, as its threads hold it, and at last those of all tiles above each other. (Warps
// meet by counters: those that fetched have ended, and no barrier of the block is to be had.)
template <int GROUPS, int BN>
__device__ inline void add_columns(const Layer &layer, int first_n, const real (&d)[BN / 2])
{
    const int WARPS = 4 * GROUPS, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    __shared__ __align__(8) real meeting[WARPS * BN];  // a row a warp
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
    int *tile_done = layer.done + blockIdx.y * gridDim.x + blockIdx.x;
    int *column_done = layer.done + gridDim.y * gridDim.x + blockIdx.y;
    if (!is_last_warp(tile_done, WARPS))
        return;
    for (int n = lane; n < BN && first_n + n < layer.N; n += WARP) {
        real sum = 0;
#pragma unroll
        for (int row = 0; row < WARPS; row++)
            sum += meeting[row * BN + n];
        layer.partials[(offset)blockIdx.x * layer.N + first_n + n] = sum;
    }
    if (!is_last_warp(column_done, gridDim.x))
        return;
    for (int n = lane; n < BN && first_n + n < layer.N; n += WARP) {
        real sum = 0;
#pragma unroll 8
        for (int row = 0; row < (int)gridDim.x; row++)
            sum += layer.partials[(offset)row * layer.N + first_n + n];
        layer.column_sums[first_n + n] = sum;
    }
}

// The grid's x counts tiles down D, y across, z parts of K.
template <int GROUPS, int BN>
__device__ inline void layer_product(int K, const TensorMap *A, const TensorMap *B, int stages, const Parts &parts,
                                     bool starts_early, const Layer &layer)
{
    const int m = blockIdx.x * 64 * GROUPS, n = blockIdx.y * BN;
    const MatrixTiles tiles = {A, B, m, n};
    multiply<GROUPS, BN>(tiles, (K + DEPTH - 1) / DEPTH, stages, parts, starts_early, [&](real (&d)[BN / 2]) {
        const bool wide = stores_wide<GROUPS, BN>(layer, m, n);
#pragma unroll
        for (int i = 0; i < BN / 2; i += 2) {
            const int row = m + product_row(i), column = n + product_column(i);
            const float2 pair = layer.pair(row, column, d[i], d[i + 1]);
            layer.store(row, column, pair, wide);
            d[i] = pair.x;
            d[i + 1] = pair.y;
        }
        if constexpr (!TRANSPOSE_B)
            if (layer.column_sums)
                add_columns<GROUPS, BN>(layer, n, d);
    });
}

extern "C" __global__ void __launch_bounds__(256)
layer_64x64(int M, int N, int K, const TensorMap *A, const TensorMap *B, int stages, float4 *sums, int *done,
            int starts_early, real alpha, const real *bias, real *D, int ldd, bfloat16 *components,
            int components_ld, int distance, const bfloat16 *made, int made_ld, int made_distance, real *partials,
            real *column_sums, int *meetings)
{
    start_beside_previous_kernel(starts_early);
    const Layer layer = {{M, N, alpha, 0, nullptr, bias, D, 0, ldd}, components, components_ld, distance,
                         made, made_ld, made_distance, partials, column_sums, meetings};
    layer_product<1, 64>(K, A, B, stages, {sums, done}, starts_early, layer);
}

extern "C" __global__ void __launch_bounds__(384, RESIDENT<2, 64>)
layer_128x64(int M, int N, int K, const TensorMap *A, const TensorMap *B, int stages, float4 *sums, int *done,
             int starts_early, real alpha, const real *bias, real *D, int ldd, bfloat16 *components,
             int components_ld, int distance, const bfloat16 *made, int made_ld, int made_distance, real *partials,
             real *column_sums, int *meetings)
{
    start_beside_previous_kernel(starts_early);
    const Layer layer = {{M, N, alpha, 0, nullptr, bias, D, 0, ldd}, components, components_ld, distance,
                         made, made_ld, made_distance, partials, column_sums, meetings};
    layer_product<2, 64>(K, A, B, stages, {sums, done}, starts_early, layer);
}

extern "C" __global__ void __launch_bounds__(512, 1)
layer_192x64(int M, int N, int K, const TensorMap *A, const TensorMap *B, int stages, float4 *sums, int *done,
             int starts_early, real alpha, const real *bias, real *D, int ldd, bfloat16 *components,
             int components_ld, int distance, const bfloat16 *made, int made_ld, int made_distance, real *partials,
             real *column_sums, int *meetings)
{
    start_beside_previous_kernel(starts_early);
    const Layer layer = {{M, N, alpha, 0, nullptr, bias, D, 0, ldd}, components, components_ld, distance,
                         made, made_ld, made_distance, partials, column_sums, meetings};
    layer_product<3, 64>(K, A, B, stages, {sums, done}, starts_early, layer);
}

extern "C" __global__ void __launch_bounds__(256)
layer_64x128(int M, int N, int K, const TensorMap *A, const TensorMap *B, int stages, float4 *sums, int *done,
             int starts_early, real alpha, const real *bias, real *D, int ldd, bfloat16 *components,
             int components_ld, int distance, const bfloat16 *made, int made_ld, int made_distance, real *partials,
             real *column_sums, int *meetings)
{
    start_beside_previous_kernel(starts_early);
    const Layer layer = {{M, N, alpha, 0, nullptr, bias, D, 0, ldd}, components, components_ld, distance,
                         made, made_ld, made_distance, partials, column_sums, meetings};
    layer_product<1, 128>(K, A, B, stages, {sums, done}, starts_early, layer);
}

extern "C" __global__ void __launch_bounds__(384, 1)
layer_128x128(int M, int N, int K, const TensorMap *A, const TensorMap *B, int stages, float4 *sums, int *done,
              int starts_early, real alpha, const real *bias, real *D, int ldd, bfloat16 *components,
              int components_ld, int distance, const bfloat16 *made, int made_ld, int made_distance, real *partials,
              real *column_sums, int *meetings)
{
    start_beside_previous_kernel(starts_early);
    const Layer layer = {{M, N, alpha, 0, nullptr, bias, D, 0, ldd}, components, components_ld, distance,
                         made, made_ld, made_distance, partials, column_sums, meetings};
    layer_product<2, 128>(K, A, B, stages, {sums, done}, starts_early, layer);
}

// For single components alone, as in gemm/wgmma.cu.
template <bool SINGLE>
__device__ inline void layer_product_wide(int K, const TensorMap *A, const TensorMap *B, int stages,
                                          const Parts &parts, bool starts_early, const Layer &layer)
{
    if constexpr (SINGLE)
        layer_product<2, 256>(K, A, B, stages, parts, starts_early, layer);
}

extern "C" __global__ void __launch_bounds__(384, 1)
layer_128x256(int M, int N, int K, const TensorMap *A, const TensorMap *B, int stages, float4 *sums, int *done,
              int starts_early, real alpha, const real *bias, real *D, int ldd, bfloat16 *components,
              int components_ld, int distance, const bfloat16 *made, int made_ld, int made_distance, real *partials,
              real *column_sums, int *meetings)
{
    start_beside_previous_kernel(starts_early);
    const Layer layer = {{M, N, alpha, 0, nullptr, bias, D, 0, ldd}, components, components_ld, distance,
                         made, made_ld, made_distance, partials, column_sums, meetings};
    layer_product_wide<COMPONENTS == 11>(K, A, B, stages, {sums, done}, starts_early, layer);
}
