// Where the sums of a matrix product on tensor cores go: D = f(alpha sum + beta C + bias). f is the constant
// ACTIVATION. C and D are row-major with leading dimensions; with beta == 0 C is not read and may be null, as
// may the bias of N numbers. C may be D.
#pragma once

#include "activations.cuh"

struct Result {
    real alpha, beta;
    const real *C, *bias;
    real *D;
    int ldc, ldd;

    __device__ real value(int m, int n, real sum) const
    {
        real result = alpha * sum;
        if (beta != 0)
            result += beta * C[(offset)m * ldc + n];
        if (bias)
            result += bias[n];
        return ACTIVATE(result);
    }

    __device__ void store(int m, int n, real sum) const { D[(offset)m * ldd + n] = value(m, n, sum); }
};
