// Part of fused_step.cu: pixels of a batch's rows into shared memory, as they are: what is summed with them is scaled.
#pragma once

#include "nn/pixel.cuh"

// The batch's row i is images[order[i]].
struct Batch {
    const pixel *images;
    const int *order;

    __device__ const pixel *image(const Step &step, int number) const
    {
        return images + (offset)number * step.inputs;
    }
};

struct alignas(4 * sizeof(pixel)) FourPixels {
    pixel of[4];
};

// COUNT times four pixels that lie 4 `step` apart, all asked for before the first is used; 0 beyond `inside`.
template <int COUNT>
struct HeldPixels {
    FourPixels four[COUNT];
    int inside;

    __device__ void ask(const pixel *image, int there)
    {
        inside = there;
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (4 * i < inside)
                four[i] = *(const FourPixels *)(image + 4 * i);
    }

    __device__ void put(int count, real *x) const
    {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            if (4 * i >= count)
                return;
            Four numbers = {};
            if (4 * i < inside)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    numbers.of[j] = four[i].of[j];
            *(Four *)(x + 4 * i) = numbers;
        }
    }
};

// The same, of `count` pixels one by one, for images whose rows are not aligned.
__device__ inline void put_pixels(const pixel *image, int inside, int count, int first, int by, real *x)
{
#pragma unroll 1
    for (int i = first; i < count; i += by)
        x[i] = i < inside ? image[i] : 0;
}
