// Matrix product on the tensor cores of sm_90, of float32 operands split into bf16 terms:
// D = f(alpha op(A) op(B) + beta C + bias). The last rungs of the ladder that begins in gemm.cu.
// architectures: sm_90a
// constants: REAL=float TRANSPOSE_A=0 TRANSPOSE_B=1 TERMS=11|12|13|22|33 ACTIVATION=sigmoid|tanh|relu
// constants: REAL=float TRANSPOSE_A=0 TRANSPOSE_B=1 TERMS=12|13 ACTIVATION=identity
// constants: REAL=float TRANSPOSE_A=1 TRANSPOSE_B=0 TERMS=21|31 ACTIVATION=identity
// constants: REAL=float TRANSPOSE_A=0|1 TRANSPOSE_B=0|1 TERMS=11|22|33 ACTIVATION=identity
//
// A float32 number is the sum of three bf16 numbers, x = x1 + x2 + x3, to its last bit: each is the bf16
// nearest to what the ones before leave, and brings 8 bits of the 24. The product of two such sums is
//     x1 y1 + (x1 y2 + x2 y1) + (x1 y3 + x2 y2 + x3 y1) + what float32 would round away,
// six products that are exact in the tensor core, which adds in float32 (Henry, Tang, Heinecke, "Leveraging
// the bfloat16 artificial intelligence datatype for higher-precision computations", 2019). So a product
// costs six at bf16's speed, 15 times that of the plain float32 units. A pixel, 0 to 255, is one bf16
// number: with pixels it costs three. With two terms an operand has 16 bits, with one 8, where that is
// enough. An infinite number, or one beyond the largest bf16 (3.39e38), has an infinite first term: what it
// meets becomes infinite or NaN.
//
// TERMS says how many A and B have: 13 is one and three. Operands are given as their terms, matrices of one
// shape one behind the other, row-major; op(X) is X, or X transposed where TRANSPOSE_X is 1. C and D are M
// x N, row-major with leading dimensions; with beta == 0 C is not read and may be null, as may the bias of
// N numbers.

#include "common.cuh"
#include "bfloat16.cuh"
#include "result.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

const int TERMS_A = TERMS / 10, TERMS_B = TERMS % 10;

// ---------------------------------------------------------------------------------------------------------
// Splitting: the terms of two matrices in one launch.
//
// Block 64 x 4, no shared memory; the grid's x counts blocks down the rows, y across the columns (a thread
// takes four neighbours), any number of each; z is 2. Terms have a leading dimension that is a multiple of
// 4.
// ---------------------------------------------------------------------------------------------------------

__device__ inline void split_matrix(int rows, int columns, const real *X, int ldx, int count,
                                    bfloat16 *terms, int ld, int matrix)
{
    const bool wide = (size_t)X % 16 == 0 && ldx % 4 == 0;
    const int row_step = gridDim.x * blockDim.y, column_step = gridDim.y * blockDim.x * 4;
    for (offset row = blockIdx.x * blockDim.y + threadIdx.y; row < rows; row += row_step)
        for (int column = (blockIdx.y * blockDim.x + threadIdx.x) * 4; column < columns;
             column += column_step) {
            const real *source = X + row * ldx + column;
            float4 x = {0, 0, 0, 0};
            if (wide && column + 4 <= columns) {
                x = *(const float4 *)source;
            } else {
                x.x = source[0];
                x.y = column + 1 < columns ? source[1] : 0;
                x.z = column + 2 < columns ? source[2] : 0;
                x.w = column + 3 < columns ? source[3] : 0;
            }
            split4(x, count, terms + row * ld + column, matrix);
        }
}

// `matrix`: elements from one term to the next.
extern "C" __global__ void __launch_bounds__(256)
split_terms(int rows_a, int columns_a, const real *A, int lda, int count_a, bfloat16 *terms_a, int ld_a,
            int matrix_a, int rows_b, int columns_b, const real *B, int ldb, int count_b, bfloat16 *terms_b,
            int ld_b, int matrix_b)
{
    wait_for_kernel_before();
    if (blockIdx.z == 0)
        split_matrix(rows_a, columns_a, A, lda, count_a, terms_a, ld_a, matrix_a);
    else
        split_matrix(rows_b, columns_b, B, ldb, count_b, terms_b, ld_b, matrix_b);
}

// ---------------------------------------------------------------------------------------------------------
// The product.
//
// Block 128 (GROUPS + 1) threads, GROUPS warpgroups that multiply, each 64 x BN of D, and one that fetches;
// the grid's x counts tiles down D, y across, z parts of K. Dynamic shared memory: `stages` buffers, each
// with a tile of all terms of both operands, DEPTH along k.
//
// - The tensor memory accelerator brings whole tiles: one thread starts them, no other spends an
//   instruction. It waits where a buffer is still read, the others where it is not yet full, each by
//   barriers of its own: nobody ever waits for the whole block.
// - Tensor cores round toward zero when they add, 6e-6 off over a long K. So what they add up is one tile,
//   small products before large ones; tiles are added in float32 registers, while the next one is being
//   multiplied into another set.
// - Where D has too few tiles to fill the device, K is split into parts, whose sums are added in their order.
// ---------------------------------------------------------------------------------------------------------

const int DEPTH = 64;  // bf16 elements along k: a row of a tile is 128 bytes
const int MOST_STAGES = 8;

// Starts the copy of all terms of a tile, into rows of DEPTH or, where the operand is transposed, into
// DEPTH rows.
template <bool TRANSPOSED>
__device__ inline void fetch(bfloat16 *tile, const TensorMap *map, int line, int k, Barrier *barrier)
{
    if (TRANSPOSED)
        copy_box(tile, map, 0, k, line / 64, barrier);
    else
        copy_box(tile, map, k, line, 0, barrier);
}

// The same place in every ring of buffers: which one is next, and how often the ring was passed, modulo 2.
struct Place {
    int slot = 0, round = 0;

    __device__ void advance(int stages)
    {
        if (++slot == stages)
            slot = 0, round ^= 1;
    }
};

template <int GROUPS, int BN>
struct Block {
    static const int BM = 64 * GROUPS;
    static const int STAGE = (TERMS_A * BM + TERMS_B * BN) * DEPTH;  // elements

    bfloat16 *ring;
    Barrier *full, *empty;
    int stages;

    // By one thread: the tiles of k from `first` on, `count` of them.
    __device__ void fetch_tiles(const TensorMap *A, const TensorMap *B, int m, int n, int first, int count)
    {
        Place place;
        for (int tile = first; tile < first + count; tile++, place.advance(stages)) {
            bfloat16 *stage = ring + place.slot * STAGE;
            Barrier *barrier = &full[place.slot];
            wait(&empty[place.slot], place.round ^ 1);
            arrive_and_expect(barrier, STAGE * sizeof(bfloat16));
            fetch<TRANSPOSE_A>(stage, A, m, tile * DEPTH, barrier);
            fetch<!TRANSPOSE_B>(stage + TERMS_A * BM * DEPTH, B, n, tile * DEPTH, barrier);
        }
    }

    // Queues the products of the terms of a tile, the smallest first.
    __device__ void start(real (&products)[BN / 2], Place &place)
    {
        const bfloat16 *tile_a = ring + place.slot * STAGE + threadIdx.x / 128 * 64 * DEPTH;
        const bfloat16 *tile_b = ring + place.slot * STAGE + TERMS_A * BM * DEPTH;
        wait(&full[place.slot], place.round);
        begin_products(products);
        bool accumulate = false;
#pragma unroll
        for (int order = (TERMS_A > TERMS_B ? TERMS_A : TERMS_B) - 1; order >= 0; order--)
#pragma unroll
            for (int i = 0; i < TERMS_A; i++)
                if (order - i >= 0 && order - i < TERMS_B) {
                    multiply_tile<BN, TRANSPOSE_A, !TRANSPOSE_B>(
                        products, tile_a + i * BM * DEPTH, tile_b + (order - i) * BN * DEPTH, accumulate);
                    accumulate = true;
                }
        end_products();
        place.advance(stages);
    }

    // The products of a tile are there: its buffer is free.
    __device__ void add(real (&sums)[BN / 2], const real (&products)[BN / 2], Place &place)
    {
        if (threadIdx.x % WARP == 0)
            arrive(&empty[place.slot]);
        place.advance(stages);
#pragma unroll
        for (int i = 0; i < BN / 2; i++)
            sums[i] += products[i];
    }

    // One tile is multiplied while the one before it is added. (Written out, two tiles at a time: the
    // compiler must see which registers the tensor cores hold.)
    __device__ void multiply_tiles(real (&sums)[BN / 2], int count)
    {
        real even[BN / 2], odd[BN / 2];
        Place started, added;
        if (count == 0)
            return;
        start(even, started);
        int i = 1;
        for (; i + 1 < count; i += 2) {
            start(odd, started);
            wait_for_products<1>(even);
            add(sums, even, added);
            start(even, started);
            wait_for_products<1>(odd);
            add(sums, odd, added);
        }
        if (i < count) {
            start(odd, started);
            wait_for_products<1>(even);
            add(sums, even, added);
            wait_for_products<0>(odd);
            add(sums, odd, added);
        } else {
            wait_for_products<0>(even);
            add(sums, even, added);
        }
    }
};

template <int GROUPS, int BN>
__device__ inline void gemm(int M, int N, int K, const TensorMap *A, const TensorMap *B, int stages,
                            real *partials, const Result &result)
{
    extern __shared__ __align__(1024) bfloat16 ring[];
    __shared__ Barrier full[MOST_STAGES];
    __shared__ Barrier empty[MOST_STAGES];
    Block<GROUPS, BN> block = {ring, full, empty, stages};

    const int first_m = blockIdx.x * block.BM, first_n = blockIdx.y * BN;
    const int tiles = (K + DEPTH - 1) / DEPTH;
    const int first = tiles * blockIdx.z / gridDim.z, count = tiles * (blockIdx.z + 1) / gridDim.z - first;

    if (threadIdx.x == 0) {
        for (int i = 0; i < stages; i++) {
            init_barrier(&full[i], 1);
            init_barrier(&empty[i], 4 * GROUPS);
        }
        fence_barrier_init();
    }
    __syncthreads();

    // Registers are given to a block in equal shares; two warpgroups of 64 x 128 need more than theirs.
    const bool unequal = GROUPS == 2 && BN == 128;
    // Alike for all lanes, and the compiler must see it.
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / WARP, 0);
    if (warp >= 4 * GROUPS) {
        if (unequal)
            give_registers<40>();
        if (threadIdx.x == 128 * GROUPS)
            block.fetch_tiles(A, B, first_m, first_n, first, count);
        return;
    }
    if (unequal)
        take_registers<232>();
    real sums[BN / 2] = {};
    block.multiply_tiles(sums, count);

#pragma unroll
    for (int i = 0; i < BN / 2; i++) {
        const int m = first_m + product_row(i), n = first_n + product_column(i);
        if (m < M && n < N) {
            if (partials)
                partials[((offset)blockIdx.z * M + m) * N + n] = sums[i];
            else
                result.store(m, n, sums[i]);
        }
    }
}

// With `partials` (gridDim.z x M x N) what is stored are the sums of each part of K, for sum_parts.cu.

extern "C" __global__ void __launch_bounds__(256)
gemm_64x64(int M, int N, int K, const TensorMap *A, const TensorMap *B, int stages, real *partials,
           real alpha, real beta, const real *C, int ldc, const real *bias, real *D, int ldd)
{
    wait_for_kernel_before();
    gemm<1, 64>(M, N, K, A, B, stages, partials, {alpha, beta, C, bias, D, ldc, ldd});
}

extern "C" __global__ void __launch_bounds__(384)
gemm_128x64(int M, int N, int K, const TensorMap *A, const TensorMap *B, int stages, real *partials,
            real alpha, real beta, const real *C, int ldc, const real *bias, real *D, int ldd)
{
    wait_for_kernel_before();
    gemm<2, 64>(M, N, K, A, B, stages, partials, {alpha, beta, C, bias, D, ldc, ldd});
}

extern "C" __global__ void __launch_bounds__(512)
gemm_192x64(int M, int N, int K, const TensorMap *A, const TensorMap *B, int stages, real *partials,
            real alpha, real beta, const real *C, int ldc, const real *bias, real *D, int ldd)
{
    wait_for_kernel_before();
    gemm<3, 64>(M, N, K, A, B, stages, partials, {alpha, beta, C, bias, D, ldc, ldd});
}

extern "C" __global__ void __launch_bounds__(384)
gemm_128x128(int M, int N, int K, const TensorMap *A, const TensorMap *B, int stages, real *partials,
             real alpha, real beta, const real *C, int ldc, const real *bias, real *D, int ldd)
{
    wait_for_kernel_before();
    gemm<2, 128>(M, N, K, A, B, stages, partials, {alpha, beta, C, bias, D, ldc, ldd});
}
