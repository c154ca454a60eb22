// The activations f, each with its derivative as a function of a = f(z) alone: the backward pass needs no Z,
// and A may overwrite it. The constant ACTIVATION of whoever includes this picks the pair that ACTIVATE and
// DERIVATIVE stand for. To add one: its pair of functions, and its name among the constants.
#pragma once

#define JOIN_EXPANDED(left, right) left##right
#define JOIN(left, right) JOIN_EXPANDED(left, right)
#define ACTIVATE JOIN(activate_, ACTIVATION)
#define DERIVATIVE JOIN(derivative_, ACTIVATION)
#define ACTIVATE_QUICKLY JOIN(activate_quickly_, ACTIVATION)

__device__ inline real activate_identity(real z) { return z; }
__device__ inline real derivative_identity(real) { return 1; }

// exp of a number that is never positive cannot overflow.
__device__ inline real activate_sigmoid(real z)
{
    const real e = exp(-fabs(z));
    return (z < 0 ? e : real(1)) / (1 + e);
}
__device__ inline real derivative_sigmoid(real a) { return a * (1 - a); }

__device__ inline real activate_tanh(real z) { return tanh(z); }
__device__ inline real derivative_tanh(real a) { return 1 - a * a; }

// Written so that NaN stays NaN: a diverged run must show.
__device__ inline real activate_relu(real z) { return z < 0 ? 0 : z; }
__device__ inline real derivative_relu(real a) { return a > 0; }

// As f to 20 bits of the largest number, in a few instructions: for results that keep 16 bits or fewer.
__device__ inline float activate_quickly_sigmoid(float z) { return __fdividef(1, 1 + __expf(-z)); }
__device__ inline float activate_quickly_tanh(float z) { return 1 - __fdividef(2, 1 + __expf(2 * z)); }
__device__ inline float activate_quickly_relu(float z) { return activate_relu(z); }
