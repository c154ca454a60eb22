// Tensor cores of sm_80 and later, and copies from global to shared memory that no register sees and nobody
// waits for until it must (cp.async).
#pragma once

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

// ---------------------------------------------------------------------------------------------------------
// Copies of a thread's own, in groups. When a group was waited for, the thread sees what its copies brought;
// a barrier shows it to the others.
// ---------------------------------------------------------------------------------------------------------

#ifdef PYRT_EMULATED

// Nothing is there before it is waited for.
struct AsyncCopies {
    struct Copy {
        float *target;
        const float *source;
        int count, inside, group;
    };
    Copy queued[128];
    int count = 0, group = 0;

    template <int BYTES>
    void start(float *target, const float *source, int inside)
    {
        queued[count++] = {target, source, BYTES / 4, inside, group};
    }
    void end_group() { group++; }
    template <int PENDING>
    void wait()
    {
        int left = 0;
        for (int i = 0; i < count; i++)
            if (queued[i].group < group - PENDING)
                copy(queued[i]);
            else
                queued[left++] = queued[i];
        count = left;
    }

    static void copy(const Copy &copy)
    {
        for (int i = 0; i < copy.count; i++)
            copy.target[i] = i < copy.inside ? copy.source[i] : 0;
    }
};

#else

struct AsyncCopies {
    // Copies BYTES, 4 or 16, from an address that is a multiple of as much; beyond `inside` floats it writes
    // zeros, and reads nothing.
    template <int BYTES>
    __device__ void start(float *target, const float *source, int inside)
    {
        const unsigned to = __cvta_generic_to_shared(target);
        if (BYTES == 16)  // past the L1 cache, where nobody would find it again
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(source),
                         "r"(inside * 4) : "memory");
        else
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(source),
                         "r"(inside * 4) : "memory");
    }

    __device__ void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

    // Waits until at most PENDING groups are still on their way.
    template <int PENDING>
    __device__ void wait()
    {
        asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
    }
};

#endif
