// The head of a row whose logits lie in the registers of LANES lanes, a lane each: for kernels that go on with it.
// Needs LANES and ALL_LANES.
#pragma once

#include "common.cuh"

// A butterfly: after it every lane holds the same bits, since a + b == b + a.
__device__ inline real row_sum(real value)
{
#pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2)
        value += __shfl_xor_sync(ALL_LANES, value, distance);
    return value;
}

__device__ inline real row_max(real value)
{
#pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2)
        value = fmax(value, __shfl_xor_sync(ALL_LANES, value, distance));
    return value;
}

struct LossAndGradient {
    real loss, gradient;
};

__device__ inline LossAndGradient head_softmax(real logit, bool inside, bool target, real scale)
{
    const real below = logit - row_max(inside ? logit : -INFINITY);
    const real e = exp(below);
    const real sum = row_sum(inside ? e + 0 * logit : 0);
    return {scale * (log(sum) - below), scale * (e / sum - target)};
}

__device__ inline LossAndGradient head_sigmoid(real logit, bool inside, bool target, real scale)
{
    const real e = exp(-fabs(logit));
    const real loss = scale * (fmax(logit, real(0)) - real(target) * logit + log1p(e));
    return {row_sum(inside ? loss : 0), scale * ((logit < 0 ? e : real(1)) / (1 + e) - target)};
}
