// Gradient descent on up to four neighbouring parameters, by whoever has the sum of their gradients: the
// update (sgd.cu) and the exchanges over peer memory (shard.cuh).
#pragma once

#include "batch.cuh"
#include "bfloat16.cuh"

// A part of the flat arrays that lies in one layer: `decayed` weights, then biases. As packed by
// nn/launches.py.
struct Stretch {
    offset start;
    int size, decayed;
    // Where tensor cores read the weights: matrices of bf16 terms with `columns` columns, `ld` elements from
    // one row to the next, `distance` from one term to the next. The stretch begins with weight `first`.
    int first, columns, count, ld, distance;
    bfloat16 *terms;  // or null
};

const int WIDTH = 4;  // neighbours that a thread takes

struct alignas(16) Four {
    real of[WIDTH];
};

// The neighbours `from` to `to` (of 0 to 4) of those that begin at `values`.
struct Part {
    int from, to;
    bool vector;  // all four, and at a multiple of four elements
};

__device__ inline Four read(const real *values, Part part)
{
    if (part.vector)
        return *(const Four *)values;
    Four x = {};
#pragma unroll
    for (int j = 0; j < WIDTH; j++)
        if (j >= part.from && j < part.to)
            x.of[j] = values[j];
    return x;
}

__device__ inline void write(real *values, Part part, const Four &x)
{
    if (part.vector) {
        *(Four *)values = x;
        return;
    }
#pragma unroll
    for (int j = 0; j < WIDTH; j++)
        if (j >= part.from && j < part.to)
            values[j] = x.of[j];
}

struct Descent {
    real rate, momentum, decay;
};

// p - rate v, where v = momentum v + g + decay p for weights, without decay for biases; or v = g + .. where
// velocity is null. The first of the four is number i of the stretch.
__device__ inline Four descend(const Descent &descent, const Stretch &s, int i, Part part, const Four &g,
                               Four p, real *velocity)
{
    Four v = velocity ? read(velocity, part) : Four();
#pragma unroll
    for (int j = 0; j < WIDTH; j++) {
        real change = g.of[j];
        if (i + j < s.decayed)
            change += descent.decay * p.of[j];
        if (velocity)
            change += descent.momentum * v.of[j];
        v.of[j] = change;
        p.of[j] -= descent.rate * change;
    }
    if (velocity)
        write(velocity, part, v);
    return p;
}

// The new parameters, and the terms of those that are weights.
__device__ inline void put(const Stretch &s, int i, Part part, const Four &p, real *parameters)
{
    write(parameters, part, p);
    if (!s.terms || i + part.from >= s.decayed)
        return;
    const auto place = [&s](int weight) {
        return s.terms + (offset)(weight / s.columns) * s.ld + weight % s.columns;
    };
    const int weight = s.first + i;  // a layer has fewer than 2^31
    if (part.vector && i + WIDTH <= s.decayed && weight % WIDTH == 0 && s.columns % WIDTH == 0) {
        split4({(float)p.of[0], (float)p.of[1], (float)p.of[2], (float)p.of[3]}, s.count, place(weight),
               s.distance);
        return;
    }
#pragma unroll
    for (int j = 0; j < WIDTH; j++)
        if (j >= part.from && j < part.to && i + j < s.decayed)
            split(p.of[j], s.count, place(weight + j), s.distance);
}
