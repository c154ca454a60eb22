// The head of the network: bias, output function, loss and the gradient of the loss, in one pass.
// constants: REAL=float|double
//
// With z = Z[i] + b and t the one-hot vector of labels[i]:
//   softmax_head   loss[i] = scale (logsumexp(z) - z[label])            dZ[i] = scale (softmax(z) - t)
//   sigmoid_head   loss[i] = scale sum_c (softplus(z_c) - t_c z_c)      dZ[i] = scale (sigmoid(z) - t)
// scale is 1 / (samples of the global batch), so that losses and gradients of all ranks just add up.
//
// Z and dZ are rows x classes without gaps; dZ may be Z. labels lie in [0, classes). Logits that are not
// finite give a loss that is not finite, so that a diverged run shows in its loss.
//
// Both kernels: block 32 x any (a warp a row), grid of one dimension and any size, no shared memory. Lanes
// take every 32nd class, and meet by shuffles in a fixed order.

#include "warp_sum.cuh"

__device__ inline real warp_max(real value)
{
    for (int distance = WARP / 2; distance > 0; distance /= 2)
        value = fmax(value, __shfl_xor_sync(ALL_LANES, value, distance));
    return value;
}

extern "C" __global__ void softmax_head(int rows, int classes, real scale, const real *Z, const real *b,
                                        const int *labels, real *dZ, real *loss)
{
    wait_for_previous_kernel();
    const int lane = threadIdx.x;
    const int step = gridDim.x * blockDim.y;
    for (offset row = blockIdx.x * blockDim.y + threadIdx.y; row < rows; row += step) {
        const real *z = Z + row * classes;
        real *dz = dZ + row * classes;
        const int label = labels[row];

        // With the largest exponent 0 no exp overflows, and their sum is at least 1.
        real largest = z[0] + b[0];
        for (int c = lane; c < classes; c += WARP)
            largest = fmax(largest, z[c] + b[c]);
        largest = warp_max(largest);

        // 0 * logit is 0 unless the logit is not finite: a -inf, alone, would go unnoticed.
        real sum = 0;
        for (int c = lane; c < classes; c += WARP) {
            const real logit = z[c] + b[c];
            sum += exp(logit - largest) + 0 * logit;
        }
        sum = warp_sum(sum);

        // From here on a lane reads only what it alone overwrites; so the label's lane also writes the
        // loss.
        for (int c = lane; c < classes; c += WARP) {
            const real below = z[c] + b[c] - largest;
            const real target = c == label;
            dz[c] = scale * (exp(below) / sum - target);
            if (c == label)
                loss[row] = scale * (log(sum) - below);
        }
    }
}

extern "C" __global__ void sigmoid_head(int rows, int classes, real scale, const real *Z, const real *b,
                                        const int *labels, real *dZ, real *loss)
{
    wait_for_previous_kernel();
    const int lane = threadIdx.x;
    const int step = gridDim.x * blockDim.y;
    for (offset row = blockIdx.x * blockDim.y + threadIdx.y; row < rows; row += step) {
        const real *z = Z + row * classes;
        real *dz = dZ + row * classes;
        const int label = labels[row];

        // exp of a number that is never positive cannot overflow: softplus(z) = max(z, 0) + log(1 +
        // exp(-|z|)). Each term is scaled before it is added, so that many huge ones add up to less than
        // the largest number.
        real sum = 0;
        for (int c = lane; c < classes; c += WARP) {
            const real logit = z[c] + b[c];
            const real target = c == label;
            const real e = exp(-fabs(logit));
            sum += scale * (fmax(logit, real(0)) - target * logit + log1p(e));
            dz[c] = scale * ((logit < 0 ? e : real(1)) / (1 + e) - target);
        }
        sum = warp_sum(sum);
        if (lane == 0)
            loss[row] = sum;
    }
}
