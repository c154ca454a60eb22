// From one step to the next on the device, without a word from the host.
#pragma once

#include "common.cuh"

// As packed by nn/launches.py.
struct NextBatch {
    const real *loss;
    real *losses;  // a ring
    int *state;    // the place of the batch in what lies on the device; the place in the ring
    int advance, places, ring;
};

// The loss goes into the ring, whose place moves on by one; the place of the batch by `advance`; both around
// at their ends. For one thread.
__device__ inline void move_on(const NextBatch &next)
{
    next.losses[next.state[1]] = *next.loss;
    next.state[0] = (next.state[0] + next.advance) % next.places;
    next.state[1] = (next.state[1] + 1) % next.ring;
}
