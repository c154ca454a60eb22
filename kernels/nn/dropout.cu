// Dropout: units become zero at random while a network trains, the others are scaled (nn/model/dropout.py).
// constants: REAL=float|double
//
// Which are kept follows from seed, step, place of the layer and element, on any number of ranks. The step lies
// on the device, so that one graph serves every step.
//
// Blocks and grid of one dimension, any number of threads, no shared memory.

#include "common.cuh"
#include "nn/philox.cuh"

// A step of training begins. One thread.
extern "C" __global__ void count_step(int *step)
{
    wait_for_previous_kernel();
    *step += 1;
}

// B = A scale where the word of the element is `least` or more, else 0; `kept` says where, a byte an element: all
// that the way back needs. A, B and kept are `lines` x `length` elements without gaps; line i begins at element
// first + i units of the layer's outputs for the whole batch. A thread takes elements that share their words, four
// at most, of the `blocks` that a line may reach into.
extern "C" __global__ void dropout(int lines, int length, int blocks, offset first, offset units,
                                   unsigned seed_low, unsigned seed_high, int place, const int *step,
                                   unsigned least, real scale, const real *A, real *B, unsigned char *kept)
{
    wait_for_previous_kernel();
    const unsigned now = *step;
    const offset stride = (offset)gridDim.x * blockDim.x;
    for (offset i = blockIdx.x * (offset)blockDim.x + threadIdx.x; i < (offset)lines * blocks; i += stride) {
        const int line = i / blocks;
        const offset start = first + line * units, block = start / 4 + i % blocks;
        const Words words = philox({{(unsigned)block, (unsigned)(block >> 32), now, (unsigned)place}}, seed_low,
                                   seed_high);
        for (int j = 0; j < 4; j++) {
            const offset column = 4 * block + j - start;
            if (column < 0 || column >= length)
                continue;
            const offset at = (offset)line * length + column;
            const bool keep = words.of[j] >= least;
            B[at] = keep ? A[at] * scale : (real)0;
            kept[at] = keep;
        }
    }
}

// dA = dB scale where the element was kept, else 0.
extern "C" __global__ void dropout_backward(int size, real scale, const unsigned char *kept, const real *dB,
                                            real *dA)
{
    wait_for_previous_kernel();
    const offset step = (offset)gridDim.x * blockDim.x;
    for (offset i = blockIdx.x * (offset)blockDim.x + threadIdx.x; i < size; i += step)
        dA[i] = kept[i] ? dB[i] * scale : (real)0;
}
