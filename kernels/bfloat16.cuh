// bf16 numbers, the upper half of a float, and a float as a sum of them.
#pragma once

typedef unsigned short bfloat16;

// To the nearest, ties to even. NaN stays NaN; what is beyond the largest bf16 becomes infinite.
__device__ inline bfloat16 to_bfloat16(float x)
{
    const unsigned bits = __float_as_uint(x);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return 0x7fc0;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

__device__ inline float to_float(bfloat16 x) { return __uint_as_float((unsigned)x << 16); }

// terms[0], terms[stride], ... = the first `count` terms of x, each the bf16 nearest to what the ones before leave.
// Where the first is not finite the others are 0, so that infinity does not turn into NaN.
__device__ inline void split(float x, int count, bfloat16 *terms, offset stride)
{
    const bfloat16 first = to_bfloat16(x);
    const bool finite = (first & 0x7f80) != 0x7f80;
    terms[0] = first;
    float rest = finite ? x - to_float(first) : 0;
    for (int i = 1; i < count; i++) {
        const bfloat16 term = to_bfloat16(rest);
        terms[i * stride] = term;
        rest -= to_float(term);
    }
}
