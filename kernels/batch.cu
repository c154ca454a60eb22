// The end of a step: the next one takes the rows behind this one's, and the loss is kept for the host.
// constants: REAL=float|double

#include "common.cuh"

// state[0], the place of the batch in what lies on the device, moves on by `advance`, around at `places`;
// state[1], the place in the ring, by one, around at `ring`: there the loss goes first.
//
// One thread. With this, steps differ in nothing that the host must tell them.
extern "C" __global__ void next_batch(int advance, int places, int ring, const real *loss,
                                      real *losses, int *state)
{
    wait_for_kernel_before();
    losses[state[1]] = *loss;
    state[0] = (state[0] + advance) % places;
    state[1] = (state[1] + 1) % ring;
}
