// Parts of matrices that travel: a strip is some rows and columns of a matrix, taken row by row, four numbers
// at a time, whatever its leading dimension. Where it is packed, it is a whole number of fours.
#pragma once

#include "sgd.cuh"

// As packed by pyrt/moves/strips.py.
struct Strip {
    real *first;
    offset ld;    // from one row to the next
    int size;     // numbers in all
    int columns;  // in a row; rows that follow each other without a gap are one
    int vector;   // whether all fours lie in a row, and at 16 bytes
    int place;    // in fours: where it begins, packed
};

__device__ inline int fours_of(const Strip &strip) { return (strip.size + WIDTH - 1) / WIDTH; }

// Where number i of a strip lies, and how many numbers of its row begin there.
struct Spot {
    real *at;
    int left;
};

__device__ inline Spot spot_of(const Strip &strip, int i)
{
    if (strip.columns >= strip.size)
        return {strip.first + i, strip.size - i};
    const int row = (int)((unsigned)i / (unsigned)strip.columns);
    const int column = i - row * strip.columns;
    return {strip.first + row * strip.ld + column, strip.columns - column};
}

__device__ inline void step(const Strip &strip, Spot &spot)
{
    spot.at++;
    if (--spot.left == 0) {
        spot.at += strip.ld - strip.columns;
        spot.left = strip.columns;
    }
}

// Four numbers of a strip; 0 behind its end.
__device__ inline Four take_out(const Strip &strip, int four)
{
    const int i = four * WIDTH, count = min(WIDTH, strip.size - i);
    Four x = {};
    if (count <= 0)
        return x;
    Spot spot = spot_of(strip, i);
    if (strip.vector)
        return read(spot.at, {0, count, count == WIDTH});
#pragma unroll
    for (int j = 0; j < WIDTH; j++)
        if (j < count) {
            x.of[j] = *spot.at;
            step(strip, spot);
        }
    return x;
}

// And back; nothing behind its end.
__device__ inline void put_in(const Strip &strip, int four, const Four &x)
{
    const int i = four * WIDTH, count = min(WIDTH, strip.size - i);
    if (count <= 0)
        return;
    Spot spot = spot_of(strip, i);
    if (strip.vector) {
        write(spot.at, {0, count, count == WIDTH}, x);
        return;
    }
#pragma unroll
    for (int j = 0; j < WIDTH; j++)
        if (j < count) {
            *spot.at = x.of[j];
            step(strip, spot);
        }
}
