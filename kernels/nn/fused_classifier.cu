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

#include "common.cuh"
#include "nn/activations.cuh"
#include "bfloat16.cuh"

const unsigned ALL_LANES = 0xffffffff;

const int SIZE = CLASSES * sizeof(real);  // more threads, and more columns each, where this is small
const int THREADS = SIZE <= 40 ? 512 : SIZE <= 128 ? 256 : 128;
const int WARPS = THREADS / WARP;
const int VECTOR = 16 / sizeof(real);       // elements in the widest load
const int COLUMNS = SIZE <= 40 ? 2 : 1;     // of dZ and dW that a thread makes at once
const int GROUP = WARP / CLASSES;           // rows whose logits a warp makes at once: a lane for each
const int STEP = WARP * VECTOR;             // columns of A that a warp reads at once
const int MOST_SLICES = 4;
const int LANES = CLASSES <= 16 ? 16 : 32;  // that share a row in the head
const int G_STRIDE = (CLASSES + VECTOR - 1) / VECTOR * VECTOR;

struct alignas(16) Vector {
    real lane[VECTOR];
};

struct alignas(COLUMNS * sizeof(real)) Columns {
    real of[COLUMNS];
};

// The rows whose turn it is. Below, WIDE says that rows of A and W begin at multiples of 16 bytes.
struct Chunk {
    int classes, hidden, rows;
    const real *A;
    // Where dZ goes: a matrix without gaps; or, where `components` is not null, bf16 matrices that add up to it.
    real *dZ;
    bfloat16 *components;
    int term_count, ld;
    offset term_size;  // from one matrix to the next
    // In shared memory:
    real *W;        // CLASSES x stride
    int stride;     // hidden, rounded up to whole vectors
    real *G;        // rows x G_STRIDE
    real *losses;
    int *labels;
    real *scratch;  // the logits of each slice of the columns; later, sums of threads that meet
};

// ---------------------------------------------------------------------------------------------------------
// 1. Logits: A W^T.
// ---------------------------------------------------------------------------------------------------------

// The weights into shared memory, 0 beyond them. A thread has several loads under way before it waits.
template <bool WIDE>
__device__ inline void load_weights(const Chunk &chunk, const real *W)
{
    const int AT_ONCE = 4;
    if (WIDE) {
        const int inside = chunk.classes * chunk.hidden / VECTOR, all = CLASSES * chunk.hidden / VECTOR;
#pragma unroll 1
        for (int first = threadIdx.x; first < all; first += AT_ONCE * THREADS) {
            Vector held[AT_ONCE] = {};
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                if (first + i * THREADS < inside)
                    held[i] = ((const Vector *)W)[first + i * THREADS];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                if (first + i * THREADS < all)
                    ((Vector *)chunk.W)[first + i * THREADS] = held[i];
        }
    } else {
#pragma unroll 1
        for (int i = threadIdx.x; i < CLASSES * chunk.stride; i += THREADS) {
            const int c = i / chunk.stride, column = i % chunk.stride;
            const bool inside = c < chunk.classes && column < chunk.hidden;
            chunk.W[i] = inside ? W[c * chunk.hidden + column] : 0;
        }
    }
}

// A warp's work: GROUP rows, and of the columns a slice. They are halved `halvings` times, so that few rows
// leave no warp idle. A lane takes every STEP-th vector.
struct Task {
    int row, slice;
    int column, end;            // of what the lane fetches next, and of the slice
    const real *source[GROUP];  // the lane's place in each row

    __device__ Task(const Chunk &chunk, int number, int halvings)
    {
        const int steps = (chunk.hidden + STEP - 1) / STEP;
        row = (number >> halvings) * GROUP;
        slice = number & ((1 << halvings) - 1);
        column = (steps * slice >> halvings) * STEP + threadIdx.x % WARP * VECTOR;
        end = min((steps * (slice + 1) >> halvings) * STEP, chunk.hidden);
#pragma unroll
        for (int r = 0; r < GROUP; r++)  // some row in place of one that is not there
            source[r] = chunk.A + (min(row + r, chunk.rows - 1) * chunk.hidden + column);
    }
};

template <bool WIDE>
__device__ inline void fetch(Vector (&a)[GROUP], Task &task)
{
#pragma unroll
    for (int r = 0; r < GROUP; r++) {
        if (WIDE) {
            a[r] = task.column < task.end ? *(const Vector *)task.source[r] : Vector{};
        } else {
#pragma unroll
            for (int v = 0; v < VECTOR; v++)
                a[r].lane[v] = task.column + v < task.end ? task.source[r][v] : 0;
        }
        task.source[r] += STEP;
    }
    task.column += STEP;
}

// Lane l gets the sum over all lanes of their values[l]: each exchange adds up pairs of lanes and halves what
// a lane still has to look after, so that 32 sums take 31 shuffles.
__device__ inline real lane_sums(const real (&values)[1]) { return values[0]; }

template <int COUNT>
__device__ inline real lane_sums(const real (&values)[COUNT])
{
    const int HALF = COUNT / 2;
    const bool upper = threadIdx.x & HALF;
    real halves[HALF];
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        const real keep = upper ? values[i + HALF] : values[i];
        const real give = upper ? values[i] : values[i + HALF];
        halves[i] = keep + __shfl_xor_sync(ALL_LANES, give, HALF);
    }
    return lane_sums(halves);
}

// A warp's lanes share the columns, 16 bytes of each row a lane, and keep a sum for each row and class: what
// is read of W serves GROUP rows. While a step is multiplied the next one is on its way, the first one while
// the weights are. W is null where they are there already.
template <bool WIDE>
__device__ inline void slice_logits(const Chunk &chunk, int halvings, const real *W, const int *labels)
{
    const int tasks = (chunk.rows + GROUP - 1) / GROUP << halvings;
    const int lane = threadIdx.x % WARP;
    int number = threadIdx.x / WARP;

    const bool has_label = threadIdx.x < chunk.rows;
    const int label = has_label ? labels[threadIdx.x] : 0;
    Vector ahead[GROUP];
    Task task(chunk, number, halvings);
    if (number < tasks)
        fetch<WIDE>(ahead, task);
    if (W)
        load_weights<WIDE>(chunk, W);
    if (has_label)
        chunk.labels[threadIdx.x] = label;
    __syncthreads();  // also: of the chunk before, nobody reads the scratch any more

#pragma unroll 1
    for (; number < tasks; number += WARPS) {
        real sums[WARP] = {};
#pragma unroll 2
        for (int column = task.column - STEP; column < task.end; column += STEP) {
            Vector a[GROUP];
#pragma unroll
            for (int r = 0; r < GROUP; r++)
                a[r] = ahead[r];
            fetch<WIDE>(ahead, task);
#pragma unroll
            for (int c = 0; c < CLASSES; c++) {
                const Vector w = *(const Vector *)&chunk.W[c * chunk.stride + column];
#pragma unroll
                for (int r = 0; r < GROUP; r++)
#pragma unroll
                    for (int v = 0; v < VECTOR; v++)
                        sums[r * CLASSES + c] += a[r].lane[v] * w.lane[v];
            }
        }
        const bool inside = lane < GROUP * CLASSES && task.row + lane / CLASSES < chunk.rows;
        real *logits = chunk.scratch + (task.slice * chunk.rows + task.row) * CLASSES;
        task = Task(chunk, number + WARPS, halvings);
        if (number + WARPS < tasks)
            fetch<WIDE>(ahead, task);
        const real sum = lane_sums(sums);
        if (inside)
            logits[lane] = sum;
    }
}

// ---------------------------------------------------------------------------------------------------------
// 2. Head: a lane has one logit, LANES lanes a row. As in head.cu, whose comments say why no logit overflows
// and none that is not finite goes unnoticed. The loss is right in the lane of the label.
// ---------------------------------------------------------------------------------------------------------

// A butterfly: after it every lane holds the same bits, since a + b == b + a.
__device__ inline real row_sum(real value)
{
#pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2)
        value += __shfl_xor_sync(ALL_LANES, value, distance);
    return value;
}

__device__ inline real row_max(real value)
{
#pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2)
        value = fmax(value, __shfl_xor_sync(ALL_LANES, value, distance));
    return value;
}

struct LossAndGradient {
    real loss, gradient;
};

__device__ inline LossAndGradient head_softmax(real logit, bool inside, bool target, real scale)
{
    const real below = logit - row_max(inside ? logit : -INFINITY);
    const real e = exp(below);
    const real sum = row_sum(inside ? e + 0 * logit : 0);
    return {scale * (log(sum) - below), scale * (e / sum - target)};
}

__device__ inline LossAndGradient head_sigmoid(real logit, bool inside, bool target, real scale)
{
    const real e = exp(-fabs(logit));
    const real loss = scale * (fmax(logit, real(0)) - real(target) * logit + log1p(e));
    return {row_sum(inside ? loss : 0), scale * ((logit < 0 ? e : real(1)) / (1 + e) - target)};
}

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

// COLUMNS neighbours, of which `inside` are there.
template <bool WIDE>
__device__ inline Columns load(const real *source, int inside)
{
    if (WIDE)
        return *(const Columns *)source;
    Columns columns = {};
#pragma unroll
    for (int j = 0; j < COLUMNS; j++)
        if (j < inside)
            columns.of[j] = source[j];
    return columns;
}

template <bool WIDE>
__device__ inline void store(real *target, const Columns &columns, int inside)
{
    if (WIDE) {
        *(Columns *)target = columns;
    } else {
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
            if (j < inside)
                target[j] = columns.of[j];
    }
}

__device__ inline void store_terms(const Chunk &chunk, bfloat16 *components, const Columns &dz)
{
    // The leading dimension is even: where the right neighbour is not there, padding is.
    if (COLUMNS == 2)
        split_pair(dz.of[0], dz.of[COLUMNS - 1], chunk.term_count, components, chunk.term_size);
    else
        split(dz.of[0], chunk.term_count, components, chunk.term_size);
}

__device__ inline void add(Columns &sums, const Columns &columns)
{
#pragma unroll
    for (int j = 0; j < COLUMNS; j++)
        sums.of[j] += columns.of[j];
}

// To the block's own sums, where those of the chunks before are, unless this is the first.
__device__ inline void put(real *sums, Columns columns, bool first)
{
    Columns before = {};
    if (!first)
        before = *(const Columns *)sums;
    add(columns, before);
    *(Columns *)sums = columns;
}

// A thread takes COLUMNS neighbours down the rows, with all that belongs to these columns in registers: what
// it reads of G, the same for all threads, serves the products with W and with A. The logits have left A in
// the L1 cache. Where a row needs fewer threads than there are, groups of them take rows in turn and meet in
// shared memory at the end.
template <bool WIDE>
__device__ inline void backward(const Chunk &chunk, real *sums, bool first)
{
    const int units = (chunk.hidden + COLUMNS - 1) / COLUMNS;
    const int across = min(1 << max(32 - __clz(units - 1), 5), THREADS);  // threads a row, a power of 2
    const int groups = THREADS / across;
    const int group = threadIdx.x / across, place = threadIdx.x % across;

    for (int unit = place; unit - place < units; unit += across) {
        const int column = unit * COLUMNS, inside = min(chunk.hidden - column, COLUMNS);
        Columns dw[CLASSES] = {}, db = {};

        if (inside > 0) {
            Columns w[CLASSES], ahead = {};
#pragma unroll
            for (int c = 0; c < CLASSES; c++)
                w[c] = *(const Columns *)&chunk.W[c * chunk.stride + column];

            const real *A = chunk.A + (group * chunk.hidden + column);
            real *dZ = chunk.dZ + (group * chunk.hidden + column);
            bfloat16 *components = chunk.components + (group * chunk.ld + column);
            if (group < chunk.rows)
                ahead = load<WIDE>(A, inside);
#pragma unroll 1
            for (int row = group; row < chunk.rows; row += groups) {
                const Columns a = ahead;
                A += groups * chunk.hidden;
                if (row + groups < chunk.rows)
                    ahead = load<WIDE>(A, inside);

                Columns dz = {};
#pragma unroll
                for (int i = 0; i < CLASSES; i += VECTOR) {
                    const Vector g = *(const Vector *)&chunk.G[row * G_STRIDE + i];
#pragma unroll
                    for (int v = 0; v < VECTOR; v++)
#pragma unroll
                        for (int j = 0; j < COLUMNS; j++)
                            if (i + v < CLASSES) {
                                dz.of[j] += g.lane[v] * w[i + v].of[j];
                                dw[i + v].of[j] += g.lane[v] * a.of[j];
                            }
                }
#pragma unroll
                for (int j = 0; j < COLUMNS; j++)
                    dz.of[j] *= DERIVATIVE(a.of[j]);
                add(db, dz);
                if (sizeof(real) == sizeof(float) && chunk.components) {
                    store_terms(chunk, components, dz);
                    components += groups * chunk.ld;
                } else {
                    store<WIDE>(dZ, dz, inside);
                    dZ += groups * chunk.hidden;
                }
            }
        }

#pragma unroll 1
        for (int half = groups / 2; half > 0; half /= 2) {
            const int size = half * across;
            Columns *meeting = (Columns *)chunk.scratch + threadIdx.x % size;
            if (half < groups / 2)
                __syncthreads();  // nobody writes where others still read
            if (half <= group && group < 2 * half) {
#pragma unroll
                for (int c = 0; c < CLASSES; c++)
                    meeting[c * size] = dw[c];
                meeting[CLASSES * size] = db;
            }
            __syncthreads();
            if (group < half) {
#pragma unroll
                for (int c = 0; c < CLASSES; c++)
                    add(dw[c], meeting[c * size]);
                add(db, meeting[CLASSES * size]);
            }
        }
        if (group == 0 && inside > 0) {
#pragma unroll
            for (int c = 0; c < CLASSES; c++)
                if (c < chunk.classes)
                    put(sums + (offset)c * chunk.stride + column, dw[c], first);
            put(sums + (offset)chunk.classes * chunk.stride + column, db, first);
        }
    }

    // The sums of G and of the losses, by the last threads, which have the least to do.
    const int c = THREADS - 1 - threadIdx.x;
    if (c <= chunk.classes) {
        const real *values = c < chunk.classes ? chunk.G + c : chunk.losses;
        const int step = c < chunk.classes ? G_STRIDE : 1;
        real sum = 0;
#pragma unroll 4
        for (int row = 0; row < chunk.rows; row++)
            sum += values[row * step];
        real *place = sums + (offset)(chunk.classes + 1) * chunk.stride + c;
        *place = first ? sum : *place + sum;
    }
}

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
