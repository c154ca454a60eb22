// Some channels of images, for a rank that has all of them and convolves its own: a copy without gaps.
// constants: REAL=float|double

#include "common.cuh"

// Y (pixels x channels, without gaps) = X, whose pixels begin `ldx` numbers apart.
//
// Block 32 x 8, no shared memory; the grid's x counts blocks down the pixels, y across the channels, any number
// of each.
extern "C" __global__ void take_channels(int pixels, int channels, const real *X, offset ldx, real *Y)
{
    wait_for_previous_kernel();
    const int pixel_step = gridDim.x * blockDim.y, channel_step = gridDim.y * blockDim.x;
    for (offset pixel = blockIdx.x * blockDim.y + threadIdx.y; pixel < pixels; pixel += pixel_step)
        for (int i = blockIdx.y * blockDim.x + threadIdx.x; i < channels; i += channel_step)
            Y[pixel * channels + i] = X[pixel * ldx + i];
}
