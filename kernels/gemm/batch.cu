// Many matrix products of one shape in one launch, on the tensor cores of sm_90: D[i] = op(A[i]) op(B[i]) + beta D[i].
// architectures: sm_90a
// constants: REAL=float NUMBER=bfloat16 TRANSPOSE_A=0 TRANSPOSE_B=1 COMPONENTS=11|22|33 ACTIVATION=identity
// constants: REAL=float NUMBER=bfloat16 TRANSPOSE_A=1 TRANSPOSE_B=0 COMPONENTS=11|22|33 ACTIVATION=identity
//
// One product alone may have too few tiles to fill the device; together they have. The matrices of each operand
// lie one below the other, so do those of D. Operands are bf16 components as in wgmma.cu: all first ones, then all
// second ones. So a map's third coordinate is component * batch + i. The accelerator brings zeros for what is
// outside a matrix: along k it does not run into the next one.

#include "gemm/wgmma_tiles.cuh"

// Starts the copies of a tile of matrix i, 64 x LINES: a box for each component or, where the operand is transposed,
// for each 64 lines of one.
template <bool TRANSPOSED, int COUNT, int LINES>
__device__ inline void fetch(number *tile, const TensorMap *map, int line, int k, int i, int batch, Barrier *barrier)
{
    for (int component = 0; component < COUNT; component++, tile += LINES * DEPTH, i += batch)
        if (TRANSPOSED)
            for (int part = 0; part < LINES; part += 64)
                copy_box(tile + part * DEPTH, map, line + part, k, i, barrier);
        else
            copy_box(tile, map, k, line, i, barrier);
}

// Tiles of the matrices i of two operands, from row m of op(A[i]) and column n of op(B[i]) on.
struct BatchTiles {
    static const int WIDTH = 128;
    const TensorMap *A, *B;
    int m, n, i, batch;

    __device__ void prefetch() const
    {
        prefetch_map(A);
        prefetch_map(B);
    }

    template <int BM, int BN>
    __device__ void fetch(number *a, number *b, int tile, Barrier *barrier) const
    {
        ::fetch<TRANSPOSE_A, COMPONENTS_A, BM>(a, A, m, tile * DEPTH, i, batch, barrier);
        ::fetch<!TRANSPOSE_B, COMPONENTS_B, BN>(b, B, n, tile * DEPTH, i, batch, barrier);
    }
};

// The grid's x counts tiles down D[0], then down D[1], ..., y across, z parts of K.
template <int GROUPS, int BN>
__device__ inline void gemm(int batch, int K, const TensorMap *A, const TensorMap *B, int stages, const Parts &parts,
                            Result result)
{
    const int BM = 64 * GROUPS, down = (result.M + BM - 1) / BM, i = blockIdx.x / down;
    const int m = (blockIdx.x - i * down) * BM, n = blockIdx.y * BN;
    result.D += (offset)i * result.M * result.ldd;
    result.C = result.D;
    const BatchTiles tiles = {A, B, m, n, i, batch};
    multiply_and_store<GROUPS, BN>(tiles, m, n, (K + DEPTH - 1) / DEPTH, stages, parts, false, result);
}

extern "C" __global__ void __launch_bounds__(256)
batch_64x64(int batch, int M, int N, int K, const TensorMap *A, const TensorMap *B, int stages, float4 *sums, int *done,
            real beta, real *D, int ldd)
{
    start_beside_previous_kernel(false);
    gemm<1, 64>(batch, K, A, B, stages, {sums, done}, {M, N, 1, beta, nullptr, nullptr, D, ldd, ldd});
}

extern "C" __global__ void __launch_bounds__(384, 1)
batch_128x64(int batch, int M, int N, int K, const TensorMap *A, const TensorMap *B, int stages, float4 *sums, int *done,
             real beta, real *D, int ldd)
{
    start_beside_previous_kernel(false);
    gemm<2, 64>(batch, K, A, B, stages, {sums, done}, {M, N, 1, beta, nullptr, nullptr, D, ldd, ldd});
}

extern "C" __global__ void __launch_bounds__(512, 1)
batch_192x64(int batch, int M, int N, int K, const TensorMap *A, const TensorMap *B, int stages, float4 *sums, int *done,
             real beta, real *D, int ldd)
{
    start_beside_previous_kernel(false);
    gemm<3, 64>(batch, K, A, B, stages, {sums, done}, {M, N, 1, beta, nullptr, nullptr, D, ldd, ldd});
}

extern "C" __global__ void __launch_bounds__(256)
batch_64x128(int batch, int M, int N, int K, const TensorMap *A, const TensorMap *B, int stages, float4 *sums, int *done,
             real beta, real *D, int ldd)
{
    start_beside_previous_kernel(false);
    gemm<1, 128>(batch, K, A, B, stages, {sums, done}, {M, N, 1, beta, nullptr, nullptr, D, ldd, ldd});
}

extern "C" __global__ void __launch_bounds__(384, 1)
batch_128x128(int batch, int M, int N, int K, const TensorMap *A, const TensorMap *B, int stages, float4 *sums, int *done,
              real beta, real *D, int ldd)
{
    start_beside_previous_kernel(false);
    gemm<2, 128>(batch, K, A, B, stages, {sums, done}, {M, N, 1, beta, nullptr, nullptr, D, ldd, ldd});
}

// For single components alone, as in wgmma.cu.
template <bool SINGLE>
__device__ inline void gemm_wide(int batch, int K, const TensorMap *A, const TensorMap *B, int stages,
                                 const Parts &parts, const Result &result)
{
    if constexpr (SINGLE)
        gemm<2, 256>(batch, K, A, B, stages, parts, result);
}

extern "C" __global__ void __launch_bounds__(384, 1)
batch_128x256(int batch, int M, int N, int K, const TensorMap *A, const TensorMap *B, int stages, float4 *sums, int *done,
              real beta, real *D, int ldd)
{
    start_beside_previous_kernel(false);
    gemm_wide<COMPONENTS == 11>(batch, K, A, B, stages, {sums, done}, {M, N, 1, beta, nullptr, nullptr, D, ldd, ldd});
}
