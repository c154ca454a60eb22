// A pixel as a number of the network's input: what the kernels of pixels.cu and augment.cu share.
#pragma once

#include "bfloat16.cuh"
#include "nn/pixel.cuh"

typedef NUMBER number;

// A pixel has no more bits than a bf16 number: the upper half of the float is all of it.
__device__ inline void convert(pixel p, real, bfloat16 &x) { x = __float_as_uint((float)p) >> 16; }
// A division and not a product with 1 / scale: it rounds as NumPy's does, so host and device agree to the
// bit.
__device__ inline void convert(pixel p, real scale, real &x) { x = (real)p / scale; }

const int WIDTH = sizeof(number) == 2 ? 4 : 1;  // neighbours that a thread takes: 8 bytes of bf16
const int AT_ONCE = 8;  // times that; a thread asks for all before it waits for the first
