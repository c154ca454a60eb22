// The last of several blocks goes on alone, with what the others have left in device memory.
#pragma once

// Whether this block is the last of `blocks` to come here; all its threads that have not ended call this. The last
// one sees what the others wrote before. `done` is 0 before and after a launch.
__device__ inline bool is_last_block(int *done, int blocks)
{
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0) {
        last = atomicAdd(done, 1) == blocks - 1;
        if (last)
            atomicExch(done, 0);
    }
    __syncthreads();
    __threadfence();
    return last;
}
