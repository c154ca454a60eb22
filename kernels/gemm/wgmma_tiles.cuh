// The pipeline of a product on the tensor cores of sm_90: tiles come in while others are multiplied. What its
// operands are, and where D's tiles lie, is the affair of a kernel (wgmma.cu, conv/implicit.cu): it gives an
// object whose `fetch` starts the copies of a tile of both operands, WIDTH bytes along k. The constants: wgmma.cu.
#pragma once

#include "common.cuh"
#include "bfloat16.cuh"
#include "gemm/result.cuh"
#include "gemm/tma.cuh"
#include "gemm/wgmma.cuh"

typedef float tf32;
typedef NUMBER number;

const int COMPONENTS_A = COMPONENTS / 10, COMPONENTS_B = COMPONENTS % 10;

// ---------------------------------------------------------------------------------------------------------
// Block 128 (GROUPS + 1) threads, GROUPS warpgroups that multiply, each 64 x BN of D, and one that fetches;
// the grid's x and y count tiles of D, z parts of K. Dynamic shared memory: `stages` buffers, each with a tile
// of all components of both operands.
//
// - The tensor memory accelerator brings whole tiles: one thread starts them, no other spends an
//   instruction. It waits where a buffer is still read, the others where it is not yet full, each by
//   barriers of its own: nobody ever waits for the whole block.
// - Tensor cores round toward zero when they add, 6e-6 off over a long K. So what they add up is one tile,
//   small products before large ones; tiles are added in float32 registers, while the next one is being
//   multiplied into another set or, in the widest tiles, while other warpgroups multiply.
// - Where d is narrow, tensor cores wait for shared memory: an operand that they multiply several times goes
//   to registers first.
// - Where D has too few tiles to fill the device, K is split into parts, whose sums are added in their order
//   by the block that has the last one.
// ---------------------------------------------------------------------------------------------------------

const int DEPTH = 128 / sizeof(number);  // elements along k of a tile that is WIDTH = 128 bytes along k
const int MOST_STAGES = 8;

// Tiles that cover so many rows or columns; at least one, since no grid is empty.
__device__ inline int tiles_over(int size, int tile) { return size > tile ? (size + tile - 1) / tile : 1; }

// Blocks for whose registers a multiprocessor has room. Of two, one multiplies while the other begins or ends.
template <int GROUPS, int BN>
const int RESIDENT = COMPONENTS == 11 && GROUPS == 2 && BN == 64 ? 2 : 1;

// The same place in every ring of buffers: which one is next, and how often the ring was passed, modulo 2.
struct Place {
    int slot = 0, round = 0;

    __device__ void advance(int stages)
    {
        if (++slot == stages)
            slot = 0, round ^= 1;
    }

    __device__ void skip(int count, int stages)
    {
        const int passed = (slot + count) / stages;
        slot += count - passed * stages;
        round ^= passed & 1;
    }
};

template <int GROUPS, int BN, class Tiles>
struct Block {
    static const int BM = 64 * GROUPS, WIDTH = Tiles::WIDTH, DEPTH = WIDTH / sizeof(number);
    static const int STAGE = (COMPONENTS_A * BM + COMPONENTS_B * BN) * DEPTH;  // elements
    static const bool A_IN_REGISTERS =
        COMPONENTS_B > 1 && !TRANSPOSE_A && BN == 64 && (COMPONENTS_A == 1 || GROUPS == 1);

    number *ring;
    Barrier *full, *empty;
    int stages;

    // By one thread: the tiles of k from `first` on, `count` of them.
    __device__ void fetch_tiles(const Tiles &tiles, int first, int count, Place &place)
    {
        for (int tile = first; tile < first + count; tile++, place.advance(stages)) {
            number *stage = ring + place.slot * STAGE;
            Barrier *barrier = &full[place.slot];
            wait(&empty[place.slot], place.round ^ 1);
            arrive_and_expect(barrier, STAGE * sizeof(number));
            tiles.template fetch<BM, BN>(stage, stage + COMPONENTS_A * BM * DEPTH, tile, barrier);
        }
    }

    // Queues the products of the components of a tile, the smallest first; they are added to `products`, or
    // replace them.
    __device__ void start(real (&products)[BN / 2], Place &place, bool accumulate)
    {
        const number *tile_a = ring + place.slot * STAGE + threadIdx.x / 128 * 64 * DEPTH;
        const number *tile_b = ring + place.slot * STAGE + COMPONENTS_A * BM * DEPTH;
        wait(&full[place.slot], place.round);
        Lines lines[A_IN_REGISTERS ? COMPONENTS_A : 1];
        if (A_IN_REGISTERS)
#pragma unroll
            for (int i = 0; i < COMPONENTS_A; i++)
                read_lines(lines[i], tile_a + i * BM * DEPTH);
        begin_products(products);
#pragma unroll
        for (int order = (COMPONENTS_A > COMPONENTS_B ? COMPONENTS_A : COMPONENTS_B) - 1; order >= 0; order--)
#pragma unroll
            for (int i = 0; i < COMPONENTS_A; i++)
                if (order - i >= 0 && order - i < COMPONENTS_B) {
                    const number *b = tile_b + (order - i) * BN * DEPTH;
                    if constexpr (A_IN_REGISTERS)
                        multiply_tile<BN, !TRANSPOSE_B>(products, lines[i], b, accumulate);
                    else
                        multiply_tile<BN, TRANSPOSE_A, !TRANSPOSE_B, WIDTH>(products, tile_a + i * BM * DEPTH, b,
                                                                            accumulate);
                    accumulate = true;
                }
        end_products();
        place.advance(stages);
    }

    // The products of a tile are there: its buffer is free.
    __device__ void release(Place &place)
    {
        if (threadIdx.x % WARP == 0)
            arrive(&empty[place.slot]);
        place.advance(stages);
    }

    __device__ void add(real (&sums)[BN / 2], const real (&products)[BN / 2], Place &place)
    {
        release(place);
#pragma unroll
        for (int i = 0; i < BN / 2; i++)
            sums[i] += products[i];
    }

    // One tile is multiplied while the one before it is added. (Written out, two tiles at a time: the
    // compiler must see which registers the tensor cores hold.)
    __device__ void multiply_and_add_tiles(real (&sums)[BN / 2], int count)
    {
        real even[BN / 2], odd[BN / 2];
        Place started, added;
        if (count == 0)
            return;
        start(even, started, false);
        int i = 1;
        for (; i + 1 < count; i += 2) {
            start(odd, started, false);
            wait_for_products<1>(even);
            add(sums, even, added);
            start(even, started, false);
            wait_for_products<1>(odd);
            add(sums, odd, added);
        }
        if (i < count) {
            start(odd, started, false);
            wait_for_products<1>(even);
            add(sums, even, added);
            wait_for_products<0>(odd);
            add(sums, odd, added);
        } else {
            wait_for_products<0>(even);
            add(sums, even, added);
        }
    }

    // The same in one set of registers: a tile is multiplied and then added, while other warpgroups keep the tensor
    // cores busy. So that they do not all add at once, each one begins with a later tile in shared memory.
    __device__ void multiply_then_add_tiles(real (&sums)[BN / 2], int count)
    {
        real products[BN / 2];
        Place started, added;
        const int group = __shfl_sync(0xffffffff, threadIdx.x / 128, 0), there = count < stages ? count : stages;
        if (there > 0)
            wait(&full[group < there ? group : there - 1], 0);
        for (int i = 0; i < count; i++) {
            start(products, started, false);
            wait_for_products<0>(products);
            add(sums, products, added);
        }
    }

    // All tiles are added up in the tensor cores: what they round away is far below what a single term does.
    __device__ void multiply_tiles(real (&sums)[BN / 2], int count)
    {
        Place started, finished;
        for (int i = 0; i < count; i++) {
            start(sums, started, i > 0);
            if (i > 0) {
                wait_for_products<1>();
                release(finished);
            }
        }
        wait_for_products<0>(sums);
    }
};

// Does nothing more with two neighbours of D. A kernel whose result is another type overloads it.
__device__ inline void store_more(const Result &, int, int, float2) {}

// Two neighbours of a row of D; `wide` if both are in it, and aligned to 8 bytes.
template <class ResultOf>
__device__ inline void store(const ResultOf &result, int m, int n, real first, real second, bool wide)
{
    const float2 pair = {result.value(m, n, first), result.value(m, n + 1, second)};
    real *place = result.D + ((offset)m * result.ldd + n);
    if (wide) {
        *(float2 *)place = pair;
    } else {
        if (result.has(m, n))
            place[0] = pair.x;
        if (result.has(m, n + 1))
            place[1] = pair.y;
    }
    store_more(result, m, n, pair);
}

// Where K is in parts: what their blocks leave for the one of the last part.
struct Parts {
    float4 *sums;  // a tile for each block but the last ones, four numbers of each thread at a time
    int *done;     // how many parts a warp of a tile can find there; 0 before and after a launch
};

// Each warp adds up its own part of the tile: false in all blocks but that of the last part, which waits for
// the others (they were started before it) and adds in the order of the parts.
template <int GROUPS, int BN>
__device__ inline bool add_parts(const Parts &parts, real (&sums)[BN / 2])
{
    const int THREADS = 128 * GROUPS, last = gridDim.z - 1;
    const int tile = blockIdx.y * gridDim.x + blockIdx.x, tiles = gridDim.y * gridDim.x;
    const auto place = [&](int part, int i) {
        return parts.sums + ((offset)(part * tiles + tile) * (BN / 8) + i / 4) * THREADS + threadIdx.x;
    };
    int *done = parts.done + (tile * THREADS + threadIdx.x) / WARP;
    if (blockIdx.z < last) {
#pragma unroll
        for (int i = 0; i < BN / 2; i += 4)
            *place(blockIdx.z, i) = {sums[i], sums[i + 1], sums[i + 2], sums[i + 3]};
        __threadfence();
        __syncwarp();
        if (threadIdx.x % WARP == 0)
            atomicAdd(done, 1);
        return false;
    }
    if (threadIdx.x % WARP == 0) {
        while (atomicAdd(done, 0) < last) {
        }
        atomicExch(done, 0);
    }
    __syncwarp();
    __threadfence();
    const int AT_ONCE = 32;  // numbers, of so many parts as registers allow
#pragma unroll
    for (int first = 0; first < BN / 2; first += AT_ONCE) {
        real before[AT_ONCE] = {};
#pragma unroll GROUPS == 1 ? 4 : GROUPS * BN > 256 ? 1 : 2
        for (int part = 0; part < last; part++)
#pragma unroll
            for (int i = 0; i < AT_ONCE; i += 4) {
                const float4 p = *place(part, first + i);
                before[i] += p.x, before[i + 1] += p.y, before[i + 2] += p.z, before[i + 3] += p.w;
            }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            sums[first + i] = before[i] + sums[first + i];
    }
    return true;
}

// One tile of D; of `depth` tiles along k the block's part. Threads that have sums of all of K at last give them to
// `finish`. (The others return here: only so does the compiler give registers to those that multiply.)
template <int GROUPS, int BN, class Tiles, class Finish>
__device__ inline void multiply(const Tiles &tiles, int depth, int stages, const Parts &parts, bool starts_early,
                                const Finish &finish)
{
    extern __shared__ __align__(1024) number ring[];
    __shared__ Barrier full[MOST_STAGES];
    __shared__ Barrier empty[MOST_STAGES];
    Block<GROUPS, BN, Tiles> block = {ring, full, empty, stages};
    const int first = (offset)depth * blockIdx.z / gridDim.z;
    const int count = (offset)depth * (blockIdx.z + 1) / gridDim.z - first;

    if (threadIdx.x == 0) {
        for (int i = 0; i < stages; i++) {
            init_barrier(&full[i], 1);
            init_barrier(&empty[i], 4 * GROUPS);
        }
        fence_barrier_init();
    }
    __syncthreads();

    // Registers are given to a block in equal shares; those that multiply need more than theirs.
    const bool two = RESIDENT<GROUPS, BN> == 2;
    const int fetching = two ? 24 : GROUPS == 2 ? 40 : 32, multiplying = two ? 104 : GROUPS == 2 ? 232 : 160;
    // Alike for all lanes, and the compiler must see it.
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / WARP, 0);
    if (warp >= 4 * GROUPS) {
        if (GROUPS > 1)
            give_registers<fetching>();
        if (threadIdx.x == 128 * GROUPS) {
            tiles.prefetch();
            if (!starts_early)
                wait_for_previous_kernel();
            Place place;
            block.fetch_tiles(tiles, first, count, place);
        }
        return;
    }
    if (GROUPS > 1)
        take_registers<multiplying>();
    real sums[BN / 2] = {};
    if (COMPONENTS == 11)
        block.multiply_tiles(sums, count);
    else if (GROUPS * BN <= 256)
        block.multiply_and_add_tiles(sums, count);
    else
        block.multiply_then_add_tiles(sums, count);

    wait_for_previous_kernel();
    if (gridDim.z == 1 || add_parts<GROUPS, BN>(parts, sums))
        finish(sums);
}

// The row of a block's tile from which on this warpgroup has 64.
__device__ inline int strip_of_warpgroup() { return threadIdx.x / 128 * 64; }

// Tells whether two neighbours of a warpgroup's 64 rows of D can be stored at once: all are in it, and aligned to 8 bytes.
template <int BN>
__device__ inline bool stores_wide(const Result &result, int first_m, int first_n)
{
    return result.has(first_m + 63, first_n + BN - 1) && result.ldd % 2 == 0 &&
           (size_t)result.D % sizeof(float2) == 0;
}

// Stores a warpgroup's 64 x BN of D, from (first_m, first_n) on. (What is asked once for all is in no element's way.)
template <int BN, class ResultOf>
__device__ inline void store_strip(const ResultOf &result, int first_m, int first_n, const real (&sums)[BN / 2])
{
    const bool wide = stores_wide<BN>(result, first_m, first_n);
    if (wide && result.beta == 0 && !result.bias) {
        ResultOf plain = result;
        plain.beta = 0, plain.bias = nullptr;
#pragma unroll
        for (int i = 0; i < BN / 2; i += 2)
            store(plain, first_m + product_row(i), first_n + product_column(i), sums[i], sums[i + 1], true);
    } else {
#pragma unroll
        for (int i = 0; i < BN / 2; i += 2)
            store(result, first_m + product_row(i), first_n + product_column(i), sums[i], sums[i + 1], wide);
    }
}

// As `multiply`, and stores the tile, 64 GROUPS x BN from (first_m, first_n) on.
template <int GROUPS, int BN, class Tiles, class ResultOf>
__device__ inline void multiply_and_store(const Tiles &tiles, int first_m, int first_n, int depth, int stages,
                                          const Parts &parts, bool starts_early, const ResultOf &result)
{
    multiply<GROUPS, BN>(tiles, depth, stages, parts, starts_early, [&](real (&sums)[BN / 2]) {
        store_strip<BN>(result, first_m + strip_of_warpgroup(), first_n, sums);
    });
}
