// A pixel as a number of the network's input: what the kernels of pixels.cu and augment.cu share.
#pragma once

#include "nn/pixel.cuh"

const int WIDTH = sizeof(number) == 2 ? 4 : 1;  // neighbours that a thread takes: 8 bytes of bf16
const int AT_ONCE = 8;  // times that; a thread asks for all before it waits for the first
