// Matrix product: D = alpha op(A) op(B) + beta C, versions 4 to 7 of the ladder that begins in ladder.cu.
// constants: REAL=float|double TRANSPOSE_A=0|1 TRANSPOSE_B=0|1
//
// In all of them a block makes a tile of D, and each of its threads a tile of that, in registers. Arguments
// and grid are those of ladder.cu.

#include "gemm/ladder.cuh"

// ---------------------------------------------------------------------------------------------------------
// 4. A block of results a thread: a value from shared memory meets 4 or 8 others in registers.
//
// 128 threads in x; shared memory: a 64 x 32 tile of each operand (64 x 16 in float64), 16.25 KiB. The block
// makes 64 x 64 of D, a thread 8 x 4 of it: for each k it reads 8 values of A and 4 of B, and 12 values give
// 32 multiply-adds. In gemm_register 17 values give 16. Both operands are shared now: each element comes
// from global memory M/64 or N/64 times. Two barriers are for 32 k instead of 4.
//
// A thread's 8 x 4 lie 8 rows and 16 columns apart. So the lanes of a warp read 2 neighbours of A and 16 of B
// at once, and write 16 neighbours of D. As in gemm_shared, a row of a tile has one element more than it
// needs, so that a write down a column meets different banks.
// ---------------------------------------------------------------------------------------------------------

const int VECTOR = 16 / sizeof(real);  // elements in 16 bytes
const int BLOCK_M = 64, BLOCK_N = 64, BLOCK_K = 8 * VECTOR;
const int THREAD_M = 8, THREAD_N = 4;
const int THREADS_M = BLOCK_M / THREAD_M, THREADS_N = BLOCK_N / THREAD_N;
const int THREADS = THREADS_M * THREADS_N;

// A "line" is what an operand has besides k: a row m of op(A), a column n of op(B). In shared memory both
// tiles are stored alike, BLOCK_K rows of LINES elements, because threads read a few lines of one k at a
// time.

// Copies the tile of one operand. What lies outside the operand counts as zero.
template <bool K_CONTIGUOUS, int LINES>
__device__ inline void copy_tile(real (*tile)[LINES + 1], const real *operand, int ld, int lines, int K,
                                 int first_line, int first_k)
{
#pragma unroll
    for (int i = 0; i < LINES * BLOCK_K / THREADS; i++) {
        const int index = threadIdx.x + i * THREADS;
        const int tile_line = K_CONTIGUOUS ? index / BLOCK_K : index % LINES;
        const int tile_k = K_CONTIGUOUS ? index % BLOCK_K : index / LINES;
        const int line = first_line + tile_line, k = first_k + tile_k;
        const real *source = operand + (K_CONTIGUOUS ? (offset)line * ld + k : (offset)k * ld + line);
        tile[tile_k][tile_line] = line < lines && k < K ? *source : 0;
    }
}

__device__ inline void add_products(real (&sums)[THREAD_M][THREAD_N], const real (&a)[THREAD_M],
                                    const real (&b)[THREAD_N])
{
#pragma unroll
    for (int i = 0; i < THREAD_M; i++)
#pragma unroll
        for (int j = 0; j < THREAD_N; j++)
            sums[i][j] += a[i] * b[j];
}

extern "C" __global__ void __launch_bounds__(128)
gemm_block(int M, int N, int K, real alpha, const real *A, int lda, const real *B, int ldb,
           real beta, const real *C, int ldc, real *D, int ldd)
{
    wait_for_previous_kernel();
    __shared__ real tile_a[BLOCK_K][BLOCK_M + 1];
    __shared__ real tile_b[BLOCK_K][BLOCK_N + 1];

    const int thread_m = threadIdx.x / THREADS_N, thread_n = threadIdx.x % THREADS_N;
    const int block_m = blockIdx.x * BLOCK_M, block_n = blockIdx.y * BLOCK_N;

    real sums[THREAD_M][THREAD_N] = {};
    for (int first_k = 0; first_k < K; first_k += BLOCK_K) {
        copy_tile<!TRANSPOSE_A, BLOCK_M>(tile_a, A, lda, M, K, block_m, first_k);
        copy_tile<TRANSPOSE_B, BLOCK_N>(tile_b, B, ldb, N, K, block_n, first_k);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < BLOCK_K; k++) {
            real a[THREAD_M], b[THREAD_N];
#pragma unroll
            for (int i = 0; i < THREAD_M; i++)
                a[i] = tile_a[k][thread_m + i * THREADS_M];
#pragma unroll
            for (int j = 0; j < THREAD_N; j++)
                b[j] = tile_b[k][thread_n + j * THREADS_N];
            add_products(sums, a, b);
        }
        __syncthreads();
    }

#pragma unroll
    for (int i = 0; i < THREAD_M; i++)
#pragma unroll
        for (int j = 0; j < THREAD_N; j++) {
            const int m = block_m + thread_m + i * THREADS_M;
            const int n = block_n + thread_n + j * THREADS_N;
            if (m < M && n < N)
                store(m, n, sums[i][j], alpha, beta, C, ldc, D, ldd);
        }
}

// ---------------------------------------------------------------------------------------------------------
// 5. Memory moves 16 bytes at a time: in float32 a quarter of the load instructions.
//
// 128 threads in x; shared memory: a 64 x 32 tile of each operand (64 x 16 in float64), 16 KiB. Tiles are
// those of gemm_block, but a thread's 8 x 4 are whole vectors: 4 neighbours in float32, 2 in float64. A row
// of a tile is whole vectors, too, and has no room for one element more: a permutation of its vectors keeps
// banks apart. Global memory is read 16 bytes at a time wherever alignment allows.
// ---------------------------------------------------------------------------------------------------------

struct alignas(16) Vector {
    real lane[VECTOR];
};

// Place of an element in a tile. An operand that is contiguous along k is transposed on the way in: the 8
// lanes that hold 8 * VECTOR neighbouring k of a line write to as many rows, the same column in each.
// Permuting the row's vectors by xor with k / VECTOR puts these writes into different banks, and leaves
// every vector whole for the reads.
template <int LINES>
__device__ inline int slot(int k, int line)
{
    return k * LINES + ((line / VECTOR) ^ (k / VECTOR)) * VECTOR + line % VECTOR;
}

// Moves the tile of one operand from global memory to registers, and from there to shared memory.
template <bool K_CONTIGUOUS, int LINES>
struct TileLoader {
    static const int COUNT = LINES * BLOCK_K / VECTOR / THREADS;
    static const int ACROSS = (K_CONTIGUOUS ? BLOCK_K : LINES) / VECTOR;  // vectors side by side in memory

    Vector held[COUNT];

    __device__ static int tile_k(int i)
    {
        const int index = threadIdx.x + i * THREADS;
        return K_CONTIGUOUS ? index % ACROSS * VECTOR : index / ACROSS;
    }

    __device__ static int tile_line(int i)
    {
        const int index = threadIdx.x + i * THREADS;
        return K_CONTIGUOUS ? index / ACROSS : index % ACROSS * VECTOR;
    }

    // `wide` says that 16-byte loads are aligned. What lies outside the operand counts as zero.
    __device__ void fetch(const real *operand, int ld, bool wide, int lines, int K,
                          int first_line, int first_k)
    {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const int line = first_line + tile_line(i), k = first_k + tile_k(i);
            const real *source = operand + (K_CONTIGUOUS ? (offset)line * ld + k : (offset)k * ld + line);
            const int inside = K_CONTIGUOUS ? (line < lines ? K - k : 0) : (k < K ? lines - line : 0);
            if (wide && inside >= VECTOR) {
                held[i] = *(const Vector *)source;
            } else {
#pragma unroll
                for (int v = 0; v < VECTOR; v++)
                    held[i].lane[v] = v < inside ? source[v] : 0;
            }
        }
    }

    __device__ void put(real *tile) const
    {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const int line = tile_line(i), k = tile_k(i);
            if (K_CONTIGUOUS) {
#pragma unroll
                for (int v = 0; v < VECTOR; v++)
                    tile[slot<LINES>(k + v, line)] = held[i].lane[v];
            } else {
                *(Vector *)&tile[slot<LINES>(k, line)] = held[i];
            }
        }
    }
};

// Place of the i-th result of a thread along one side of a tile that COUNT threads share. Vectors of a thread
// lie COUNT vectors apart, so that the vectors which a warp reads together are neighbours in shared memory.
template <int COUNT>
__device__ inline int place(int thread, int i)
{
    return (i / VECTOR * COUNT + thread) * VECTOR + i % VECTOR;
}

template <int VALUES, int COUNT, int LINES>
__device__ inline void read_tile(real (&values)[VALUES], const real *tile, int k, int first, int thread)
{
#pragma unroll
    for (int i = 0; i < VALUES; i += VECTOR) {
        const Vector vector = *(const Vector *)&tile[slot<LINES>(k, first + place<COUNT>(thread, i))];
#pragma unroll
        for (int v = 0; v < VECTOR; v++)
            values[i + v] = vector.lane[v];
    }
}

__device__ inline bool allows_vectors(const real *operand, int ld)
{
    return (size_t)operand % sizeof(Vector) == 0 && ld % VECTOR == 0;
}

extern "C" __global__ void __launch_bounds__(128)
gemm_vector(int M, int N, int K, real alpha, const real *A, int lda, const real *B, int ldb,
            real beta, const real *C, int ldc, real *D, int ldd)
{
    wait_for_previous_kernel();
    __shared__ Vector tile_a[BLOCK_K * BLOCK_M / VECTOR];
    __shared__ Vector tile_b[BLOCK_K * BLOCK_N / VECTOR];

    const int thread_m = threadIdx.x / THREADS_N, thread_n = threadIdx.x % THREADS_N;
    const int block_m = blockIdx.x * BLOCK_M, block_n = blockIdx.y * BLOCK_N;
    const bool wide_a = allows_vectors(A, lda), wide_b = allows_vectors(B, ldb);

    TileLoader<!TRANSPOSE_A, BLOCK_M> loader_a;
    TileLoader<TRANSPOSE_B, BLOCK_N> loader_b;
    real sums[THREAD_M][THREAD_N] = {};
    for (int first_k = 0; first_k < K; first_k += BLOCK_K) {
        loader_a.fetch(A, lda, wide_a, M, K, block_m, first_k);
        loader_b.fetch(B, ldb, wide_b, N, K, block_n, first_k);
        loader_a.put(tile_a->lane);
        loader_b.put(tile_b->lane);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < BLOCK_K; k++) {
            real a[THREAD_M], b[THREAD_N];
            read_tile<THREAD_M, THREADS_M, BLOCK_M>(a, tile_a->lane, k, 0, thread_m);
            read_tile<THREAD_N, THREADS_N, BLOCK_N>(b, tile_b->lane, k, 0, thread_n);
            add_products(sums, a, b);
        }
        __syncthreads();
    }

#pragma unroll
    for (int i = 0; i < THREAD_M; i++)
#pragma unroll
        for (int j = 0; j < THREAD_N; j++) {
            const int m = block_m + place<THREADS_M>(thread_m, i);
            const int n = block_n + place<THREADS_N>(thread_n, j);
            if (m < M && n < N)
                store(m, n, sums[i][j], alpha, beta, C, ldc, D, ldd);
        }
}

// ---------------------------------------------------------------------------------------------------------
// 6. A tile for each warp: its lanes read the same values more often.
//
// 128 threads in x; shared memory as in gemm_vector. Each of the block's 2 x 2 warps makes 32 x 32 of D, each
// of a warp's 4 x 8 lanes 8 x 4 of that. A warp of gemm_vector makes 16 x 64, and reads 16 + 64 different
// values for each k; here it reads 32 + 32, since a square has the shortest sides for its area.
// ---------------------------------------------------------------------------------------------------------

const int WARP_M = 32, WARP_N = 32;
const int LANES_M = WARP_M / THREAD_M, LANES_N = WARP_N / THREAD_N;
const int WARPS_N = BLOCK_N / WARP_N;

extern "C" __global__ void __launch_bounds__(128)
gemm_warp(int M, int N, int K, real alpha, const real *A, int lda, const real *B, int ldb,
          real beta, const real *C, int ldc, real *D, int ldd)
{
    wait_for_previous_kernel();
    __shared__ Vector tile_a[BLOCK_K * BLOCK_M / VECTOR];
    __shared__ Vector tile_b[BLOCK_K * BLOCK_N / VECTOR];

    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int lane_m = lane / LANES_N, lane_n = lane % LANES_N;
    const int warp_m = warp / WARPS_N * WARP_M, warp_n = warp % WARPS_N * WARP_N;
    const int block_m = blockIdx.x * BLOCK_M, block_n = blockIdx.y * BLOCK_N;
    const bool wide_a = allows_vectors(A, lda), wide_b = allows_vectors(B, ldb);

    TileLoader<!TRANSPOSE_A, BLOCK_M> loader_a;
    TileLoader<TRANSPOSE_B, BLOCK_N> loader_b;
    real sums[THREAD_M][THREAD_N] = {};
    for (int first_k = 0; first_k < K; first_k += BLOCK_K) {
        loader_a.fetch(A, lda, wide_a, M, K, block_m, first_k);
        loader_b.fetch(B, ldb, wide_b, N, K, block_n, first_k);
        loader_a.put(tile_a->lane);
        loader_b.put(tile_b->lane);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < BLOCK_K; k++) {
            real a[THREAD_M], b[THREAD_N];
            read_tile<THREAD_M, LANES_M, BLOCK_M>(a, tile_a->lane, k, warp_m, lane_m);
            read_tile<THREAD_N, LANES_N, BLOCK_N>(b, tile_b->lane, k, warp_n, lane_n);
            add_products(sums, a, b);
        }
        __syncthreads();
    }

#pragma unroll
    for (int i = 0; i < THREAD_M; i++)
#pragma unroll
        for (int j = 0; j < THREAD_N; j++) {
            const int m = block_m + warp_m + place<LANES_M>(lane_m, i);
            const int n = block_n + warp_n + place<LANES_N>(lane_n, j);
            if (m < M && n < N)
                store(m, n, sums[i][j], alpha, beta, C, ldc, D, ldd);
        }
}

// ---------------------------------------------------------------------------------------------------------
// 7. Loads that overlap arithmetic.
//
// 128 threads in x; shared memory: two buffers of a tile of each operand, 32 KiB. Tiles of block, warp and
// thread are those of gemm_warp. While the block multiplies one pair of tiles it already holds the next pair
// in registers, on its way from global memory; these go to the other buffer, so one barrier a tile is enough.
//
// Blocks this small are for the sizes of a network's layers: 750 x 512 makes 96 of them for the 132
// multiprocessors of an H100, where 128 x 128 would make 24.
// ---------------------------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(128)
gemm_tiled(int M, int N, int K, real alpha, const real *A, int lda, const real *B, int ldb,
           real beta, const real *C, int ldc, real *D, int ldd)
{
    wait_for_previous_kernel();
    __shared__ Vector tile_a[2][BLOCK_K * BLOCK_M / VECTOR];
    __shared__ Vector tile_b[2][BLOCK_K * BLOCK_N / VECTOR];

    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int lane_m = lane / LANES_N, lane_n = lane % LANES_N;
    const int warp_m = warp / WARPS_N * WARP_M, warp_n = warp % WARPS_N * WARP_N;
    const int block_m = blockIdx.x * BLOCK_M, block_n = blockIdx.y * BLOCK_N;
    const bool wide_a = allows_vectors(A, lda), wide_b = allows_vectors(B, ldb);

    TileLoader<!TRANSPOSE_A, BLOCK_M> loader_a;
    TileLoader<TRANSPOSE_B, BLOCK_N> loader_b;
    loader_a.fetch(A, lda, wide_a, M, K, block_m, 0);
    loader_b.fetch(B, ldb, wide_b, N, K, block_n, 0);
    loader_a.put(tile_a[0]->lane);
    loader_b.put(tile_b[0]->lane);
    __syncthreads();

    real sums[THREAD_M][THREAD_N] = {};
    int current = 0;
    for (int first_k = 0; first_k < K; first_k += BLOCK_K) {
        const int next_k = first_k + BLOCK_K;
        if (next_k < K) {
            loader_a.fetch(A, lda, wide_a, M, K, block_m, next_k);
            loader_b.fetch(B, ldb, wide_b, N, K, block_n, next_k);
        }
#pragma unroll
        for (int k = 0; k < BLOCK_K; k++) {
            real a[THREAD_M], b[THREAD_N];
            read_tile<THREAD_M, LANES_M, BLOCK_M>(a, tile_a[current]->lane, k, warp_m, lane_m);
            read_tile<THREAD_N, LANES_N, BLOCK_N>(b, tile_b[current]->lane, k, warp_n, lane_n);
            add_products(sums, a, b);
        }
        current ^= 1;
        if (next_k < K) {
            loader_a.put(tile_a[current]->lane);
            loader_b.put(tile_b[current]->lane);
        }
        __syncthreads();
    }

#pragma unroll
    for (int i = 0; i < THREAD_M; i++)
#pragma unroll
        for (int j = 0; j < THREAD_N; j++) {
            const int m = block_m + warp_m + place<LANES_M>(lane_m, i);
            const int n = block_n + warp_n + place<LANES_N>(lane_n, j);
            if (m < M && n < N)
                store(m, n, sums[i][j], alpha, beta, C, ldc, D, ldd);
        }
}
