// Bias and activation: A = f(Z + b), and its backward dZ = dA f'(Z).
// constants: REAL=float|double ACTIVATION=identity|sigmoid|tanh|relu
//
// The constant ACTIVATION picks activate_<name> and derivative_<name>. Every f here has a derivative that
// is a function of its value a = f(z) alone, so the backward pass needs no Z and A may overwrite it. To add
// an activation, add its pair of functions and its name to the line above.

#include "common.cuh"

#define JOIN_EXPANDED(left, right) left##right
#define JOIN(left, right) JOIN_EXPANDED(left, right)
#define ACTIVATE JOIN(activate_, ACTIVATION)
#define DERIVATIVE JOIN(derivative_, ACTIVATION)

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

// Z and A are rows x columns without gaps, b has a value a column; A may be Z.
//
// Block 32 x 8, no shared memory; the grid's x counts blocks down the rows, y across the columns, any
// number of each. A thread stays in its column, so it reads b once.
extern "C" __global__ void bias_activation(int rows, int columns, const real *Z, const real *b, real *A)
{
    const int row_step = gridDim.x * blockDim.y, column_step = gridDim.y * blockDim.x;
    for (offset column = blockIdx.y * blockDim.x + threadIdx.x; column < columns; column += column_step) {
        const real bias = b[column];
        for (offset row = blockIdx.x * blockDim.y + threadIdx.y; row < rows; row += row_step) {
            const offset i = row * columns + column;
            A[i] = ACTIVATE(Z[i] + bias);
        }
    }
}

// dZ may be dA.
//
// Blocks and grid of one dimension, any number of threads, no shared memory. A thread takes elements a
// whole grid apart, so that neighbours stay coalesced and a small grid covers any size.
extern "C" __global__ void activation_backward(int size, const real *A, const real *dA, real *dZ)
{
    const int step = gridDim.x * blockDim.x;
    for (offset i = blockIdx.x * blockDim.x + threadIdx.x; i < size; i += step)
        dZ[i] = dA[i] * DERIVATIVE(A[i]);
}
