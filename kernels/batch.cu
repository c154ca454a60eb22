// The end of a step: the next one takes the rows behind this one's, and the loss is kept for the host. The
// update does it along the way (sgd.cu); this is for a rank that updates nothing.
// constants: REAL=float|double

#include "batch.cuh"

// One thread. With this, steps differ in nothing that the host must tell them.
extern "C" __global__ void next_batch(const NextBatch *next)
{
    wait_for_kernel_before();
    move_on(*next);
}
