// Stochastic gradient descent on flat arrays, with weight decay and momentum.
// constants: REAL=float|double

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

// The terms of up to four weights; together where they lie in one row, aligned.
__device__ inline void put_terms(const Stretch &s, int i, const Four &p, bool wide)
{
    const auto place = [&s](int weight) {
        return s.terms + (offset)(weight / s.columns) * s.ld + weight % s.columns;
    };
    const int weight = s.first + i;  // a layer has fewer than 2^31
    if (wide) {
        split4({(float)p.of[0], (float)p.of[1], (float)p.of[2], (float)p.of[3]}, s.count, place(weight),
               s.distance);
        return;
    }
    for (int j = 0; j < WIDTH && i + j < s.decayed; j++)
        split(p.of[j], s.count, place(weight + j), s.distance);
}

// g = gradient + decay p for weights, g = gradient for biases; v = momentum v + g, p -= rate v; or, where
// velocity is null, p -= rate g. Terms of weights, if any, follow. If `ring` is not null, the step's
// loss is kept: a launch for that alone would take longer than all it does.
//
// Blocks of one dimension, any number of threads, no shared memory; the grid's x is of any size, its y has a
// stretch each. What a launch costs does not depend on how many layers there are.
extern "C" __global__ void sgd(const Stretch *stretches, real rate, real momentum, real decay,
                               const real *gradients, real *velocity, real *parameters,
                               const LossRing *ring)
{
    begin_beside_kernel_before(false);
    const Stretch s = stretches[blockIdx.y];  // no kernel writes these
    wait_for_kernel_before();
    if (ring && threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0)
        keep_loss(*ring);
    const bool wide = s.start % WIDTH == 0 && s.decayed % WIDTH == 0 && s.first % WIDTH == 0 &&
                      (!s.terms || s.columns % WIDTH == 0);
    const offset step = (offset)gridDim.x * blockDim.x * WIDTH;
    for (offset i = (offset)(blockIdx.x * blockDim.x + threadIdx.x) * WIDTH; i < s.size; i += step) {
        const offset at = s.start + i;
        const int count = s.size - i < WIDTH ? s.size - i : WIDTH;
        const bool vector = wide && count == WIDTH;
        Four p = {}, g = {}, v = {};
        if (vector) {
            p = *(const Four *)(parameters + at);
            g = *(const Four *)(gradients + at);
            if (velocity)
                v = *(const Four *)(velocity + at);
        } else {
#pragma unroll
            for (int j = 0; j < WIDTH; j++)
                if (j < count) {
                    p.of[j] = parameters[at + j], g.of[j] = gradients[at + j];
                    if (velocity)
                        v.of[j] = velocity[at + j];
                }
        }
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
        if (vector) {
            *(Four *)(parameters + at) = p;
            if (velocity)
                *(Four *)(velocity + at) = v;
        } else {
#pragma unroll
            for (int j = 0; j < WIDTH; j++)
                if (j < count) {
                    parameters[at + j] = p.of[j];
                    if (velocity)
                        velocity[at + j] = v.of[j];
                }
        }
        if (s.terms && i < s.decayed)
            put_terms(s, i, p, vector);
    }
}
