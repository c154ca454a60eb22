// The ends of a step that most ranks meet elsewhere: the place of the next batch comes with the rows of this
// one (pixels.cu), and its loss is kept with the update (sgd.cu).
// constants: REAL=float|double

#include "batch.cuh"

// Both kernels: one thread.

// For a rank that gets no sample of a batch.
extern "C" __global__ void skip_batch(int *place, int advance, int places)
{
    wait_for_kernel_before();
    move_on(place, advance, places);
}

// For a rank that updates nothing.
extern "C" __global__ void keep_loss_alone(const LossRing *ring)
{
    wait_for_kernel_before();
    keep_loss(*ring);
}
