// Numbers that one GPU writes into another's memory, and that arrive without a flag: their place holds
// `missing` until they do. Each word is looked at by itself, so nothing rests on how many bytes arrive
// together, and no fence is needed: the number is the news.
#pragma once

#include "comm/patience.cuh"
#include "missing.cuh"
#include "vec4.cuh"

__device__ inline bool is_missing(const Vec4 &x)
{
    return is_missing(x.of[0]) || is_missing(x.of[1]) || is_missing(x.of[2]) || is_missing(x.of[3]);
}

template <int SIZE> struct WordOf { typedef unsigned type; };
template <> struct WordOf<8> { typedef unsigned long long type; };
typedef WordOf<sizeof(real)>::type Word;  // as many bits as a number

#if !defined(PYRT_EMULATED)
// 16 bytes, of which each word is stored, and read, as a whole.
__device__ inline void store_words(unsigned *there, const unsigned *x)
{
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(there), "r"(x[0]), "r"(x[1]),
                 "r"(x[2]), "r"(x[3]) : "memory");
}
__device__ inline void store_words(unsigned long long *there, const unsigned long long *x)
{
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(there), "l"(x[0]), "l"(x[1]) : "memory");
}
__device__ inline void look_at_words(const unsigned *here, unsigned *x)
{
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "l"(here) : "memory");
}
__device__ inline void look_at_words(const unsigned long long *here, unsigned long long *x)
{
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(x[0]), "=l"(x[1]) : "l"(here)
                 : "memory");
}
#endif

// Vec4 numbers as they are, `missing` ones too.
__device__ inline void store(real *there, const Vec4 &x)
{
#if defined(PYRT_EMULATED)
    for (int j = 0; j < WIDTH; j++)
        emulated::store_release((Word *)there + j, ((const Word *)x.of)[j]);
#else
    const Word *word = (const Word *)x.of;
#pragma unroll
    for (int i = 0; i < WIDTH; i += 16 / (int)sizeof(Word))
        store_words((Word *)there + i, word + i);
#endif
}

// The same, but for numbers that look like a missing one.
__device__ inline Vec4 never_missing(Vec4 x)
{
#pragma unroll
    for (int j = 0; j < WIDTH; j++)
        x.of[j] = never_missing(x.of[j]);
    return x;
}

__device__ inline void send(real *there, const Vec4 &x) { store(there, never_missing(x)); }

__device__ inline Vec4 look(const real *here)
{
    Vec4 x;
#if defined(PYRT_EMULATED)
    for (int j = 0; j < WIDTH; j++)
        ((Word *)x.of)[j] = emulated::load_acquire((const Word *)here + j);
#else
    Word *word = (Word *)x.of;
#pragma unroll
    for (int i = 0; i < WIDTH; i += 16 / (int)sizeof(Word))
        look_at_words((const Word *)here + i, word + i);
#endif
    return x;
}

// Waits until the first `count` of these vec4s are there, but that of `me`. Where the host has given up, since
// their sender is gone, what comes back is missing; nothing of it is used.
template <int MOST>
__device__ inline void receive(Vec4 (&x)[MOST], const real *const (&here)[MOST], int count, int me,
                               const int *given_up)
{
    bool waits = true;
    for (int looks = 1; waits; looks++) {
        waits = false;
#pragma unroll
        for (int i = 0; i < MOST; i++)
            if (i < count && i != me && (looks == 1 || is_missing(x[i])))
                x[i] = look(here[i]);
#pragma unroll
        for (int i = 0; i < MOST; i++)
            waits |= i < count && i != me && is_missing(x[i]);
        if (looks % PATIENCE == 0 && has_given_up(given_up))
            return;
    }
}
