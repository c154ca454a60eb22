// The end of a network with few classes, from the activations A of its last hidden layer to everything that
// follows from them in a training step, in one pass over A.
// architectures: sm_80 sm_90a
// constants: REAL=float|double HEAD=softmax|sigmoid ACTIVATION=identity|sigmoid|tanh|relu CLASSES=10|32
//
// With W (classes x hidden) and b (classes) of the output layer, t the one-hot vector of a row's label:
//   Z = A W^T + b        the logits
//   loss                 of softmax or sigmoid cross-entropy, and
//   G = scale (p - t)    its gradient by Z; both as head.cu has them
//   dZ = (G W) f'(A)     the gradient of the hidden layer
//   dW = G^T A           db = column sums of G        db_hidden = column sums of dZ        sum of the losses
// Products with so few classes are all reading: apart, these operations read and write matrices of A's size
// eight times. Here A is read and dZ written, and that is all.
//
// A is rows x hidden without gaps, of any size. CLASSES is at least `classes`, so that loops over it unroll
// and what belongs to each class stays in registers; the classes in excess have weights of 0.

// ---------------------------------------------------------------------------------------------------------
// 1. Logits: A W^T.
// ---------------------------------------------------------------------------------------------------------

#include "nn/fused_classifier_logits.cuh"

// ---------------------------------------------------------------------------------------------------------
// 2. Head: a lane has one logit, LANES lanes a row. As in head.cu, whose comments say why no logit overflows
// and none that is not finite goes unnoticed. The loss is right in the lane of the label.
// ---------------------------------------------------------------------------------------------------------

#include "nn/row_head.cuh"

// Losses and G of the chunk's rows, from the logits of all slices.
__device__ inline void heads(const Chunk &chunk, int halvings, real bias, real scale)
{
    const int ROWS = WARP / LANES;  // that a warp takes at once
    const int c = threadIdx.x % LANES;
#pragma unroll 1
    for (int first = threadIdx.x / WARP * ROWS; first < chunk.rows; first += WARPS * ROWS) {
        const int row = first + threadIdx.x % WARP / LANES;
        const bool inside = row < chunk.rows && c < chunk.classes;
        real logit = 0;
#pragma unroll
        for (int slice = 0; slice < MOST_SLICES; slice++)
            if (inside && slice < 1 << halvings)
                logit += chunk.scratch[(slice * chunk.rows + row) * CLASSES + c];
        logit += bias;
        const bool target = inside && c == chunk.labels[row];
        const LossAndGradient result = JOIN(head_, HEAD)(logit, inside, target, scale);
        if (row < chunk.rows && c < G_STRIDE)
            chunk.G[row * G_STRIDE + c] = inside ? result.gradient : 0;
        if (target)
            chunk.losses[row] = result.loss;
    }
}

// ---------------------------------------------------------------------------------------------------------
// 3. Backward: dZ, and all sums over the rows.
// ---------------------------------------------------------------------------------------------------------

#include "nn/fused_classifier_backward.cuh"

template <bool WIDE>
__device__ inline void all_of_it(const Chunk &chunk, int halvings, real scale, const real *W, real bias,
                                 const int *labels, real *sums, bool first)
{
    slice_logits<WIDE>(chunk, halvings, first ? W : nullptr, labels);
    __syncthreads();
    heads(chunk, halvings, bias, scale);
    __syncthreads();
    backward<WIDE>(chunk, sums, first);
}

// Blocks of THREADS; a grid of one dimension and any size, best a block a multiprocessor. A block takes
// neighbouring rows, at most `most` of them (not more than THREADS) at a time, and leaves its sums in its row
// of partials, ld_partials numbers (a multiple of 4) from the next: dW and db_hidden, classes + 1 rows of
// `hidden` rounded up to whole vectors; db; the loss.
//
// dZ is written where components is null, else `term_count` (at most 3) matrices of bf16 numbers, one behind the
// other, of rows x ld with an even ld. dZ must not overlap A.
//
// Shared memory, given at the launch, in numbers: W, CLASSES rows as in partials; G, `most` times CLASSES
// rounded up to whole vectors; losses and labels, `most` rounded up to even each; and the larger of two: the
// logits, 2^halvings (at most 4) times `most` times CLASSES; and (CLASSES + 1) COLUMNS for half of the
// threads, needed only where several groups of threads share the columns.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
fused_classifier(int rows, int classes, int hidden, int most, int halvings, real scale, const real *A,
            const real *W, const real *b, const int *labels, real *dZ, bfloat16 *components, int term_count,
            int ld, real *partials, int ld_partials)
{
    wait_for_previous_kernel();
    extern __shared__ __align__(16) real shared[];

    const int share = rows / gridDim.x, more = rows - share * gridDim.x, block = blockIdx.x;
    const int begin = block * share + min(block, more), end = begin + share + (block < more);
    const int c = threadIdx.x % LANES;
    const real bias = c < classes ? b[c] : 0;
    const bool wide = hidden % VECTOR == 0 && ((size_t)A | (size_t)W | (size_t)dZ) % sizeof(Vector) == 0;

    Chunk chunk;
    chunk.classes = classes;
    chunk.hidden = hidden;
    chunk.term_count = term_count;
    chunk.ld = ld;
    chunk.term_size = (offset)rows * ld;
    chunk.stride = (hidden + VECTOR - 1) / VECTOR * VECTOR;
    chunk.W = shared;
    chunk.G = chunk.W + CLASSES * chunk.stride;
    chunk.losses = chunk.G + most * G_STRIDE;
    chunk.scratch = chunk.losses + 2 * ((most + 1) / 2 * 2);
    chunk.labels = (int *)(chunk.losses + (most + 1) / 2 * 2);
    real *sums = partials + (offset)block * ld_partials;

    // Also where there are no rows: then all sums are 0.
#pragma unroll 1
    for (int first = begin; first == begin || first < end; first += most) {
        chunk.rows = min(most, end - first);
        chunk.A = A + (offset)first * hidden;
        chunk.dZ = dZ + (offset)first * hidden;
        chunk.components = components ? components + (offset)first * ld : nullptr;
        if (wide)
            all_of_it<true>(chunk, halvings, scale, W, bias, labels + first, sums, first == begin);
        else
            all_of_it<false>(chunk, halvings, scale, W, bias, labels + first, sums, first == begin);
    }
}

// ---------------------------------------------------------------------------------------------------------
// 4. The sums of all blocks.
// ---------------------------------------------------------------------------------------------------------

const int SUM_COLUMNS = 32, SUM_ROWS = 16;

__device__ inline real tree_sum(const real (&values)[1]) { return values[0]; }

template <int COUNT>
__device__ inline real tree_sum(const real (&values)[COUNT])
{
    real halves[COUNT / 2];
#pragma unroll
    for (int i = 0; i < COUNT / 2; i++)
        halves[i] = values[i] + values[i + COUNT / 2];
    return tree_sum(halves);
}

// From `blocks` rows of partials, as fused_classifier leaves them.
//
// Block 32 x 16; the grid's x counts blocks across `hidden` (and classes + 1), its y is classes + 2: the rows
// of dW, db_hidden, and last db with the loss. Shared memory: a sum a thread. What counts is the time that
// one reading takes, so a thread asks for all its rows at once (10 at most: enough for 160 blocks), and
// threads meet once.
extern "C" __global__ void __launch_bounds__(512)
sum_partials(int blocks, int classes, int hidden, const real *partials, int ld, real *dW, real *db_hidden,
             real *db, real *loss)
{
    wait_for_previous_kernel();
    __shared__ real sums[SUM_ROWS][SUM_COLUMNS];
    const int AT_ONCE = 10;
    const int x = threadIdx.x, y = threadIdx.y;
    const int part = blockIdx.y, column = blockIdx.x * SUM_COLUMNS + x;
    const int stride = (hidden + VECTOR - 1) / VECTOR * VECTOR;
    const bool inside = column < (part <= classes ? hidden : classes + 1);

    real sum = 0;
    if (inside) {
        const real *source = partials + (offset)part * stride + column;
#pragma unroll 1
        for (int first = y; first < blocks; first += AT_ONCE * SUM_ROWS) {
            real held[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const int block = first + i * SUM_ROWS;
                held[i] = block < blocks ? source[(offset)block * ld] : 0;
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                sum += held[i];
        }
    }
    sums[y][x] = sum;
    __syncthreads();
    if (y > 0 || !inside)
        return;

    real mine[SUM_ROWS];
#pragma unroll
    for (int i = 0; i < SUM_ROWS; i++)
        mine[i] = sums[i][x];
    const real total = tree_sum(mine);
    if (part < classes)
        dW[(offset)part * hidden + column] = total;
    else if (part == classes)
        db_hidden[column] = total;
    else if (column < classes)
        db[column] = total;
    else
        *loss = total;
}
