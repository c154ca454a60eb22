// Tensor cores of sm_80 and later on signed bytes.
//
// mma.sync.m16n8k32: a warp adds a 16 x 32 by 32 x 8 product of bytes to 16 x 8 int32 sums, exactly. With g = lane / 4
// and t = lane % 4 a lane holds, four bytes along k in a word,
//   of the left operand   (g, 4t ..), (g + 8, 4t ..), (g, 16 + 4t ..), (g + 8, 16 + 4t ..);
//   of the right operand  (4t .., g), (16 + 4t .., g);
//   of the sums           (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
#pragma once

// The sum of four products of signed bytes, added to `sum`.
__device__ inline int multiply_bytes(unsigned a, unsigned b, int sum)
{
#ifdef PYRT_EMULATED
    for (int i = 0; i < 32; i += 8)
        sum += (signed char)(a >> i) * (signed char)(b >> i);
    return sum;
#else
    return __dp4a((int)a, (int)b, sum);
#endif
}

#ifdef PYRT_EMULATED

struct EmulatedBytes {
    unsigned a[4], b[2];
};

// The lanes show each other where their fragments lie, and meet again before anyone changes them.
EMULATED_UNCHECKED inline void multiply_add(int (&d)[4], const EmulatedBytes &mine)
{
    emulated_meet(0xffffffff, (uint64_t)&mine);
    const int g = emulated::lane() / 4, t = emulated::lane() % 4;
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 8; k++) {  // words along k
            const auto *left = (const EmulatedBytes *)emulated_value(g * 4 + k % 4);
            const auto *right = (const EmulatedBytes *)emulated_value((2 * t + i % 2) * 4 + k % 4);
            d[i] = multiply_bytes(left->a[i / 2 + k / 4 * 2], right->b[k / 4], d[i]);
        }
    emulated_meet(0xffffffff, 0);
}

__device__ inline void multiply_add(int (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                                    unsigned b1)
{
    multiply_add(d, {{a0, a1, a2, a3}, {b0, b1}});
}

#else

__device__ inline void multiply_add(int (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                                    unsigned b1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

#endif
