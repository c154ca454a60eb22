// Stochastic gradient descent on flat arrays, with weight decay and momentum.
// constants: REAL=float|double

#include "sgd.cuh"

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
    const Descent descent = {rate, momentum, decay};
    const offset step = (offset)gridDim.x * blockDim.x * WIDTH;
    for (offset i = (offset)(blockIdx.x * blockDim.x + threadIdx.x) * WIDTH; i < s.size; i += step) {
        const offset at = s.start + i;
        const int count = s.size - i < WIDTH ? s.size - i : WIDTH;
        const Part part = {0, count, s.start % WIDTH == 0 && count == WIDTH};
        const Four p = descend(descent, s, i, part, read(gradients + at, part), read(parameters + at, part),
                               velocity ? velocity + at : nullptr);
        put(s, i, part, p, parameters + at);
    }
}
