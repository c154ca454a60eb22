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
#include "gemm/layer.cuh"

// The grid's x counts tiles down D, y across, z parts of K.
template <int GROUPS, int BN>
__device__ inline void layer_product(int K, const TensorMap *A, const TensorMap *B, int stages, const Parts &parts,
                                     bool starts_early, const Layer &layer)
{
    const int m = blockIdx.x * 64 * GROUPS, n = blockIdx.y * BN;
    __shared__ Barrier met[1];
    if (threadIdx.x == 0)
        init_barrier(met, 4 * GROUPS);
    const MatrixTiles<MATRIX_WIDTH<GROUPS, BN>> tiles = {A, B, m, n};
    const int depth = (K + tiles.DEPTH - 1) / tiles.DEPTH;
    multiply<GROUPS, BN>(tiles, depth, stages, parts, starts_early, [&](real (&d)[BN / 2]) {
        make_and_store<BN>(layer, m + strip_of_warpgroup(), n, d);
        if constexpr (!TRANSPOSE_B)
            if (layer.column_sums)
                add_columns<64 * GROUPS, BN, 4 * GROUPS>(layer, blockIdx.x, blockIdx.y, d, 0, met);
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
