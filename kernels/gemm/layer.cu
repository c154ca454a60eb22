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
// tiles adds them up, always from the first row on. `meetings` has a counter for each column of tiles, 0 before and
// after a launch.

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

    // Elements of D need more than their sums: the bias or, on the way back, `made`; here of two neighbours. Behind
    // the last column is anything.
    __device__ float2 beside(int m, int n) const
    {
        float2 found = {0, 0};
        if constexpr (TRANSPOSE_B) {
            if (bias && n < N)
                found.x = bias[n];
            if (bias && n + 1 < N)
                found.y = bias[n + 1];
        } else if (has(m, n)) {
#pragma unroll
            for (int i = 0; i < COMPONENTS_B; i++) {
                const unsigned both = *(const unsigned *)(made + (offset)m * made_ld + n + (offset)i * made_distance);
                found.x += __uint_as_float(both << 16);
                found.y += __uint_as_float(both & 0xffff0000);
            }
        }
        return found;
    }

    // An element of D; 0 where D has no such element.
    __device__ real element(int m, int n, real sum, real beside) const
    {
        if (!has(m, n))
            return 0;
        if constexpr (!TRANSPOSE_B)
            return alpha * sum * DERIVATIVE(beside);
        else if constexpr (COMPONENTS_B < 3)
            return ACTIVATE_QUICKLY(alpha * sum + beside);
        else
            return ACTIVATE(alpha * sum + beside);
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

    // Whether rows of components can be written by four elements at a time in a tile from (m, n) on.
    template <int BM, int BN>
    __device__ bool stores_four(int m, int n) const
    {
        return has(m + BM - 1, n + BN - 1) && components_ld % 4 == 0 && distance % 4 == 0 &&
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

// Makes D of a tile's sums, and leaves it in their place. What elements need beside their sums is asked for many at
// a time: between a load and the store before it the compiler must keep the order.
template <int GROUPS, int BN>
__device__ inline void make_and_store(const Layer &layer, int first_m, int first_n, real (&d)[BN / 2])
{
    const int AT_ONCE = COMPONENTS_B == 1 ? 32 : 16;  // elements, of 8 columns four a thread
    const bool wide = stores_wide<GROUPS, BN>(layer, first_m, first_n);
    const bool four = layer.stores_four<64 * GROUPS, BN>(first_m, first_n);
    const int m = first_m + product_row(0), n = first_n + product_column(0);
#pragma unroll
    for (int first = 0; first < BN / 2; first += AT_ONCE) {
        float2 beside[AT_ONCE / 2];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i += 2)
            beside[i / 2] = layer.beside(m + i / 2 % 2 * 8, n + (first + i) / 4 * 8);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i += 2) {
            const int row = m + i / 2 % 2 * 8, column = n + (first + i) / 4 * 8;
            d[first + i] = layer.element(row, column, d[first + i], beside[i / 2].x);
            d[first + i + 1] = layer.element(row, column + 1, d[first + i + 1], beside[i / 2].y);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i += 2) {
            const int row = m + i / 2 % 2 * 8, column = n + (first + i) / 4 * 8;
            const float2 pair = {d[first + i], d[first + i + 1]};
            if (layer.D)
                layer.store(row, column, pair, wide);
            if (layer.components && !four)
                layer.store_components(row, column, pair);
            else if (layer.components && i % 8 < 4)
                layer.store_components(row, column, pair, {d[first + i + 4], d[first + i + 5]});
        }
    }
}

// Adds up the columns of a tile of D, as its threads hold it, and at last those of all tiles above each other. (Warps
// meet by counters: those that fetched have ended, and no barrier of the block is to be had. `warps_done` is 0.)
template <int GROUPS, int BN>
__device__ inline void add_columns(const Layer &layer, int first_n, const real (&d)[BN / 2], int *warps_done)
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
    if (!is_last_warp_of_block(warps_done, WARPS))
        return;
    real sums[BN / WARP] = {};  // of columns `lane`, `lane` + 32, ...
#pragma unroll
    for (int row = 0; row < WARPS; row++)
#pragma unroll
        for (int i = 0; i < BN / WARP; i++)
            sums[i] += meeting[row * BN + i * WARP + lane];
    const int columns = layer.N - first_n - lane;  // from the first of them on
    real *partials = layer.partials + first_n + lane;
#pragma unroll
    for (int i = 0; i < BN / WARP; i++)
        if (i * WARP < columns)
            partials[(offset)blockIdx.x * layer.N + i * WARP] = sums[i];
    if (!is_last_warp(layer.done + blockIdx.y, gridDim.x))
        return;
#pragma unroll
    for (int i = 0; i < BN / WARP; i++)
        sums[i] = 0;
#pragma unroll 4
    for (int row = 0; row < (int)gridDim.x; row++)
#pragma unroll
        for (int i = 0; i < BN / WARP; i++)
            sums[i] += i * WARP < columns ? partials[(offset)row * layer.N + i * WARP] : 0;
#pragma unroll
    for (int i = 0; i < BN / WARP; i++)
        if (i * WARP < columns)
            layer.column_sums[first_n + lane + i * WARP] = sums[i];
}

// The grid's x counts tiles down D, y across, z parts of K.
template <int GROUPS, int BN>
__device__ inline void layer_product(int K, const TensorMap *A, const TensorMap *B, int stages, const Parts &parts,
                                     bool starts_early, const Layer &layer)
{
    const int m = blockIdx.x * 64 * GROUPS, n = blockIdx.y * BN;
    __shared__ int warps_done;
    if (threadIdx.x == 0)
        warps_done = 0;
    const MatrixTiles<MATRIX_WIDTH<GROUPS, BN>> tiles = {A, B, m, n};
    const int depth = (K + tiles.DEPTH - 1) / tiles.DEPTH;
    multiply<GROUPS, BN>(tiles, depth, stages, parts, starts_early, [&](real (&d)[BN / 2]) {
        make_and_store<GROUPS, BN>(layer, m, n, d);
        if constexpr (!TRANSPOSE_B)
            if (layer.column_sums)
                add_columns<GROUPS, BN>(layer, n, d, &warps_done);
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

extern "C" __global__ void __launch_bounds__(512, 1)
layer_192x128(int M, int N, int K, const TensorMap *A, const TensorMap *B, int stages, float4 *sums, int *done,
              int starts_early, real alpha, const real *bias, real *D, int ldd, bfloat16 *components,
              int components_ld, int distance, const bfloat16 *made, int made_ld, int made_distance, real *partials,
              real *column_sums, int *meetings)
{
    start_beside_previous_kernel(starts_early);
    const Layer layer = {{M, N, alpha, 0, nullptr, bias, D, 0, ldd}, components, components_ld, distance,
                         made, made_ld, made_distance, partials, column_sums, meetings};
    layer_product<3, 128>(K, A, B, stages, {sums, done}, starts_early, layer);
}

// For single components alone, as in gemm/wgmma.cu.
template <int GROUPS, int BN>
__device__ inline void layer_product_wide(int K, const TensorMap *A, const TensorMap *B, int stages,
                                          const Parts &parts, bool starts_early, const Layer &layer)
{
    if constexpr (COMPONENTS == 11)
        layer_product<GROUPS, BN>(K, A, B, stages, parts, starts_early, layer);
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
    layer_product_wide<2, 256>(K, A, B, stages, {sums, done}, starts_early, layer);
}
