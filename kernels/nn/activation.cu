// Bias and activation: A = f(Z + b), and its backward dZ = dA f'(Z).
// constants: REAL=float|double ACTIVATION=identity|sigmoid|tanh|relu

#include "common.cuh"
#include "nn/activations.cuh"

// Z and A are rows x columns without gaps, b has a value a column; A may be Z.
//
// Block 32 x 8, no shared memory; the grid's x counts blocks down the rows, y across the columns, any
// number of each. A thread stays in its column, so it reads b once.
extern "C" __global__ void bias_activation(int rows, int columns, const real *Z, const real *b, real *A)
{
    wait_for_previous_kernel();
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
    wait_for_previous_kernel();
    const int step = gridDim.x * blockDim.x;
    for (offset i = blockIdx.x * blockDim.x + threadIdx.x; i < size; i += step)
        dZ[i] = dA[i] * DERIVATIVE(A[i]);
}
