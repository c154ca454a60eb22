// No update: sums of arrays that are no parameters' gradients (comm/shard.cuh). As packed by
// pyrt/exchange/__init__.py.
#pragma once

#include "vec4.cuh"

struct Segment {
    offset start;
    int size;  // 0: no parameters
};
static_assert(sizeof(Segment) == 16, "as pyrt/exchange/__init__.py packs it");

struct Update {
    int nothing;

    __device__ Vec4 before(Part, offset) const { return Vec4(); }
    __device__ Vec4 updated(const Segment &, int, Part, offset, const Vec4 &sum, const Vec4 &) const
    {
        return sum;
    }
    __device__ void put(const Segment &, int, Part, offset, const Vec4 &) const {}
    __device__ void summed(Part, const real *) const {}
};
