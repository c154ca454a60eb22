// What every kernel shares. REAL (float or double) is defined by whoever compiles the file.
#pragma once

typedef REAL real;
typedef long long offset;  // row * leading dimension can pass 2^31

const int WARP = 32;

// The first line of every kernel. It is launched while the kernel before it in the stream still runs, to be
// on its multiprocessor in time (programmatic dependent launch, sm_90; see pyrt/kernels/__init__.py): here it waits
// until what that one wrote is there, and lets the kernel behind it be launched, which waits in its turn.
__device__ inline void wait_for_previous_kernel()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait; griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Instead of it in a kernel that has something to prepare: each thread calls wait_for_previous_kernel itself,
// before it reads or writes what others do. A kernel that `starts_early` reads nothing that the one before
// writes: its threads call that only before they write. It finds what was there when that one began, since
// that one had waited for it before it let this one be launched; so that one may not overtake another.
__device__ inline void start_beside_previous_kernel(bool starts_early)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (starts_early)
        asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
