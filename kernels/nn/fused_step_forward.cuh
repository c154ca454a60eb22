// First part of fused_step.cu: tiles of X W1^T, of pixels X that are not scaled yet.
#pragma once

const int ROWS = UNITS == 128 ? 32 : 16;  // of a tile: with many units arithmetic counts, and reading W1 again
const int HALVES = 2;                     // of its features, each for half of the warps
const int WARP_ROWS = ROWS * HALVES / WARPS;
const int GAP = 4;  // behind the features of a row: eight neighbours' 16 bytes lie in different banks

// In shared memory: X, ROWS rows, and W1, UNITS rows, each of chunk + GAP numbers.
struct ForwardTile {
    int row, feature;
    real *X, *W;
    int stride;
};

__device__ inline ForwardTile forward_tile(const Step &step, int tile, int chunks, real *shared)
{
    const int stride = step.chunk + GAP;
    return {tile / chunks * ROWS, tile % chunks * step.chunk, shared, shared + ROWS * stride, stride};
}

// A warp takes every WARPS-th row, a lane four pixels of each.
typedef HeldPixels<1> TilePixels[ROWS / WARPS];

// Asks for the images of a tile. Those whose rows are not aligned are put into shared memory at once.
__device__ inline void ask_for_images(const Step &step, const Batch &batch, const ForwardTile &tile,
                                      TilePixels &held)
{
    const int lane = threadIdx.x % WARP, column = 4 * lane;
#pragma unroll
    for (int i = 0; i < ROWS / WARPS; i++) {
        const int row = threadIdx.x / WARP + i * WARPS;
        const bool inside = tile.row + row < step.rows;
        const int there = inside ? step.inputs - tile.feature : 0;
        const pixel *image = inside ? batch.image(step, batch.order[tile.row + row]) + tile.feature : nullptr;
        if (step.wide)
            held[i].ask(image + column, there - column);
        else
            put_pixels(image, there, step.chunk, lane, WARP, tile.X + row * tile.stride);
    }
}

__device__ inline void put_images(const Step &step, const ForwardTile &tile, const TilePixels &held)
{
    const int column = threadIdx.x % WARP * 4;
    if (step.wide)
#pragma unroll
        for (int i = 0; i < ROWS / WARPS; i++)
            held[i].put(step.chunk - column,
                        tile.X + (threadIdx.x / WARP + i * WARPS) * tile.stride + column);
}

// Starts copies of a tile's weights: a warp takes every WARPS-th unit, a lane four of its weights.
__device__ inline void ask_for_weights(const Step &step, const ForwardTile &tile, const real *W1, AsyncCopies &copies)
{
    const int lane = threadIdx.x % WARP, column = 4 * lane, first = threadIdx.x / WARP;
    const int there = step.inputs - tile.feature;
    const real *const source = W1 + tile.feature;
    if (!step.wide) {
        for (int unit = first; unit < UNITS; unit += WARPS)
            for (int i = lane; i < step.chunk; i += WARP)
                tile.W[unit * tile.stride + i] =
                    unit < step.hidden && i < there ? source[(offset)unit * step.inputs + i] : 0;
        return;
    }
    if (column < step.chunk)
        for (int unit = first; unit < UNITS; unit += WARPS) {
            const bool inside = unit < step.hidden && column < there;
            const real *const from = inside ? source + (offset)unit * step.inputs + column : W1;
            copies.start<16>(tile.W + unit * tile.stride + column, from, inside ? min(there - column, 4) : 0);
        }
    copies.end_group();
}

// WARP_ROWS rows of the tile, of which a lane has every WARP-th unit, over half of the features.
__device__ inline void multiply(const Step &step, const ForwardTile &tile, real (&sums)[WARP_ROWS][LANE_UNITS])
{
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int half = warp / (WARPS / HALVES), part = step.chunk / HALVES;
    const real *const x = tile.X + warp % (WARPS / HALVES) * WARP_ROWS * tile.stride + half * part;
    const real *const w = tile.W + lane * tile.stride + half * part;
#pragma unroll 1
    for (int i = 0; i < part; i += 4) {
        Four left[WARP_ROWS], right[LANE_UNITS];
#pragma unroll
        for (int m = 0; m < WARP_ROWS; m++)
            left[m] = *(const Four *)(x + m * tile.stride + i);
#pragma unroll
        for (int n = 0; n < LANE_UNITS; n++)
            right[n] = *(const Four *)(w + n * WARP * tile.stride + i);
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
            for (int m = 0; m < WARP_ROWS; m++)
#pragma unroll
                for (int n = 0; n < LANE_UNITS; n++)
                    sums[m][n] += left[m].of[k] * right[n].of[k];
    }
}

// The sums of both halves, to where the rows' warps find them.
__device__ inline void put_sums(const Step &step, const ForwardTile &tile, int chunk_number,
                                const real (&sums)[WARP_ROWS][LANE_UNITS])
{
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int first = warp % (WARPS / HALVES) * WARP_ROWS;
    __syncthreads();  // W has been read: the second half's sums take its place
    if (warp >= WARPS / HALVES)
#pragma unroll
        for (int m = 0; m < WARP_ROWS; m++)
#pragma unroll
            for (int n = 0; n < LANE_UNITS; n++)
                tile.W[(first + m) * UNITS + n * WARP + lane] = sums[m][n];
    __syncthreads();
    if (warp >= WARPS / HALVES)
        return;
    real *const out = step.sums + (chunk_number * step.rows + tile.row) * UNITS;
#pragma unroll
    for (int m = 0; m < WARP_ROWS; m++)
        if (tile.row + first + m < step.rows)
#pragma unroll
            for (int n = 0; n < LANE_UNITS; n++) {
                const int at = (first + m) * UNITS + n * WARP + lane;
                tell<1>(out + at, {sums[m][n] + tile.W[at]});
            }
}

// All tiles of this block. Images come while the kernel before still runs; once it is done, `ask` for what other parts
// need of it, by `copies`, which are there at the end of this one.
template <typename Ask>
__device__ inline void forward(const Step &step, const Batch &batch, const real *W1, real *shared, AsyncCopies &copies,
                               Ask ask)
{
    const int chunks = step.chunks;
    const int tiles = (step.rows + ROWS - 1) / ROWS * chunks, first = blockIdx.x;
    TilePixels held;
    if (first < tiles)
        ask_for_images(step, batch, forward_tile(step, first, chunks, shared), held);
    wait_for_previous_kernel();
    ask();
#pragma unroll 1
    for (int number = first; number < tiles; number += gridDim.x) {
        const ForwardTile tile = forward_tile(step, number, chunks, shared);
        if (number != first) {
            __syncthreads();
            ask_for_images(step, batch, tile, held);
        }
        ask_for_weights(step, tile, W1, copies);
        put_images(step, tile, held);
        copies.wait<0>();
        __syncthreads();
        real sums[WARP_ROWS][LANE_UNITS] = {};
        multiply(step, tile, sums);
        put_sums(step, tile, number % chunks, sums);
    }
    copies.wait<0>();
    __syncthreads();
}
