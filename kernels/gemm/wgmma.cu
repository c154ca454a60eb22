// Matrix product on the tensor cores of sm_90, of float32 operands split into bf16 components:
// D = alpha op(A) op(B) + beta C + bias. The last rungs of the ladder that begins in ladder.cu; products with an
// activation behind them are in layer.cu.
// architectures: sm_90a
// constants: REAL=float NUMBER=bfloat16 TRANSPOSE_A=0 TRANSPOSE_B=1 COMPONENTS=12|13 ACTIVATION=identity
// constants: REAL=float NUMBER=bfloat16 TRANSPOSE_A=1 TRANSPOSE_B=0 COMPONENTS=21|31 ACTIVATION=identity
// constants: REAL=float NUMBER=bfloat16 TRANSPOSE_A=0|1 TRANSPOSE_B=0|1 COMPONENTS=11|22|33 ACTIVATION=identity
// constants: REAL=float NUMBER=tf32 TRANSPOSE_A=0 TRANSPOSE_B=1 COMPONENTS=11 ACTIVATION=identity
//
// A float32 number is the sum of three bf16 numbers, x = x1 + x2 + x3, to its last bit: each is the bf16
// nearest to what the ones before leave, and brings 8 bits of the 24. The product of two such sums is
//     x1 y1 + (x1 y2 + x2 y1) + (x1 y3 + x2 y2 + x3 y1) + what float32 would round away,
// six products that are exact in the tensor core, which adds in float32 (Henry, Tang, Heinecke, "Leveraging
// the bfloat16 artificial intelligence datatype for higher-precision computations", 2019). So a product
// costs six at bf16's speed, 15 times that of the plain float32 units. A pixel, 0 to 255, is one bf16
// number: with pixels it costs three. With two components an operand has 16 bits, with one 8, where that is
// enough. An infinite number, or one beyond the largest bf16 (3.39e38), has an infinite first term: what it
// meets becomes infinite or NaN.
//
// COMPONENTS says how many A and B have: 13 is one and three. Operands are given as their components (split.cu),
// matrices of one shape one behind the other, row-major; where NUMBER is tf32, as they are, float32 with k
// along the rows, of which these tensor cores see 11 bits and cut off the rest. op(X) is X, or X transposed
// where TRANSPOSE_X is 1. C and D are M x N, row-major with leading dimensions; with beta == 0 C is not read
// and may be null, as may the bias of N numbers.

#include "gemm/wgmma_tiles.cuh"
#include "gemm/matrix_tiles.cuh"

// The grid's x counts tiles down D, y across, z parts of K.
template <int GROUPS, int BN>
__device__ inline void gemm(int K, const TensorMap *A, const TensorMap *B, int stages,
                            const Parts &parts, bool starts_early, const Result &result)
{
    const int m = blockIdx.x * 64 * GROUPS, n = blockIdx.y * BN;
    const MatrixTiles<MATRIX_WIDTH<GROUPS, BN>> tiles = {A, B, m, n};
    const int depth = (K + tiles.DEPTH - 1) / tiles.DEPTH;
    multiply_and_store<GROUPS, BN>(tiles, m, n, depth, stages, parts, starts_early, result);
}

extern "C" __global__ void __launch_bounds__(256)
gemm_64x64(int M, int N, int K, const TensorMap *A, const TensorMap *B, int stages, float4 *sums, int *done,
           int starts_early, real alpha, real beta, const real *C, int ldc, const real *bias, real *D, int ldd)
{
    start_beside_previous_kernel(starts_early);
    gemm<1, 64>(K, A, B, stages, {sums, done}, starts_early, {M, N, alpha, beta, C, bias, D, ldc, ldd});
}

extern "C" __global__ void __launch_bounds__(384, RESIDENT<2, 64>)
gemm_128x64(int M, int N, int K, const TensorMap *A, const TensorMap *B, int stages, float4 *sums, int *done,
            int starts_early, real alpha, real beta, const real *C, int ldc, const real *bias, real *D, int ldd)
{
    start_beside_previous_kernel(starts_early);
    gemm<2, 64>(K, A, B, stages, {sums, done}, starts_early, {M, N, alpha, beta, C, bias, D, ldc, ldd});
}

extern "C" __global__ void __launch_bounds__(512, 1)
gemm_192x64(int M, int N, int K, const TensorMap *A, const TensorMap *B, int stages, float4 *sums, int *done,
            int starts_early, real alpha, real beta, const real *C, int ldc, const real *bias, real *D, int ldd)
{
    start_beside_previous_kernel(starts_early);
    gemm<3, 64>(K, A, B, stages, {sums, done}, starts_early, {M, N, alpha, beta, C, bias, D, ldc, ldd});
}

extern "C" __global__ void __launch_bounds__(256)
gemm_64x128(int M, int N, int K, const TensorMap *A, const TensorMap *B, int stages, float4 *sums, int *done,
            int starts_early, real alpha, real beta, const real *C, int ldc, const real *bias, real *D, int ldd)
{
    start_beside_previous_kernel(starts_early);
    gemm<1, 128>(K, A, B, stages, {sums, done}, starts_early, {M, N, alpha, beta, C, bias, D, ldc, ldd});
}

extern "C" __global__ void __launch_bounds__(384, 1)
gemm_128x128(int M, int N, int K, const TensorMap *A, const TensorMap *B, int stages, float4 *sums, int *done,
             int starts_early, real alpha, real beta, const real *C, int ldc, const real *bias, real *D, int ldd)
{
    start_beside_previous_kernel(starts_early);
    gemm<2, 128>(K, A, B, stages, {sums, done}, starts_early, {M, N, alpha, beta, C, bias, D, ldc, ldd});
}

extern "C" __global__ void __launch_bounds__(512, 1)
gemm_192x128(int M, int N, int K, const TensorMap *A, const TensorMap *B, int stages, float4 *sums, int *done,
             int starts_early, real alpha, real beta, const real *C, int ldc, const real *bias, real *D, int ldd)
{
    start_beside_previous_kernel(starts_early);
    gemm<3, 128>(K, A, B, stages, {sums, done}, starts_early, {M, N, alpha, beta, C, bias, D, ldc, ldd});
}

// For single components alone: several would need a second set of sums.
template <int GROUPS, int BN>
__device__ inline void gemm_wide(int K, const TensorMap *A, const TensorMap *B, int stages,
                                 const Parts &parts, bool starts_early, const Result &result)
{
    if constexpr (COMPONENTS == 11)
        gemm<GROUPS, BN>(K, A, B, stages, parts, starts_early, result);
}

extern "C" __global__ void __launch_bounds__(384, 1)
gemm_128x256(int M, int N, int K, const TensorMap *A, const TensorMap *B, int stages, float4 *sums, int *done,
             int starts_early, real alpha, real beta, const real *C, int ldc, const real *bias, real *D, int ldd)
{
    start_beside_previous_kernel(starts_early);
    gemm_wide<2, 256>(K, A, B, stages, {sums, done}, starts_early, {M, N, alpha, beta, C, bias, D, ldc, ldd});
}
