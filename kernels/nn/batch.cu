// The place of the next batch, for a rank that gets no sample of this one; with the rows of a batch it comes by
// itself (pixels.cu).
// constants: REAL=float|double

#include "nn/batch.cuh"

// One thread.
extern "C" __global__ void skip_batch(int *place, int advance, int places)
{
    wait_for_previous_kernel();
    move_on(place, advance, places);
}
