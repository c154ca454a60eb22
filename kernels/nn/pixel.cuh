// A pixel, and the number of the network's input that it is. Needs PIXEL and NUMBER.
#pragma once

#include "bfloat16.cuh"

typedef unsigned char uint8;
typedef float float32;
typedef double float64;
typedef PIXEL pixel;

typedef NUMBER number;

// A pixel has no more bits than a bf16 number: the upper half of the float is all of it.
__device__ inline void convert(pixel p, real, bfloat16 &x) { x = __float_as_uint((float)p) >> 16; }
// A division and not a product with 1 / scale: it rounds as NumPy's does, so host and device agree to the
// bit.
__device__ inline void convert(pixel p, real scale, real &x) { x = (real)p / scale; }
