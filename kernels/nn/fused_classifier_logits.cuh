// First part of fused_classifier.cu: what its blocks keep of their rows, and the logits A W^T.
// Needs REAL, ACTIVATION and CLASSES. Launch shape and shared memory: fused_classifier.cu.

#pragma once
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
