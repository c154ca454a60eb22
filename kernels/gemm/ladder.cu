// Matrix product: D = alpha op(A) op(B) + beta C, in seven versions from naive to fast: here the first three,
// the others in thread_tiles.cu.
// constants: REAL=float|double TRANSPOSE_A=0|1 TRANSPOSE_B=0|1
//
// op(X) is X, or X transposed where TRANSPOSE_X is 1. op(A) is M x K, op(B) is K x N, C and D are M x N.
// All are row-major with a leading dimension (elements from one row to the next), so each may be a column
// slice of a wider matrix. D must not overlap A or B; C may be D itself. With beta == 0 C is not read and
// may be null. K == 0 gives beta C.
//
// The kernels take the same arguments. In all of them the grid's x counts blocks down the rows of D
// and y counts blocks across its columns (a network's batch makes D tall, and only x may pass 65535).

#include "gemm/ladder.cuh"

__device__ inline offset index_a(int m, int k, int lda)
{
    return TRANSPOSE_A ? (offset)k * lda + m : (offset)m * lda + k;
}

__device__ inline offset index_b(int k, int n, int ldb)
{
    return TRANSPOSE_B ? (offset)n * ldb + k : (offset)k * ldb + n;
}

// ---------------------------------------------------------------------------------------------------------
// 1. One thread an element.
//
// Block 32 x 8, no shared memory. A warp holds 32 neighbours in a row of D, so that its reads of B and its
// writes of D are coalesced; but every operand element is read again by each of the M or N threads that
// need it.
// ---------------------------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(256)
gemm_naive(int M, int N, int K, real alpha, const real *A, int lda, const real *B, int ldb,
           real beta, const real *C, int ldc, real *D, int ldd)
{
    wait_for_previous_kernel();
    const int m = blockIdx.x * blockDim.y + threadIdx.y;
    const int n = blockIdx.y * blockDim.x + threadIdx.x;
    if (m >= M || n >= N)
        return;

    real sum = 0;
    for (int k = 0; k < K; k++)
        sum += A[index_a(m, k, lda)] * B[index_b(k, n, ldb)];
    store(m, n, sum, alpha, beta, C, ldc, D, ldd);
}

// ---------------------------------------------------------------------------------------------------------
// 2. Tiles in shared memory: each operand element is read from global memory M/32 or N/32 times instead of
// M or N.
//
// Block 32 x 32, a 32 x 32 tile of D; shared memory: a 32 x 32 tile of each operand. Whatever the
// transposition, threadIdx.x runs along the index that is contiguous in memory, so global reads are
// coalesced; where that is the tile's row index, the write to shared memory goes down a column, and the
// 33rd column keeps the 32 rows of such a write in 32 different banks.
// ---------------------------------------------------------------------------------------------------------

const int SQUARE = 32;

extern "C" __global__ void __launch_bounds__(1024)
gemm_shared(int M, int N, int K, real alpha, const real *A, int lda, const real *B, int ldb,
            real beta, const real *C, int ldc, real *D, int ldd)
{
    wait_for_previous_kernel();
    __shared__ real tile_a[SQUARE][SQUARE + 1];  // [m][k]
    __shared__ real tile_b[SQUARE][SQUARE + 1];  // [k][n]

    const int x = threadIdx.x, y = threadIdx.y;
    const int first_m = blockIdx.x * SQUARE, first_n = blockIdx.y * SQUARE;
    const int a_m = TRANSPOSE_A ? x : y, a_k = TRANSPOSE_A ? y : x;
    const int b_k = TRANSPOSE_B ? x : y, b_n = TRANSPOSE_B ? y : x;

    real sum = 0;
    for (int first_k = 0; first_k < K; first_k += SQUARE) {
        const bool a_inside = first_m + a_m < M && first_k + a_k < K;
        const bool b_inside = first_n + b_n < N && first_k + b_k < K;
        tile_a[a_m][a_k] = a_inside ? A[index_a(first_m + a_m, first_k + a_k, lda)] : 0;
        tile_b[b_k][b_n] = b_inside ? B[index_b(first_k + b_k, first_n + b_n, ldb)] : 0;
        __syncthreads();
        for (int k = 0; k < SQUARE; k++)
            sum += tile_a[y][k] * tile_b[k][x];
        __syncthreads();  // nobody refills a tile that others still read
    }
    if (first_m + y < M && first_n + x < N)
        store(first_m + y, first_n + x, sum, alpha, beta, C, ldc, D, ldd);
}

// ---------------------------------------------------------------------------------------------------------
// 3. Many results a thread: what a thread reads from shared memory it uses for 16 results, from registers
//    (Volkov and Demmel, "Benchmarking GPUs to tune dense linear algebra", 2008).
//
// Block 16 x 4 = 64 threads; shared memory: a 4 x 16 tile of the right operand. The published kernel takes
// column-major operands: the block makes 64 x 16 of the result, a thread one row of it: 16 sums in
// registers, from a 1 x 4 strip of the left operand that is its own and the tile that all share.
// Neighbouring threads hold neighbouring rows, and so their strips are coalesced in column-major storage,
// and only there.
//
// A row-major matrix is its column-major transpose, and D = A B is D' = B' A'. So this kernel computes D':
// its left operand is op(B)', its right one op(A)', "a row of the result" is a column n of D, and the
// block's 64 x 16 covers 64 columns and 16 rows of D. Slices and stores are coalesced again (strips not if
// B is transposed, as a transposed left operand is not in the published kernel either).
// ---------------------------------------------------------------------------------------------------------

const int STRIP = 4;        // depth of a step along k
const int TILE_WIDTH = 16;  // columns of D' (rows of D) that a block makes, the sums of a thread
const int TILE_ROWS = 64;   // rows of D' (columns of D) that a block makes, its threads

extern "C" __global__ void __launch_bounds__(64)
gemm_register(int M, int N, int K, real alpha, const real *A, int lda, const real *B, int ldb,
              real beta, const real *C, int ldc, real *D, int ldd)
{
    wait_for_previous_kernel();
    __shared__ real tile[STRIP][TILE_WIDTH];  // [k][m]

    const int thread = threadIdx.y * 16 + threadIdx.x;
    const int n = blockIdx.y * TILE_ROWS + thread;
    const int first_m = blockIdx.x * TILE_WIDTH;
    // Each thread fetches one element of the tile, neighbours along what is contiguous in A.
    const int tile_k = TRANSPOSE_A ? threadIdx.y : thread % STRIP;
    const int tile_m = TRANSPOSE_A ? threadIdx.x : thread / STRIP;

    real sums[TILE_WIDTH] = {};
    for (int first_k = 0; first_k < K; first_k += STRIP) {
        const int m = first_m + tile_m, k = first_k + tile_k;
        tile[tile_k][tile_m] = m < M && k < K ? A[index_a(m, k, lda)] : 0;
        real slice[STRIP];
#pragma unroll
        for (int i = 0; i < STRIP; i++)
            slice[i] = n < N && first_k + i < K ? B[index_b(first_k + i, n, ldb)] : 0;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < STRIP; i++)
#pragma unroll
            for (int j = 0; j < TILE_WIDTH; j++)
                sums[j] += slice[i] * tile[i][j];
        __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < TILE_WIDTH; j++)
        if (n < N && first_m + j < M)
            store(first_m + j, n, sums[j], alpha, beta, C, ldc, D, ldd);
}
