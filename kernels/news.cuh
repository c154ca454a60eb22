// Numbers that blocks of a grid leave for each other within a kernel, without a counter or a fence: until one comes
// its place holds `missing` (missing.cuh), and who needs it looks until it is there. A word comes as a whole, and
// nothing rests on the order in which words come.
//
// All blocks must run at once: no more than the device has room for, which one a multiprocessor always are
// (__launch_bounds__(..., 1)). No kernel behind takes that room: it is let in once every block of this one runs
// (programmatic dependent launch), and needs none of this one's to end.
#pragma once

#include "missing.cuh"

template <int COUNT>
struct alignas(COUNT * sizeof(real)) Numbers {
    real of[COUNT];
};

#if defined(PYRT_EMULATED)

template <int COUNT>
__device__ inline void put_words(real *there, const Numbers<COUNT> &x)
{
    for (int i = 0; i < COUNT; i++)
        emulated::store_release((unsigned *)there + i, __float_as_uint(x.of[i]));
}

template <int COUNT>
__device__ inline Numbers<COUNT> look(const real *here)
{
    Numbers<COUNT> x;
    for (int i = 0; i < COUNT; i++)
        x.of[i] = __uint_as_float(emulated::load_acquire((const unsigned *)here + i));
    return x;
}

#else

__device__ inline void put_words(real *there, const Numbers<1> &x)
{
    asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(there), "f"(x.of[0]) : "memory");
}
__device__ inline void put_words(real *there, const Numbers<2> &x)
{
    asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1, %2};" ::"l"(there), "f"(x.of[0]), "f"(x.of[1])
                 : "memory");
}
__device__ inline void put_words(real *there, const Numbers<4> &x)
{
    asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(there), "f"(x.of[0]),
                 "f"(x.of[1]), "f"(x.of[2]), "f"(x.of[3]) : "memory");
}

__device__ inline void look_at(const real *here, Numbers<1> &x)
{
    asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(x.of[0]) : "l"(here) : "memory");
}
__device__ inline void look_at(const real *here, Numbers<2> &x)
{
    asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];" : "=f"(x.of[0]), "=f"(x.of[1]) : "l"(here)
                 : "memory");
}
__device__ inline void look_at(const real *here, Numbers<4> &x)
{
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.of[0]), "=f"(x.of[1]), "=f"(x.of[2]), "=f"(x.of[3]) : "l"(here) : "memory");
}

template <int COUNT>
__device__ inline Numbers<COUNT> look(const real *here)
{
    Numbers<COUNT> x;
    look_at(here, x);
    return x;
}

#endif

template <int COUNT>
__device__ inline bool is_missing(const Numbers<COUNT> &x)
{
    bool any = false;
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        any |= is_missing(x.of[i]);
    return any;
}

// Tells numbers to who looks there.
template <int COUNT>
__device__ inline void tell(real *there, Numbers<COUNT> x)
{
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        x.of[i] = never_missing(x.of[i]);
    put_words(there, x);
}

// Nothing is there any more: for the launch that comes next.
template <int COUNT>
__device__ inline void forget(real *there)
{
    Numbers<COUNT> nothing;
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        nothing.of[i] = missing(real());
    put_words(there, nothing);
}

// Waits until what `place(i)` points to is there, for each i; a null pointer stands for zeros. All are looked at
// before the first is waited for.
template <int MANY, int COUNT, typename Place>
__device__ inline void hear(Numbers<COUNT> (&x)[MANY], Place place)
{
    bool waits = true;
    for (bool again = false; waits; again = true) {
        waits = false;
#pragma unroll
        for (int i = 0; i < MANY; i++) {
            const real *here = place(i);
            if (!again)
                x[i] = {};
            if (here && (!again || is_missing(x[i])))
                x[i] = look<COUNT>(here);
        }
#pragma unroll
        for (int i = 0; i < MANY; i++)
            waits |= is_missing(x[i]);
    }
}
