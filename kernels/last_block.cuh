// The last of several blocks, or warps, goes on alone with the results that the others have left.
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

// Whether this warp is the last of `warps` to come here. It sees what the others wrote before. `done` is 0 before and
// after a launch.
__device__ inline bool is_last_warp(int *done, int warps)
{
    __threadfence();
    __syncwarp();
    int last = 0;
    if (threadIdx.x % WARP == 0) {
        last = atomicAdd(done, 1) == warps - 1;
        if (last)
            atomicExch(done, 0);
    }
    last = __shfl_sync(0xffffffff, last, 0);
    __threadfence();
    return last;
}
