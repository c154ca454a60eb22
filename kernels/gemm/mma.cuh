// Tensor cores of sm_80 and later.
#pragma once

#include "async_copies.cuh"

// ---------------------------------------------------------------------------------------------------------
// mma.sync.m16n8k8: a warp adds a 16 x 8 by 8 x 8 product of TF32 numbers to 16 x 8 float32 sums.
//
// TF32 is float32 of which the low 13 bits are ignored. With g = lane / 4 and t = lane % 4 a lane holds
//   of the left operand   (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4);
//   of the right operand  (t, g), (t + 4, g);
//   of the sums           (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
// Sums are rounded toward zero.
// ---------------------------------------------------------------------------------------------------------

#ifdef PYRT_EMULATED

struct EmulatedFragments {
    const float *a, *b;
};

EMULATED_UNCHECKED inline double as_tf32(float x) { return __uint_as_float(__float_as_uint(x) & 0xffffe000); }

// The lanes show each other where their fragments lie, and meet again before anyone changes them.
EMULATED_UNCHECKED inline void multiply_add(float (&d)[4], const float (&a)[4], const float (&b)[2])
{
    const EmulatedFragments mine = {a, b};
    emulated_meet(0xffffffff, (uint64_t)&mine);
    const int g = emulated::lane() / 4, t = emulated::lane() % 4;
    const EmulatedFragments *of_row[4], *of_column[2][4];
    for (int i = 0; i < 4; i++) {
        of_row[i] = (const EmulatedFragments *)emulated_value(g * 4 + i);
        for (int j = 0; j < 2; j++)
            of_column[j][i] = (const EmulatedFragments *)emulated_value((2 * t + j) * 4 + i);
    }
    for (int i = 0; i < 4; i++) {
        double sum = d[i];
        for (int k = 0; k < 8; k++)
            sum += as_tf32(of_row[k % 4]->a[i / 2 + k / 4 * 2]) * as_tf32(of_column[i % 2][k % 4]->b[k / 4]);
        d[i] = sum;
        if (fabs(d[i]) > fabs(sum))
            d[i] = nextafterf(d[i], 0);
    }
    emulated_meet(0xffffffff, 0);
}

#else

__device__ inline void multiply_add(float (&d)[4], const float (&a)[4], const float (&b)[2])
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
          "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}

#endif
