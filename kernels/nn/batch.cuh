// What leads from one step to the next on the device, without a word from the host.
#pragma once

#include "common.cuh"

// Where in what lies on the device a batch begins: it moves on by `advance`, around at `places`.
__device__ inline void move_on(int *place, int advance, int places) { *place = (*place + advance) % places; }

// The losses of the last steps, for the host to read some steps later. As packed by nn/launch/update.py.
struct LossRing {
    const real *loss;  // of the step
    real *losses;
    int *place;  // of the next loss
    int size;
};

// For one thread.
__device__ inline void keep_loss(const LossRing &ring)
{
    ring.losses[*ring.place] = *ring.loss;
    *ring.place = (*ring.place + 1) % ring.size;
}
