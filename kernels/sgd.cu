// Stochastic gradient descent on flat arrays, with weight decay and momentum.
// constants: REAL=float|double

#include "common.cuh"

// g = gradient + decay p for the first `decayed` elements (weights), g = gradient for the rest (biases);
// v = momentum v + g, p -= rate v; or, where velocity is null, p -= rate g.
//
// Blocks and grid of one dimension, any number of threads, no shared memory. Parameters, gradients and
// velocities lie flat, a layer's weights before its biases: a launch updates any stretch of one layer.
extern "C" __global__ void sgd(int size, int decayed, real rate, real momentum, real decay,
                               const real *gradients, real *velocity, real *parameters)
{
    const int step = gridDim.x * blockDim.x;
    for (offset i = blockIdx.x * blockDim.x + threadIdx.x; i < size; i += step) {
        const real p = parameters[i];
        real change = gradients[i];
        if (i < decayed)
            change += decay * p;
        if (velocity) {
            change += momentum * velocity[i];
            velocity[i] = change;
        }
        parameters[i] = p - rate * change;
    }
}
