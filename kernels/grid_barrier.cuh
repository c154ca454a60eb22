// Where all blocks of a grid meet, within a kernel. Between coming and going on a block may do other work.
//
// All blocks must run at once: no more than the device has room for, which one a multiprocessor always are
// (__launch_bounds__(..., 1)). No kernel behind takes that room: it is let in once every block of this one runs
// (programmatic dependent launch), and ends without this one's help wherever else it comes from.
#pragma once

#include "common.cuh"

__device__ inline int blocks_that_came(const int *came)
{
#if defined(PYRT_EMULATED)
    return emulated::load_acquire(came);
#else
    int count;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(count) : "l"(came) : "memory");
    return count;
#endif
}

// All threads of the block call these. `came` counts blocks, from 0: who uses it again sets it to 0 where all
// have gone on, and before any comes.
__device__ inline void come(int *came)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();  // what any thread of the block wrote before goes ahead of the news
        atomicAdd(came, 1);
    }
}

// What the others wrote before they came is there behind it.
__device__ inline void go_on_with_all(const int *came)
{
    if (threadIdx.x == 0) {
        while (blocks_that_came(came) != (int)gridDim.x) {
        }
        __threadfence();
    }
    __syncthreads();
}
