// CUDA's half and half2 for a kernel that is compiled for the CPU: the compiler's own 16-bit numbers.
//
// As on a GPU each operation rounds its result, but a compiler may keep float32 within an expression.
#pragma once

#ifndef __FLT16_MAX__
#error "half needs a compiler with _Float16: g++ 12 or clang++ 15, or newer"
#endif

typedef _Float16 half;
typedef half __half;

struct alignas(4) half2 { half x, y; };
typedef half2 __half2;

__forceinline__ half __float2half(float x) { return half(x); }
__forceinline__ half __float2half_rn(float x) { return half(x); }
__forceinline__ half __double2half(double x) { return half(x); }
__forceinline__ half __int2half_rn(int x) { return half(x); }
__forceinline__ float __half2float(half x) { return x; }
__forceinline__ int __half2int_rn(half x) { return int(rintf(x)); }

__forceinline__ half __hadd(half a, half b) { return a + b; }
__forceinline__ half __hsub(half a, half b) { return a - b; }
__forceinline__ half __hmul(half a, half b) { return a * b; }
__forceinline__ half __hdiv(half a, half b) { return a / b; }
__forceinline__ half __hneg(half a) { return -a; }
__forceinline__ half __habs(half a) { return a < half(0) ? -a : a; }
__forceinline__ half __hfma(half a, half b, half c) { return half(fma(double(a), double(b), double(c))); }
__forceinline__ half __hmax(half a, half b) { return half(fmaxf(a, b)); }
__forceinline__ half __hmin(half a, half b) { return half(fminf(a, b)); }
__forceinline__ bool __heq(half a, half b) { return a == b; }
__forceinline__ bool __hlt(half a, half b) { return a < b; }
__forceinline__ bool __hgt(half a, half b) { return a > b; }
__forceinline__ half hexp(half x) { return half(expf(x)); }
__forceinline__ half hlog(half x) { return half(logf(x)); }
__forceinline__ half hsqrt(half x) { return half(sqrtf(x)); }

__forceinline__ half2 make_half2(half x, half y) { return {x, y}; }
__forceinline__ half2 __halves2half2(half x, half y) { return {x, y}; }
__forceinline__ half2 __half2half2(half x) { return {x, x}; }
__forceinline__ half2 __floats2half2_rn(float x, float y) { return {half(x), half(y)}; }
__forceinline__ half2 __float22half2_rn(float2 a) { return {half(a.x), half(a.y)}; }
__forceinline__ float2 __half22float2(half2 a) { return {float(a.x), float(a.y)}; }
__forceinline__ half __low2half(half2 a) { return a.x; }
__forceinline__ half __high2half(half2 a) { return a.y; }
__forceinline__ float __low2float(half2 a) { return a.x; }
__forceinline__ float __high2float(half2 a) { return a.y; }
__forceinline__ half2 __hadd2(half2 a, half2 b) { return {half(a.x + b.x), half(a.y + b.y)}; }
__forceinline__ half2 __hmul2(half2 a, half2 b) { return {half(a.x * b.x), half(a.y * b.y)}; }
__forceinline__ half2 __hfma2(half2 a, half2 b, half2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }
