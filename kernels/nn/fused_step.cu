// A whole training step of a small network with one hidden layer, from the images to all gradients, in one launch.
// architectures: sm_80 sm_90a
// constants: REAL=float PIXEL=uint8|float32 HEAD=softmax|sigmoid ACTIVATION=identity|sigmoid|tanh|relu UNITS=32|64|128
//
// With X the batch's images / pixel_scale, and t the one-hot vector of a row's label:
//   A = f(X W1^T + b1)      loss and G = scale (p - t) of A W2^T + b2, as head.cu has them      dZ = (G W2) f'(A)
//   dW1 = dZ^T X      db1 = column sums of dZ      dW2 = G^T A      db2 = column sums of G      sum of the losses
//
// There is little arithmetic in it: launches that wait for each other take most of such a step. Here blocks wait for
// each other's numbers instead, twice, each time for about as long as these take through the L2 cache (news.cuh):
// 1. Forward: a tile of X W1^T each, of ROWS rows, all units, and a chunk of the features.
// 2. From the tiles of a row: the rest of its way to dZ, by a warp.
// 3. From all rows: a tile of dW1 each, of TILE_UNITS units and a few features, or the other gradients of SUM_UNITS
//    units.
// Sums have a fixed order. What a block needs next, and others do not make, it fetches before it waits.
//
// Rows are at most MOST_ROWS, hidden at most UNITS, classes at most 32. Units beyond `hidden` have weights of 0.

#include "async_copies.cuh"
#include "news.cuh"
#include "nn/activations.cuh"
#include "nn/batch.cuh"

const unsigned ALL_LANES = 0xffffffff;
const int LANES = WARP;
const int THREADS = 256, WARPS = THREADS / WARP;
const int MOST_ROWS = 256;
const int ROOM = 384;  // threads that registers must do for: blocks of the update before and behind fit beside

#include "nn/row_head.cuh"

const int LANE_UNITS = UNITS / WARP;  // that a lane has

// The task of a launch, the same for all blocks.
struct Step {
    int rows, inputs, hidden, classes;
    int chunk, across;  // features of a tile, forward (a multiple of 8, at most 128) and back (of 4, at most 32)
    int chunks;         // of the features
    real pixel_scale, scale;
    bool wide;  // whether rows of images and W1 begin at multiples of four elements
    // Numbers that blocks tell each other: X W1^T of each chunk, chunks x rows x UNITS, whose reader forgets it; and of
    // the rows, in this launch, and in the one before, which is to be forgotten.
    real *sums, *told, *old;

    // The parts of what is told of rows: A and dZ, rows x UNITS; G, rows x classes; losses.
    __device__ real *A(real *of_rows) const { return of_rows; }
    __device__ real *dZ(real *of_rows) const { return of_rows + rows * UNITS; }
    __device__ real *G(real *of_rows) const { return of_rows + 2 * rows * UNITS; }
    __device__ real *losses(real *of_rows) const { return of_rows + rows * (2 * UNITS + classes); }
};

typedef Numbers<4> Four;
typedef Numbers<LANE_UNITS> LaneUnits;

#include "nn/fused_step_images.cuh"

// ---------------------------------------------------------------------------------------------------------
// 1. Forward: X W1^T, a tile of some rows and features.
// ---------------------------------------------------------------------------------------------------------

#include "nn/fused_step_forward.cuh"

// ---------------------------------------------------------------------------------------------------------
// 2. A row's way to its loss, and back to dZ.
// ---------------------------------------------------------------------------------------------------------

#include "nn/fused_step_rows.cuh"

// ---------------------------------------------------------------------------------------------------------
// 3. Gradients.
// ---------------------------------------------------------------------------------------------------------

#include "nn/fused_step_gradients.cuh"

// The next launch is for the next batch, and tells its numbers in the other place: once all blocks, which `state`
// counts, have read where this one is. For a thread whose warp has no row where blocks are many.
__device__ inline void end_of_reading(int *state, int *place, int advance, int places)
{
    __threadfence();
    if (atomicInc((unsigned *)&state[0], gridDim.x - 1) == gridDim.x - 1) {
        move_on(place, advance, places);
        state[1] ^= 1;
    }
}

// Blocks of THREADS; a grid of one dimension, of which all blocks must run at once (news.cuh). `news` has room for
// what `Step` says, that of rows twice, aligned to 16 bytes, and is full of `missing` (missing.cuh) at first; `state`
// has two zeros at first.
//
// The batch and its place are as in pixels.cu: with `starts_early`, its first images come while the update of the
// step before still runs.
//
// Shared memory, given at the launch, in numbers: W2, its rows rounded up to CLASSES_AT_ONCE, and b1, of UNITS each;
// b2, 32; and the largest of what the parts need: (ROWS + UNITS) (chunk + 4); rows (across + TILE_UNITS) + WARPS
// TILE_UNITS 32; rows (2 SUM_UNITS + classes + 1), to a multiple of four, + 4 + WARPS (classes + 1) (SUM_UNITS + 4).
extern "C" __global__ void __launch_bounds__(ROOM, 1)
fused_step(int rows, int inputs, int hidden, int classes, int chunk, int across, real pixel_scale, real scale,
           const pixel *images, const int *labels, const int *order, int *place, int advance, int places,
           int starts_early, const real *W1, const real *b1, const real *W2, const real *b2, real *dW1,
           real *db1, real *dW2, real *db2, real *loss, real *news, int *state)
{
    start_beside_previous_kernel(starts_early);
    if (!starts_early)
        wait_for_previous_kernel();
    extern __shared__ __align__(16) real shared[];

    Step step;
    step.rows = rows;
    step.inputs = inputs;
    step.hidden = hidden;
    step.classes = classes;
    step.chunk = chunk;
    step.across = across;
    step.chunks = (inputs + chunk - 1) / chunk;
    step.pixel_scale = pixel_scale;
    step.scale = scale;
    step.wide = inputs % 4 == 0 && ((size_t)images | (size_t)W1) % 16 == 0;
    step.sums = news;
    const int turn = state[1], of_rows = (rows * (2 * UNITS + classes + 1) + 3) / 4 * 4;
    step.told = news + step.chunks * rows * UNITS + turn * of_rows;
    step.old = news + step.chunks * rows * UNITS + (1 - turn) * of_rows;
    const Batch batch = {images, order + *place};
    const Ends ends = {shared};
    real *const own = ends.end(classes);  // of each part, what it needs in shared memory

    // No kernel writes images, labels and their order, so nothing has to wait for them. They are used much later.
    const int sum_tasks = (hidden + SUM_UNITS - 1) / SUM_UNITS, features = (inputs + across - 1) / across;
    const int tasks = sum_tasks + features * ((hidden + TILE_UNITS - 1) / TILE_UNITS), mine = blockIdx.x;
    const bool has_tile = mine >= sum_tasks && mine < tasks;
    int row = blockIdx.x + threadIdx.x / WARP * gridDim.x;
    const int number = (int)threadIdx.x < rows ? batch.order[threadIdx.x] : 0;
    int label = row < rows ? labels[batch.order[row]] : 0;
    TileImages images_of_tile;
    if (has_tile)
        images_of_tile.ask(step, batch, (mine - sum_tasks) % features, number);
    AsyncCopies copies;
    forward(step, batch, W1, own, copies, [&] { ask_for_ends(step, ends, b1, W2, b2, copies); });
    if (has_tile)
        images_of_tile.put(step, own);
    __syncthreads();

    if (threadIdx.x == THREADS - 1)
        end_of_reading(state, place, advance, places);
#pragma unroll 1
    for (; row < rows; row += WARPS * gridDim.x) {
        if (row >= WARPS * (int)gridDim.x)
            label = labels[batch.order[row]];
        pass_row(step, ends, row, label);
    }
    __syncthreads();  // no warp looks for rows sooner: in vain, and in the way of those that come

#pragma unroll 1
    for (int task = mine; task < tasks; task += gridDim.x) {
        const int tile = task - sum_tasks;
        if (tile < 0) {
            sum_rows(step, task, own, db1, dW2, db2, loss);
        } else {
            if (task != mine) {
                images_of_tile.ask(step, batch, tile % features, number);
                images_of_tile.put(step, own);
            }
            make_tile(step, tile / features, tile % features, own, dW1);
        }
        __syncthreads();
    }
}
