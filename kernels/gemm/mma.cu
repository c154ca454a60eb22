// Matrix product on the tensor cores of sm_80 and later, of float32 operands as they lie in memory:
// D = f(alpha op(A) op(B) + beta C + bias). The rung of the ladder between thread_tiles.cu and wgmma.cu.
// architectures: sm_80 sm_90a
// constants: REAL=float TRANSPOSE_A=0|1 TRANSPOSE_B=0|1 COMPONENTS=1|2 ACTIVATION=identity
// constants: REAL=float TRANSPOSE_A=0 TRANSPOSE_B=1 COMPONENTS=1|2 ACTIVATION=sigmoid|tanh|relu
//
// op(X) is X, or X transposed where TRANSPOSE_X is 1; op(A) is M x K, op(B) is K x N. All matrices are
// row-major with leading dimensions, so each may be a column slice of a wider one.
//
// How they are multiplied: gemm/mma_tiles.cuh.

#include "gemm/mma_tiles.cuh"

template <int BM, int BN, int WARP_M, int WARP_N>
__device__ inline void gemm(const Operand &A, const Operand &B, real *partials, real *sums,
                            const Result &result)
{
    extern __shared__ __align__(16) real ring[];
    typedef Block<BM, BN, WARP_M, WARP_N> Tile;
    const int M = A.lines, N = B.lines, part = blockIdx.z;
    const int first_m = blockIdx.x * BM, first_n = blockIdx.y * BN;

    Tile block(ring, first_m, first_n, sums != nullptr);
    const Lines<!TRANSPOSE_A, BM, Tile::THREADS> a(A, first_m);
    const Lines<TRANSPOSE_B, BN, Tile::THREADS> b(B, first_n);
    block.multiply_part(A.K, a, b);
    block.store(M, partials ? partials + (offset)part * M * N : nullptr, result, [](int m) { return m; });
    if (block.summing)
        block.store_row_sums(sums + (offset)part * M, M);
}

// With `partials` (gridDim.z x M x N) what is stored are the sums of each part of K, for sum_parts.cu, and
// `sums` is gridDim.z x M.

extern "C" __global__ void __launch_bounds__(128)
gemm_64x64(int M, int N, int K, const real *A, int lda, const real *B, int ldb, real *partials, real *sums,
           real alpha, real beta, const real *C, int ldc, const real *bias, real *D, int ldd)
{
    wait_for_previous_kernel();
    gemm<64, 64, 32, 32>({A, lda, M, K}, {B, ldb, N, K}, partials, sums,
                         {M, N, alpha, beta, C, bias, D, ldc, ldd});
}

extern "C" __global__ void __launch_bounds__(256)
gemm_128x128(int M, int N, int K, const real *A, int lda, const real *B, int ldb, real *partials, real *sums,
             real alpha, real beta, const real *C, int ldc, const real *bias, real *D, int ldd)
{
    wait_for_previous_kernel();
    gemm<128, 128, 64, 32>({A, lda, M, K}, {B, ldb, N, K}, partials, sums,
                           {M, N, alpha, beta, C, bias, D, ldc, ldd});
}
