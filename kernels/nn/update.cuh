// The update of parameters at the end of a step, but for its rule: which parameters there are, the components
// that tensor cores read in place of weights, the step's loss. The rules are in nn/updates, a file each.
//
// A rule is a struct as its optimiser packs it (nn/optimisers), with two functions:
//   Vec4 operator()(segment, i, part, at, g, p)   the new parameters, from their gradients g and old values p
//   void end_step()                               what one thread does once all of a step is updated
#pragma once

#include "bfloat16.cuh"
#include "nn/batch.cuh"
#include "vec4.cuh"

// A part of the flat arrays that lies in one layer: `decayed` weights, then biases. As packed by
// nn/launch/update.py.
struct Segment {
    offset start;
    int size, decayed;
    // Where tensor cores read the weights: matrices of bf16 components with `columns` columns, `ld` elements from
    // one row to the next, `distance` from one component to the next. The segment begins with weight `first`.
    int first, columns, count, ld, distance;
    bfloat16 *components;  // or null
};
static_assert(sizeof(Segment) == 48, "as nn/launch/update.py packs it");

// The new parameters, and the components of those that are weights.
__device__ inline void put_parameters(const Segment &s, int i, Part part, const Vec4 &p, real *parameters)
{
    write(parameters, part, p);
    if (!s.components || i + part.from >= s.decayed)
        return;
    const auto place = [&s](int weight) {
        return s.components + (offset)(weight / s.columns) * s.ld + weight % s.columns;
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

// What the kernels that sum gradients ask of an update (comm/shard.cuh), by a rule. As packed by
// nn/launch/update.py: the rule, then this.
template <typename Rule> struct ParameterUpdate {
    Rule rule;
    real *parameters;
    const LossRing *ring;  // of the step that this update ends, or null

    // The numbers `part` of four parameters, the first of them number i of a segment and `at` in the flat arrays.
    __device__ Vec4 before(Part part, offset at) const { return read(parameters + at, part); }
    __device__ Vec4 updated(const Segment &s, int i, Part part, offset at, const Vec4 &sum, const Vec4 &p) const
    {
        return rule(s, i, part, at, sum, p);
    }
    __device__ void put(const Segment &s, int i, Part part, offset at, const Vec4 &p) const
    {
        put_parameters(s, i, part, p, parameters + at);
    }

    // The numbers `part` of four sums behind the parameters are there: the loss may be among them.
    __device__ void summed(Part part, const real *sums) const
    {
        if (!ring)
            return;
        const offset loss = ring->loss - sums;
        if (loss >= part.from && loss < part.to)
            keep_loss(*ring);
    }
};
