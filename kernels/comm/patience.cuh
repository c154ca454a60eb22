// How long a kernel waits for another rank: for ever, but where the host has given it up.
#pragma once

#include "common.cuh"

const int PATIENCE = 4096;  // looks between two at `given_up`, which lies in the host's memory

__device__ inline bool has_given_up(const int *given_up)
{
#if defined(PYRT_EMULATED)
    return emulated::load_acquire(given_up);
#else
    int value;
    asm volatile("ld.relaxed.sys.global.s32 %0, [%1];" : "=r"(value) : "l"(given_up) : "memory");
    return value;
#endif
}
