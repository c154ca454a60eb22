// The update of parameters from their gradients, by the rule of an optimiser.
// constants: REAL=float|double UPDATE=nn/updates/*.cuh

#include UPDATE

// Each parameter of the segments gets its new value, and each weight its components, if any. If the update has
// a ring the step's loss is kept: a launch for that alone would take longer than all it does.
//
// Blocks of one dimension, any number of threads, no shared memory; the grid's x is of any size, its y has a
// segment each. What a launch costs does not depend on how many layers there are.
extern "C" __global__ void update(const Segment *segments, const Update *given, const real *gradients)
{
    start_beside_previous_kernel(false);
    const Segment s = segments[blockIdx.y];  // no kernel writes these
    const Update update = *given;
    wait_for_previous_kernel();
    if (update.ring && threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0)
        keep_loss(*update.ring);
    const offset step = (offset)gridDim.x * blockDim.x * WIDTH;
    for (offset i = (offset)(blockIdx.x * blockDim.x + threadIdx.x) * WIDTH; i < s.size; i += step) {
        const offset at = s.start + i;
        const int count = s.size - i < WIDTH ? s.size - i : WIDTH;
        const Part part = {0, count, s.start % WIDTH == 0 && count == WIDTH};
        const Vec4 p = update.updated(s, i, part, at, read(gradients + at, part), update.before(part, at));
        update.put(s, i, part, at, p);
    }
}

// The end of a step whose updates are all queued before it: the loss is kept if the update has a ring, and the
// rule counts the step. One thread.
extern "C" __global__ void end_step(const Update *update)
{
    wait_for_previous_kernel();
    if (update->ring)
        keep_loss(*update->ring);
    update->rule.end_step();
}
