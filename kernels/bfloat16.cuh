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

// terms[0], terms[stride], ... = the first `count` (1 to 3) terms of x, each the bf16 nearest to what the
// ones before leave. Where the first is not finite the others are 0, so that infinity does not turn into
// NaN.
__device__ inline void split(float x, int count, bfloat16 *terms, offset stride)
{
    const bfloat16 first = to_bfloat16(x);
    const bool finite = (first & 0x7f80) != 0x7f80;
    terms[0] = first;
    float rest = finite ? x - to_float(first) : 0;
#pragma unroll
    for (int i = 1; i < 3; i++) {  // a constant bound: `terms` may be registers
        const bfloat16 term = to_bfloat16(rest);
        if (i < count)
            terms[i * stride] = term;
        rest -= to_float(term);
    }
}

// Four numbers in a word of 8 bytes: of a structure the compiler would store each by itself.
__device__ inline unsigned long long pack(const bfloat16 (&x)[4])
{
    const unsigned low = x[0] | (unsigned)x[1] << 16, high = x[2] | (unsigned)x[3] << 16;
    return low | (unsigned long long)high << 32;
}

// The same for four neighbours: terms + i * stride is aligned to 8 bytes.
__device__ inline void split4(float4 x, int count, bfloat16 *terms, int stride)
{
    bfloat16 of_x[3], of_y[3], of_z[3], of_w[3];
    split(x.x, 3, of_x, 1);
    split(x.y, 3, of_y, 1);
    split(x.z, 3, of_z, 1);
    split(x.w, 3, of_w, 1);
#pragma unroll
    for (int i = 0; i < 3; i++)
        if (i < count)
            *(unsigned long long *)(terms + (offset)i * stride) = pack({of_x[i], of_y[i], of_z[i], of_w[i]});
}
