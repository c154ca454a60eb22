// Third part of fused_classifier.cu: dZ, and a block's sums over its rows for dW, db and db_hidden.
// Launch shape and shared memory: fused_classifier.cu.

#pragma once
#include "nn/fused_classifier_logits.cuh"

const int AHEAD = 4;  // rows

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
// the L1 cache, of wide layers in L2: several rows are on their way. Where a row needs fewer threads than there are, groups of them take rows in turn and meet in
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
            Columns w[CLASSES], ahead[AHEAD] = {};
#pragma unroll
            for (int c = 0; c < CLASSES; c++)
                w[c] = *(const Columns *)&chunk.W[c * chunk.stride + column];

            const real *A = chunk.A + (group * chunk.hidden + column);
            real *dZ = chunk.dZ + (group * chunk.hidden + column);
            bfloat16 *components = chunk.components + (group * chunk.ld + column);
#pragma unroll
            for (int i = 0; i < AHEAD; i++, A += groups * chunk.hidden)
                if (group + i * groups < chunk.rows)
                    ahead[i] = load<WIDE>(A, inside);
            const auto take = [&](int row, Columns &next) {
                const Columns a = next;
                if (row + AHEAD * groups < chunk.rows)
                    next = load<WIDE>(A, inside);
                A += groups * chunk.hidden;

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
            };
#pragma unroll 1
            for (int first = group; first < chunk.rows; first += AHEAD * groups)
#pragma unroll
                for (int i = 0; i < AHEAD; i++)
                    if (first + i * groups < chunk.rows)
                        take(first + i * groups, ahead[i]);
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
