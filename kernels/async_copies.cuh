// Copies from global to shared memory that no register sees and nobody waits for until it must (cp.async, sm_80 and
// later), in groups. They are a thread's own: when a group was waited for, the thread sees what its copies brought;
// a barrier shows it to the others.
#pragma once

#ifdef PYRT_EMULATED

// Nothing is there before it is waited for, unless there are more than MOST.
struct AsyncCopies {
    struct Copy {
        float *target;
        const float *source;
        int count, inside, group;
    };
    static const int MOST = 128;
    Copy queued[MOST];
    int count = 0, group = 0;

    template <int BYTES>
    void start(float *target, const float *source, int inside)
    {
        const Copy one = {target, source, BYTES / 4, inside, group};
        if (count < MOST)
            queued[count++] = one;
        else
            copy(one);
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
    // Copies BYTES, 4, 8 or 16, from an address that is a multiple of as much; beyond `inside` floats it writes
    // zeros, and reads nothing.
    template <int BYTES>
    __device__ void start(float *target, const float *source, int inside)
    {
        const unsigned to = __cvta_generic_to_shared(target);
        if (BYTES == 16)  // past the L1 cache, where nobody would find it again
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(source),
                         "r"(inside * 4) : "memory");
        else
            asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(to), "l"(source),
                         "r"(inside * 4), "n"(BYTES) : "memory");
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
