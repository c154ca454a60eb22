// Parts of matrices that travel: a slice is some rows and columns of a matrix, taken row by row, four numbers
// at a time, whatever its leading dimension. Where it is packed, it is a whole number of vec4s.
#pragma once

#include "vec4.cuh"

// As packed by pyrt/redistribute/slices.py.
struct Slice {
    real *first;
    offset ld;    // from one row to the next
    int size;     // numbers in all
    int columns;  // in a row; rows that follow each other without a gap are one
    int vector;   // whether all vec4s lie in a row, and at 16 bytes
    int place;    // in vec4s: where it begins, packed
};

__device__ inline int vec4s_of(const Slice &slice) { return (slice.size + WIDTH - 1) / WIDTH; }

// Where number i of a slice lies, and how many numbers of its row begin there.
struct Spot {
    real *at;
    int left;
};

__device__ inline Spot spot_of(const Slice &slice, int i)
{
    if (slice.columns >= slice.size)
        return {slice.first + i, slice.size - i};
    const int row = (int)((unsigned)i / (unsigned)slice.columns);
    const int column = i - row * slice.columns;
    return {slice.first + row * slice.ld + column, slice.columns - column};
}

__device__ inline void step(const Slice &slice, Spot &spot)
{
    spot.at++;
    if (--spot.left == 0) {
        spot.at += slice.ld - slice.columns;
        spot.left = slice.columns;
    }
}

// Four numbers of a slice; 0 behind its end.
__device__ inline Vec4 take_out(const Slice &slice, int vec4)
{
    const int i = vec4 * WIDTH, count = min(WIDTH, slice.size - i);
    Vec4 x = {};
    if (count <= 0)
        return x;
    Spot spot = spot_of(slice, i);
    if (slice.vector)
        return read(spot.at, {0, count, count == WIDTH});
#pragma unroll
    for (int j = 0; j < WIDTH; j++)
        if (j < count) {
            x.of[j] = *spot.at;
            step(slice, spot);
        }
    return x;
}

// And back; nothing behind its end.
__device__ inline void put_in(const Slice &slice, int vec4, const Vec4 &x)
{
    const int i = vec4 * WIDTH, count = min(WIDTH, slice.size - i);
    if (count <= 0)
        return;
    Spot spot = spot_of(slice, i);
    if (slice.vector) {
        write(spot.at, {0, count, count == WIDTH}, x);
        return;
    }
#pragma unroll
    for (int j = 0; j < WIDTH; j++)
        if (j < count) {
            *spot.at = x.of[j];
            step(slice, spot);
        }
}
