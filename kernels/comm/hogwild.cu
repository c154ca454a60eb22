// Parameters that lie once, for all ranks of a node, and that each rank updates where they lie: without locks
// and without waiting for others (Niu et al., Hogwild!, 2011).
// constants: REAL=float|double ATOMIC=0|1
//
// Blocks of one dimension, any number of threads; grid of one dimension; no shared memory. Each thread takes
// four neighbouring numbers at a time. They may lie on another GPU, and other ranks may write them meanwhile:
// each number is read, and written, as a whole.

#include "comm/peer.cuh"

// One more update counted: as the numbers are, so that of these counts as many are lost. Returns the count then.
__device__ inline unsigned count(unsigned *word)
{
#if ATOMIC
    return atomicAdd_system(word, 1u) + 1;
#else
    volatile unsigned *there = word;
    const unsigned now = *there + 1;
    *there = now;
    return now;
#endif
}

// Notes a push of this rank, with which a shared count has become `now`. own: pushes; that count when this rank
// last pulled; then how many of its pushes came behind 0, 1, .. others since the pull, the last with all beyond.
__device__ inline void note(unsigned *own, unsigned now, int most)
{
    const unsigned others = now > own[1] ? now - own[1] - 1 : 0;  // where counts were lost it may have fallen
    own[0] += 1;
    own[1] = now;
    own[2 + (others < (unsigned)most ? others : (unsigned)most)] += 1;
}

// Adds what a rank has changed since it read four numbers: mine - before; returns what is there now. Where
// nobody has written since, that is `mine` itself, without the rounding of a difference and a sum.
__device__ inline Vec4 added(real *shared, const Vec4 &before, const Vec4 &mine)
{
    Vec4 now;
#if ATOMIC
#pragma unroll
    for (int j = 0; j < WIDTH; j++) {
        const Word was = ((const Word *)before.of)[j];
        if (atomicCAS_system((Word *)shared + j, was, ((const Word *)mine.of)[j]) == was) {
            now.of[j] = mine.of[j];
        } else {
            const real change = mine.of[j] - before.of[j];
            now.of[j] = atomicAdd_system(shared + j, change) + change;
        }
    }
#else
    const Vec4 there = look(shared);
    bool changes = false;
#pragma unroll
    for (int j = 0; j < WIDTH; j++) {
        changes |= mine.of[j] != before.of[j];
        const bool as_before = ((const Word *)there.of)[j] == ((const Word *)before.of)[j];  // of a NaN too
        now.of[j] = as_before ? mine.of[j] : there.of[j] + (mine.of[j] - before.of[j]);
    }
    if (changes)  // else a store could undo what others have stored since
        store(shared, now);
#endif
    return now;
}

// Push and pull: what this rank has changed goes to the shared numbers, and what is there now becomes this
// rank's. mine, before (4 vec4s): this rank's parameters, and as they were when it last read shared (4 vec4s).
// words (blocks) counts the pushes of all ranks, own (3 + most) those of this one, and how stale they were.
extern "C" __global__ void push(int vec4s, real *shared, unsigned *words, real *mine, real *before,
                                unsigned *own, int most)
{
    wait_for_previous_kernel();
    for (int vec4 = blockIdx.x * blockDim.x + threadIdx.x; vec4 < vec4s; vec4 += gridDim.x * blockDim.x) {
        const offset at = (offset)vec4 * WIDTH;
        const Vec4 now = added(shared + at, *(const Vec4 *)(before + at), *(const Vec4 *)(mine + at));
        *(Vec4 *)(mine + at) = now;
        *(Vec4 *)(before + at) = now;
    }
    if (threadIdx.x > 0)
        return;
    const unsigned now = count(words + blockIdx.x);
    if (blockIdx.x == 0)
        note(own, now, most);
}

// Copies numbers (4 vec4s) to two places, any of which may be shared.
extern "C" __global__ void copy_to_both(int vec4s, const real *from, real *first, real *second)
{
    wait_for_previous_kernel();
    for (int vec4 = blockIdx.x * blockDim.x + threadIdx.x; vec4 < vec4s; vec4 += gridDim.x * blockDim.x) {
        const offset at = (offset)vec4 * WIDTH;
        const Vec4 x = look(from + at);
        store(first + at, x);
        store(second + at, x);
    }
}
