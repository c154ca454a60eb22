// Filters turned around, for the gradient of images as a convolution of the gradient of outputs (implicit.cu).
// constants: REAL=float

#include "common.cuh"
#include "bfloat16.cuh"

// W (filters, places, channels), places in row order; T (channels, places, filters) with the places in reverse
// order, as `count` (1 to 3) bf16 components, `matrix` elements from one to the next, with leading dimension ld.
//
// Blocks and grid of one dimension, any number of threads, no shared memory. Neighbours write neighbours.
extern "C" __global__ void flip_filters(int filters, int places, int channels, const real *W, int count,
                                        bfloat16 *T, int ld, int matrix)
{
    wait_for_previous_kernel();
    const offset size = (offset)filters * places * channels, step = (offset)gridDim.x * blockDim.x;
    for (offset i = blockIdx.x * (offset)blockDim.x + threadIdx.x; i < size; i += step) {
        const int f = i % filters, place = i / filters % places, channel = i / filters / places;
        const real weight = W[((offset)f * places + places - 1 - place) * channels + channel];
        split(weight, count, T + (offset)channel * ld + place * filters + f, matrix);
    }
}
