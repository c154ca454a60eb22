// Where the sums of a matrix product on tensor cores go: D = f(alpha sum + beta C + bias). f is the constant
// ACTIVATION. C and D are row-major with leading dimensions; with beta == 0 C is not read and may be null, as
// may the bias of N numbers. C may be D.
#pragma once

#include "nn/activations.cuh"

struct Result {
    int M, N;
    real alpha, beta;
    const real *C, *bias;
    real *D;
    int ldc, ldd;

    __device__ bool has(int m, int n) const { return m < M && n < N; }

    // Some number where D has no such element: what it is made from is not read there.
    __device__ real value(int m, int n, real sum) const
    {
        const bool inside = has(m, n);
        real result = alpha * sum;
        result += beta != 0 && inside ? beta * C[(offset)m * ldc + n] : 0;
        result += bias && inside ? bias[n] : 0;
        return ACTIVATE(result);
    }
};
