// Memory in which a number that is not there yet looks like none that may come: so its arrival is the news.
#pragma once

#include "common.cuh"

// `missing` stands for a number that has not come: a NaN of all ones. A number with these bits is sent as another NaN.
__device__ inline bool is_missing(float x) { return __float_as_uint(x) == 0xffffffffu; }
__device__ inline bool is_missing(double x) { return __double_as_longlong(x) == -1; }
__device__ inline float missing(float) { return __uint_as_float(0xffffffffu); }
__device__ inline double missing(double) { return __longlong_as_double(-1); }

// The same number, but for one that looks like a missing one: another NaN.
__device__ inline real never_missing(real x) { return is_missing(x) ? (real)__uint_as_float(0x7fffffffu) : x; }
