// A pipeline in which the tensor cores multiply one tile of D while the epilogue of another one runs: for single
// components, whose tiles take about as long to begin and to end as to multiply. As for operands and constants:
// gemm/wgmma_tiles.cuh.
#pragma once

#include "gemm/wgmma_tiles.cuh"

// ---------------------------------------------------------------------------------------------------------
// Block 384 threads, two warpgroups that multiply and one that fetches; a grid of at most as many blocks as the GPU has
// multiprocessors. Dynamic shared memory: `stages` buffers, each with a tile of both operands, DEPTH along k.
//
// - A block stays, and makes many tiles of D. Its two warpgroups take them in turns, and each makes whole tiles, all
//   BM x BN, in chains of 64 rows. A turn is to multiply: one has the tensor cores to itself, and meanwhile the other one
//   runs its epilogue.
// - The thread that fetches goes through the tiles in the same order. So it has filled the buffers when the next one
//   begins, whose turn it is whenever.
// - Blocks side by side have tiles side by side: what they read at one time is a few rows of op(A) and a few columns
//   of op(B), which the L2 cache keeps.
// ---------------------------------------------------------------------------------------------------------

static_assert(COMPONENTS == 11, "there are registers for one set of sums");

const int WARPGROUP_WARPS = 4;

struct TilePlace {
    int row, column;
};

// The tiles of D in the order in which blocks take them: ROWS rows of tiles at a time, and of these column by column.
struct TileOrder {
    static const int ROWS = 8;
    int down, across;

    __device__ int count() const { return down * across; }

    __device__ TilePlace place(int tile) const
    {
        const int group = tile / (ROWS * across), rest = tile - group * ROWS * across;
        const int rows = group * ROWS + ROWS <= down ? ROWS : down - group * ROWS, column = rest / rows;
        return {group * ROWS + rest - column * rows, column};
    }
};

template <int BM, int BN>
struct TurnBlock : Block<BM / 64, BN, MatrixTiles<128>> {
    static const int CHAINS = BM / 64;
    Barrier *turn;  // of each of the two warpgroups that multiply

    // Queues the products of a tile along k, which are added to the sums, or replace them.
    __device__ void start_chains(real (&sums)[CHAINS][BN / 2], Place &place, bool accumulate)
    {
        const number *a = this->ring + place.slot * this->STAGE, *b = a + BM * DEPTH;
        wait(&this->full[place.slot], place.round);
#pragma unroll
        for (int chain = 0; chain < CHAINS; chain++)
            begin_products(sums[chain]);
#pragma unroll
        for (int chain = 0; chain < CHAINS; chain++)
            multiply_tile<BN, TRANSPOSE_A, !TRANSPOSE_B>(sums[chain], a + chain * 64 * DEPTH, b, accumulate);
        end_products();
        place.advance(this->stages);
    }

    // The sums of a tile of D: `depth` tiles along k, in the buffers from `place` on. The other warpgroup's turn comes when
    // all products are queued.
    __device__ void take_turn(real (&sums)[CHAINS][BN / 2], int depth, Place &place, int warpgroup)
    {
        Place finished = place;
        for (int i = 0; i < depth; i++) {
            start_chains(sums, place, i > 0);
            if (i > 0) {
                wait_for_products<1>();
                this->release(finished);
            }
        }
        if (threadIdx.x % WARP == 0)
            arrive(&turn[1 - warpgroup]);
#pragma unroll
        for (int chain = 0; chain < CHAINS; chain++)
            wait_for_products<0>(sums[chain]);
        if (depth > 0)
            this->release(finished);
    }
};

// All tiles of D, `depth` along k. A warpgroup that has the sums of one, a row of them for each 64 rows, gives them to
// `finish`, with the place of the tile, and the number of the tile in the block.
template <int BM, int BN, class Finish>
__device__ inline void multiply_in_turns(const TileOrder &order, const TensorMap *A, const TensorMap *B, int depth,
                                         int stages, bool starts_early, const Finish &finish)
{
    extern __shared__ __align__(1024) number ring[];
    __shared__ Barrier full[MOST_STAGES];
    __shared__ Barrier empty[MOST_STAGES];
    __shared__ Barrier turn[2];
    TurnBlock<BM, BN> block = {{ring, full, empty, stages}, turn};

    if (threadIdx.x == 0) {
        for (int i = 0; i < stages; i++) {
            init_barrier(&full[i], 1);
            init_barrier(&empty[i], WARPGROUP_WARPS);
        }
        for (int i = 0; i < 2; i++)
            init_barrier(&turn[i], WARPGROUP_WARPS);
        fence_barrier_init();
    }
    __syncthreads();

    // Alike for all lanes, and the compiler must see it.
    const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / (WARPGROUP_WARPS * WARP), 0);
    Place place;
    if (warpgroup == 2) {
        give_registers<40>();
        if (threadIdx.x % (WARPGROUP_WARPS * WARP) == 0) {
            prefetch_map(A);
            prefetch_map(B);
            if (!starts_early)
                wait_for_previous_kernel();
            for (int tile = blockIdx.x; tile < order.count(); tile += gridDim.x) {
                const TilePlace at = order.place(tile);
                block.fetch_tiles({A, B, at.row * BM, at.column * BN}, 0, depth, place);
            }
        }
        return;
    }
    take_registers<232>();
    if (warpgroup == 1)
        place.skip(depth, stages);
    for (int index = warpgroup; blockIdx.x + index * gridDim.x < order.count(); index += 2) {
        real sums[TurnBlock<BM, BN>::CHAINS][BN / 2] = {};
        // The turn before it is the other one's last; before the first one of all there is none.
        wait(&turn[warpgroup], index / 2 % 2 ^ (warpgroup == 0));
        block.take_turn(sums, depth, place, warpgroup);
        place.skip(depth, stages);
        wait_for_previous_kernel();
        finish(order.place(blockIdx.x + index * gridDim.x), index, sums);
    }
}
