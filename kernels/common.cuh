// What every kernel shares. REAL (float or double) is defined by whoever compiles the file.
#pragma once

typedef REAL real;
typedef long long offset;  // row * leading dimension can pass 2^31

const int WARP = 32;

// The first line of every kernel. It is launched while the kernel before it in the stream still runs, to be
// on its multiprocessor in time (programmatic dependent launch, sm_90; see pyrt/kernels.py): here it waits
// until what that one wrote is there, and lets the kernel behind it be launched, which waits in its turn.
//
// A kernel that `overtakes` reads nothing that the one before it writes, and does not wait here but, by
// wait_for_overtaken_kernel, before it stores anything. What was there when that one began it finds here: that
// one had waited for it.
__device__ inline void wait_for_overtaken_kernel()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ inline void wait_for_kernel_before(bool overtakes = false)
{
    if (!overtakes)
        wait_for_overtaken_kernel();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
