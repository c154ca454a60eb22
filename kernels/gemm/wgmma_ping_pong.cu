// The matrix product of gemm/wgmma.cu for single components, where storing a tile of D and multiplying the next one are
// at the same time. Operands, D and the constants are as there; K is not in parts.
// architectures: sm_90a
// constants: REAL=float NUMBER=bfloat16 TRANSPOSE_A=0|1 TRANSPOSE_B=0|1 COMPONENTS=11 ACTIVATION=identity
// constants: REAL=float NUMBER=tf32 TRANSPOSE_A=0 TRANSPOSE_B=1 COMPONENTS=11 ACTIVATION=identity
//
// Launch: see gemm/ping_pong.cuh.

#include "gemm/wgmma_tiles.cuh"
#include "gemm/matrix_tiles.cuh"
#include "gemm/ping_pong.cuh"

template <int BM, int BN>
__device__ inline void gemm(int K, const TensorMap *A, const TensorMap *B, int stages, bool starts_early,
                            const Result &result)
{
    const TileOrder order = {tiles_over(result.M, BM), tiles_over(result.N, BN)};
    multiply_in_turns<BM, BN>(order, A, B, (K + DEPTH - 1) / DEPTH, stages, starts_early,
                              [&](TilePlace at, int, real (&sums)[BM / 64][BN / 2]) {
#pragma unroll
        for (int chain = 0; chain < BM / 64; chain++)
            store_strip<BN>(result, at.row * BM + chain * 64, at.column * BN, sums[chain]);
    });
}

extern "C" __global__ void __launch_bounds__(384, 1)
gemm_ping_pong_128x128(int M, int N, int K, const TensorMap *A, const TensorMap *B, int stages, int starts_early,
                       real alpha, real beta, const real *C, int ldc, const real *bias, real *D, int ldd)
{
    start_beside_previous_kernel(starts_early);
    gemm<128, 128>(K, A, B, stages, starts_early, {M, N, alpha, beta, C, bias, D, ldc, ldd});
}
