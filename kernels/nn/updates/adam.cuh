// Adam (Kingma and Ba 2015, algorithm 1): m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2,
// p -= rate (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps) in step t, counted from 1.
// g is the gradient and, for weights, decay p.
#pragma once

#include "nn/update.cuh"

// How many steps the averages have seen. Its numbers change between two steps alone.
struct AdamClock {
    double steps;           // that are over
    double power1, power2;  // beta^t of the step that comes
};

// As packed by nn/optimisers/adam.py.
struct Adam {
    double beta1, beta2;
    real rate, eps, decay;
    real *m, *v;
    AdamClock *clock;

    __device__ Vec4 operator()(const Segment &s, int i, Part part, offset at, const Vec4 &g, Vec4 p) const
    {
        Vec4 mean = read(m + at, part), square = read(v + at, part);
        const real keep1 = (real)beta1, keep2 = (real)beta2;
        const real take1 = (real)(1 - beta1), take2 = (real)(1 - beta2);
        const real by1 = (real)(1 / (1 - clock->power1)), by2 = (real)(1 / (1 - clock->power2));
#pragma unroll
        for (int j = 0; j < WIDTH; j++) {
            const real change = i + j < s.decayed ? g.of[j] + decay * p.of[j] : g.of[j];
            mean.of[j] = keep1 * mean.of[j] + take1 * change;
            square.of[j] = keep2 * square.of[j] + take2 * change * change;
            p.of[j] -= rate * (mean.of[j] * by1) / (sqrt(square.of[j] * by2) + eps);
        }
        write(m + at, part, mean);
        write(v + at, part, square);
        return p;
    }

    __device__ void end_step() const
    {
        clock->steps += 1;
        clock->power1 *= beta1;  // as the host does for a resumed run: pow would round otherwise there
        clock->power2 *= beta2;
    }
};
static_assert(sizeof(Adam) == (sizeof(real) == 4 ? 56 : 64), "as nn/optimisers/adam.py packs it");

typedef ParameterUpdate<Adam> Update;
