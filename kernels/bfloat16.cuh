// bf16 numbers, the upper half of a float, and a float as a sum of them.
#pragma once

#include "common.cuh"

typedef unsigned short bfloat16;

const int MOST_COMPONENTS = 3;  // that a float has: 8 bits each

// To the nearest, ties to even. NaN stays NaN; what is beyond the largest bf16 becomes infinite.
__device__ inline bfloat16 to_bfloat16(float x)
{
    const unsigned bits = __float_as_uint(x);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return 0x7fc0;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

__device__ inline float to_float(bfloat16 x) { return __uint_as_float((unsigned)x << 16); }

// components[0], components[stride], ... = the first `count` (1 to 3) components of x, each the bf16 nearest to what the
// ones before leave. Where the first is not finite the others are 0, so that infinity does not turn into
// NaN.
__device__ inline void split(float x, int count, bfloat16 *components, offset stride)
{
    const bfloat16 first = to_bfloat16(x);
    const bool finite = (first & 0x7f80) != 0x7f80;
    components[0] = first;
    float rest = finite ? x - to_float(first) : 0;
    for (int i = 1; i < count; i++) {
        const bfloat16 term = to_bfloat16(rest);
        components[i * stride] = term;
        rest -= to_float(term);
    }
}

// Vec4 numbers in a word of 8 bytes: of a structure the compiler would store each by itself.
__device__ inline unsigned long long pack(const bfloat16 (&x)[4])
{
    const unsigned low = x[0] | (unsigned)x[1] << 16, high = x[2] | (unsigned)x[3] << 16;
    return low | (unsigned long long)high << 32;
}

// Two neighbours as bf16, the left one in the lower half.
__device__ inline unsigned to_bfloat16_pair(float left, float right)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(right), "f"(left));
    return pair;
#else
    return to_bfloat16(left) | (unsigned)to_bfloat16(right) << 16;
#endif
}

// Takes the next term from two neighbours; both are finite after the `first` one, if only because they are 0.
__device__ inline unsigned take_pair(float &left, float &right, bool first)
{
    const float LARGEST = 3.402823466e38f;
    const unsigned pair = to_bfloat16_pair(left, right);
    left -= __uint_as_float(pair << 16);
    right -= __uint_as_float(pair & 0xffff0000);
    if (first) {
        left = fabs(left) <= LARGEST ? left : 0;
        right = fabs(right) <= LARGEST ? right : 0;
    }
    return pair;
}

// As split(), for two neighbours whose components are stored together.
__device__ inline void split_pair(float left, float right, int count, bfloat16 *components, offset stride)
{
#pragma unroll
    for (int i = 0; i < MOST_COMPONENTS; i++)
        if (i < count)
            *(unsigned *)(components + i * stride) = take_pair(left, right, i == 0);
}

// The same for four neighbours: components + i * stride is aligned to 8 bytes.
__device__ inline void split4(float4 x, int count, bfloat16 *components, offset stride)
{
#pragma unroll
    for (int i = 0; i < MOST_COMPONENTS; i++)
        if (i < count) {
            const unsigned low = take_pair(x.x, x.y, i == 0), high = take_pair(x.z, x.w, i == 0);
            *(unsigned long long *)(components + i * stride) = low | (unsigned long long)high << 32;
        }
}

// The same for V neighbours, 1, 2 or 4: components + i * stride is aligned to V of them.
template <int V, class Number>
__device__ inline void split_neighbours(const Number (&x)[V], int count, bfloat16 *components, offset stride)
{
    if constexpr (V == 4)
        split4({(float)x[0], (float)x[1], (float)x[2], (float)x[3]}, count, components, stride);
    else if constexpr (V == 2)
        split_pair(x[0], x[1], count, components, stride);
    else
        split(x[0], count, components, stride);
}
