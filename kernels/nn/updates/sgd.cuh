// Stochastic gradient descent with momentum: v = momentum v + g, p -= rate v; without a velocity p -= rate g.
// g is the gradient and, for weights, decay p.
#pragma once

#include "nn/update.cuh"

// As packed by nn/optimisers/sgd.py.
struct Sgd {
    real rate, momentum, decay;
    real *velocity;  // or null

    __device__ Vec4 operator()(const Segment &s, int i, Part part, offset at, const Vec4 &g, Vec4 p) const
    {
        Vec4 v = velocity ? read(velocity + at, part) : Vec4();
#pragma unroll
        for (int j = 0; j < WIDTH; j++) {
            real change = g.of[j];
            if (i + j < s.decayed)
                change += decay * p.of[j];
            if (velocity)
                change += momentum * v.of[j];
            v.of[j] = change;
            p.of[j] -= rate * change;
        }
        if (velocity)
            write(velocity + at, part, v);
        return p;
    }

    __device__ void end_step() const {}
};
static_assert(sizeof(Sgd) == (sizeof(real) == 4 ? 24 : 32), "as nn/optimisers/sgd.py packs it");

typedef ParameterUpdate<Sgd> Update;
