// Four neighbouring numbers, which a thread reads and writes together where they are aligned.
#pragma once

#include "common.cuh"

const int WIDTH = 4;  // neighbours that a thread takes

struct alignas(16) Vec4 {
    real of[WIDTH];
};

// The neighbours `from` to `to` (of 0 to 4) of those that begin at `values`.
struct Part {
    int from, to;
    bool vector;  // all four, and at a multiple of four elements
};

// Finds those of a row of K numbers from the k-th on; they can be read together where rows are `aligned`.
__device__ inline Part inside(int k, int K, bool aligned)
{
    return {0, min(max(K - k, 0), WIDTH), aligned && k + WIDTH <= K};
}

// Tells whether every row of a matrix begins at a whole vector.
__device__ inline bool whole_vectors(const real *values, int ld)
{
    return ld % WIDTH == 0 && (size_t)values % sizeof(Vec4) == 0;
}

__device__ inline Vec4 read(const real *values, Part part)
{
    if (part.vector)
        return *(const Vec4 *)values;
    Vec4 x = {};
#pragma unroll
    for (int j = 0; j < WIDTH; j++)
        if (j >= part.from && j < part.to)
            x.of[j] = values[j];
    return x;
}

__device__ inline void write(real *values, Part part, const Vec4 &x)
{
    if (part.vector) {
        *(Vec4 *)values = x;
        return;
    }
#pragma unroll
    for (int j = 0; j < WIDTH; j++)
        if (j >= part.from && j < part.to)
            values[j] = x.of[j];
}
