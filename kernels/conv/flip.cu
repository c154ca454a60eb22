// Filters turned around, for the gradient of images as a convolution of the gradient of outputs (implicit.cu).
// constants: REAL=float

#include "common.cuh"
#include "bfloat16.cuh"

// W (filters, places, channels), places in row order; T (channels, places, filters) with the places in reverse
// order, as `count` (1 to 3) bf16 components, `distance` elements from one to the next, with leading dimension ld.
struct Turn {
    int filters, places, channels, count, ld, distance;
    const real *W;
    bfloat16 *T;
};

// The filters of several layers: the grid's y counts them. Blocks and the grid's x of any number of threads, no shared
// memory. Neighbours write neighbours.
extern "C" __global__ void flip_filters(const Turn *turns)
{
    wait_for_previous_kernel();
    const Turn turn = turns[blockIdx.y];
    const int filters = turn.filters, places = turn.places, channels = turn.channels;
    const offset size = (offset)filters * places * channels, step = (offset)gridDim.x * blockDim.x;
    for (offset i = blockIdx.x * (offset)blockDim.x + threadIdx.x; i < size; i += step) {
        const int f = i % filters, place = i / filters % places, channel = i / filters / places;
        const real weight = turn.W[((offset)f * places + places - 1 - place) * channels + channel];
        split(weight, turn.count, turn.T + (offset)channel * turn.ld + place * filters + f, turn.distance);
    }
}
