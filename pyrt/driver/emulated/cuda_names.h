// CUDA's built-in names for a kernel that is compiled for the CPU.
//
// The compile step (compile.py) puts this header in front of a .cu file; what it declares and does not
// define is in the runtime (runtime.h). Kernels may ask `#ifdef PYRT_EMULATED` where they need a twin of
// inline PTX; such twins use what stands at the end, in the namespace `emulated`.
#pragma once

#define PYRT_EMULATED 1

#include <cstddef>
// Not C++17's special functions, as no CUDA has them: to read them took a third of a small kernel's compilation.
#undef _GLIBCXX_USE_STD_SPEC_FUNCS

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <utility>

// Code of ours that runs within a kernel and is not the kernel's own: the checks don't look at it.
#define EMULATED_UNCHECKED __attribute__((no_sanitize("thread", "alignment")))

// ---------------------------------------------------------------------------------------------------------
// Qualifiers. __shared__ is left: the compile step rewrites such declarations to emulated::shared_variable.
// ---------------------------------------------------------------------------------------------------------

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)

// ---------------------------------------------------------------------------------------------------------
// Vector types
// ---------------------------------------------------------------------------------------------------------

#define EMULATED_VECTORS(name, element, alignment2, alignment4)                                             \
    struct alignas(alignment2) name##2 { element x, y; };                                                   \
    struct name##3 { element x, y, z; };                                                                    \
    struct alignas(alignment4) name##4 { element x, y, z, w; };                                             \
    inline name##2 make_##name##2(element x, element y) { return {x, y}; }                                  \
    inline name##3 make_##name##3(element x, element y, element z) { return {x, y, z}; }                    \
    inline name##4 make_##name##4(element x, element y, element z, element w) { return {x, y, z, w}; }

EMULATED_VECTORS(char, signed char, 2, 4)
EMULATED_VECTORS(uchar, unsigned char, 2, 4)
EMULATED_VECTORS(short, short, 4, 8)
EMULATED_VECTORS(ushort, unsigned short, 4, 8)
EMULATED_VECTORS(int, int, 8, 16)
EMULATED_VECTORS(uint, unsigned, 8, 16)
EMULATED_VECTORS(longlong, long long, 16, 16)
EMULATED_VECTORS(ulonglong, unsigned long long, 16, 16)
EMULATED_VECTORS(float, float, 8, 16)
EMULATED_VECTORS(double, double, 16, 16)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// ---------------------------------------------------------------------------------------------------------
// The running thread's place, and what the runtime does for it
// ---------------------------------------------------------------------------------------------------------

namespace emulated {

struct Place {
    uint3 thread, block;
    dim3 threads, blocks;
};

enum class Access { read, write, change };

// Of the thread that runs on this core; the runtime sets it at every switch.
extern __thread const Place *place;

// By value, and not seen by the checks: else each threadIdx.x would count as a read of memory.
EMULATED_UNCHECKED inline uint3 thread_index() { return place->thread; }
EMULATED_UNCHECKED inline uint3 block_index() { return place->block; }
EMULATED_UNCHECKED inline dim3 block_size() { return place->threads; }
EMULATED_UNCHECKED inline dim3 grid_size() { return place->blocks; }

EMULATED_UNCHECKED inline unsigned lane()
{
    const Place &p = *place;
    return ((p.thread.z * p.threads.y + p.thread.y) * p.threads.x + p.thread.x) % 32;
}

}  // namespace emulated

#define threadIdx (::emulated::thread_index())
#define blockIdx (::emulated::block_index())
#define blockDim (::emulated::block_size())
#define gridDim (::emulated::grid_size())
static const int warpSize = 32;

// clang++ makes one call of two that stand in different lines, so that a report has no line; g++ does not.
#ifdef __clang__
#define EMULATED_OWN_LINE __attribute__((nomerge))
#else
#define EMULATED_OWN_LINE
#endif

extern "C" {
// Waits for all threads of the block; how many gave a predicate that is not 0. `line` is the kernel's.
EMULATED_OWN_LINE int emulated_barrier(int predicate, int line);
// Waits for the lanes in mask; then emulated_value(lane) is what each of them gave.
EMULATED_OWN_LINE void emulated_meet(unsigned mask, uint64_t value);
uint64_t emulated_value(unsigned lane);
// An access to memory that others may wait for, by the kernel's code: lets them run now and then.
void emulated_atomic(const volatile void *address, int size, emulated::Access access, const void *code);
void emulated_fence();
// The thread waits for something that others do: lets them run.
void emulated_pause();
// This block's storage for the declaration that `key` stands for; and what the launch asked for.
void *emulated_shared(const void *key, size_t size, size_t alignment);
void *emulated_dynamic_shared();
long long emulated_nanoseconds();
}

// ---------------------------------------------------------------------------------------------------------
// Barriers and fences
// ---------------------------------------------------------------------------------------------------------

__forceinline__ void __syncthreads(int line = __builtin_LINE()) { emulated_barrier(0, line); }
__forceinline__ int __syncthreads_count(int predicate, int line = __builtin_LINE())
{
    return emulated_barrier(predicate != 0, line);
}
__forceinline__ int __syncthreads_or(int predicate, int line = __builtin_LINE())
{
    return emulated_barrier(predicate != 0, line) != 0;
}
__forceinline__ int __syncthreads_and(int predicate, int line = __builtin_LINE())
{
    return emulated_barrier(predicate == 0, line) == 0;
}

__forceinline__ void __threadfence_block() { emulated_fence(); }
__forceinline__ void __threadfence() { emulated_fence(); }
__forceinline__ void __threadfence_system() { emulated_fence(); }

// One nanosecond counts as one cycle.
__forceinline__ long long clock64() { return emulated_nanoseconds(); }
__forceinline__ void __nanosleep(unsigned) { emulated_pause(); }

// ---------------------------------------------------------------------------------------------------------
// Warps
// ---------------------------------------------------------------------------------------------------------

namespace emulated {

template <class T>
__forceinline__ T exchange(unsigned mask, T value, unsigned source)
{
    static_assert(sizeof(T) <= 8, "shuffles move up to 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(T));
    emulated_meet(mask, bits);
    bits = emulated_value(source);
    memcpy(&value, &bits, sizeof(T));
    return value;
}

}  // namespace emulated

__forceinline__ void __syncwarp(unsigned mask = 0xffffffff) { emulated_meet(mask, 0); }

template <class T>
__forceinline__ T __shfl_sync(unsigned mask, T value, int source, int width = 32)
{
    const unsigned first = emulated::lane() & ~(width - 1);
    return emulated::exchange(mask, value, first + (source & (width - 1)));
}

template <class T>
__forceinline__ T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32)
{
    const unsigned lane = emulated::lane(), first = lane & ~(width - 1);
    return emulated::exchange(mask, value, lane >= first + delta ? lane - delta : lane);
}

template <class T>
__forceinline__ T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32)
{
    const unsigned lane = emulated::lane(), end = (lane & ~(width - 1)) + width;
    return emulated::exchange(mask, value, lane + delta < end ? lane + delta : lane);
}

template <class T>
__forceinline__ T __shfl_xor_sync(unsigned mask, T value, int distance, int width = 32)
{
    const unsigned lane = emulated::lane(), end = (lane & ~(width - 1)) + width;
    const unsigned source = lane ^ distance;
    return emulated::exchange(mask, value, source < end ? source : lane);
}

__forceinline__ unsigned __ballot_sync(unsigned mask, int predicate)
{
    emulated_meet(mask, predicate != 0);
    unsigned bits = 0;
    for (unsigned lane = 0; lane < 32; lane++)
        if (mask >> lane & 1)
            bits |= unsigned(emulated_value(lane)) << lane;
    return bits;
}

__forceinline__ int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
__forceinline__ int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }

// ---------------------------------------------------------------------------------------------------------
// Atomics. Every scope is the whole machine here.
// ---------------------------------------------------------------------------------------------------------

namespace emulated {

// Replaces the value at `address` by change(value); the value before.
template <class T, class Change>
EMULATED_UNCHECKED __forceinline__ T replace(T *address, Change change)
{
    T before, after;
    __atomic_load(address, &before, __ATOMIC_RELAXED);
    do
        after = change(before);
    while (!__atomic_compare_exchange(address, &before, &after, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
    return before;
}

template <class T>
struct Same {
    using type = T;
};

}  // namespace emulated

// Not inlined, so that the caller's line is the return address that a report needs.
#define EMULATED_ATOMIC(name, after)                                                                        \
    template <class T>                                                                                      \
    EMULATED_UNCHECKED __attribute__((noinline)) T name(T *address, typename emulated::Same<T>::type value) \
    {                                                                                                       \
        emulated_atomic(address, sizeof(T), emulated::Access::change, __builtin_return_address(0));         \
        return emulated::replace(address, [value](T old) EMULATED_UNCHECKED { return T(after); });          \
    }
#define EMULATED_ATOMICS(name, after)                                                                       \
    EMULATED_ATOMIC(name, after)                                                                            \
    EMULATED_ATOMIC(name##_block, after)                                                                    \
    EMULATED_ATOMIC(name##_system, after)

EMULATED_ATOMICS(atomicAdd, old + value)
EMULATED_ATOMICS(atomicSub, old - value)
EMULATED_ATOMICS(atomicExch, value)
EMULATED_ATOMICS(atomicMin, old < value ? old : value)
EMULATED_ATOMICS(atomicMax, old > value ? old : value)
EMULATED_ATOMICS(atomicAnd, old & value)
EMULATED_ATOMICS(atomicOr, old | value)
EMULATED_ATOMICS(atomicXor, old ^ value)
EMULATED_ATOMICS(atomicInc, old >= value ? 0 : old + 1)
EMULATED_ATOMICS(atomicDec, old == 0 || old > value ? value : old - 1)

#define EMULATED_CAS(name)                                                                                  \
    template <class T>                                                                                      \
    EMULATED_UNCHECKED __attribute__((noinline)) T name(                                                    \
        T *address, typename emulated::Same<T>::type compare, typename emulated::Same<T>::type value)       \
    {                                                                                                       \
        emulated_atomic(address, sizeof(T), emulated::Access::change, __builtin_return_address(0));         \
        return emulated::replace(                                                                           \
            address, [=](T old) EMULATED_UNCHECKED { return old == compare ? value : old; });               \
    }

EMULATED_CAS(atomicCAS)
EMULATED_CAS(atomicCAS_block)
EMULATED_CAS(atomicCAS_system)

// ---------------------------------------------------------------------------------------------------------
// Loads and arithmetic. exp, fmax, tanh and their like, for float and double, are those of <math.h>.
// ---------------------------------------------------------------------------------------------------------

template <class T>
__forceinline__ T __ldg(const T *address)
{
    return *address;
}

template <class T>
__forceinline__ T min(T a, T b)
{
    return b < a ? b : a;
}
template <class T>
__forceinline__ T max(T a, T b)
{
    return a < b ? b : a;
}
__forceinline__ float rsqrt(float x) { return 1 / sqrt(x); }
__forceinline__ double rsqrt(double x) { return 1 / sqrt(x); }
__forceinline__ float rsqrtf(float x) { return 1 / sqrt(x); }
__forceinline__ float __expf(float x) { return exp(x); }
__forceinline__ float __logf(float x) { return log(x); }
__forceinline__ float __fdividef(float x, float y) { return x / y; }
__forceinline__ int __popc(unsigned x) { return __builtin_popcount(x); }
__forceinline__ int __ffs(int x) { return __builtin_ffs(x); }
__forceinline__ int __clz(int x) { return x ? __builtin_clz(x) : 32; }

__forceinline__ unsigned __float_as_uint(float x)
{
    unsigned bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
__forceinline__ float __uint_as_float(unsigned bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
__forceinline__ long long __double_as_longlong(double x)
{
    long long bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
__forceinline__ double __longlong_as_double(long long bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
__forceinline__ int __float_as_int(float x) { return __float_as_uint(x); }
__forceinline__ float __int_as_float(int bits) { return __uint_as_float(bits); }

// ---------------------------------------------------------------------------------------------------------
// For twins of inline PTX, and for what the compile step writes
// ---------------------------------------------------------------------------------------------------------

namespace emulated {

// ld.acquire.sys and st.release.sys. A loop that waits on load_acquire lets others run.
template <class T>
EMULATED_UNCHECKED __attribute__((noinline)) T load_acquire(const T *address)
{
    emulated_atomic(address, sizeof(T), Access::read, __builtin_return_address(0));
    return __atomic_load_n(address, __ATOMIC_ACQUIRE);
}

template <class T>
EMULATED_UNCHECKED __attribute__((noinline)) void store_release(T *address, T value)
{
    emulated_fence();
    emulated_atomic(address, sizeof(T), Access::write, __builtin_return_address(0));
    __atomic_store_n(address, value, __ATOMIC_RELEASE);
}

// `__shared__ T name;` becomes `auto &name = shared_variable<T>([] {});`: the type of each lambda is unlike
// any other, so the function has a key of its own for each declaration.
template <class T, size_t alignment = alignof(T), class Declaration>
EMULATED_UNCHECKED T &shared_variable(Declaration)
{
    static const char key = 0;
    return *static_cast<T *>(emulated_shared(&key, sizeof(T), alignment));
}

// Calls a kernel with its arguments, packed as a C structure of its parameters.
template <class... Parameters, size_t... index>
EMULATED_UNCHECKED __attribute__((noinline)) void call_with(
    void (*kernel)(Parameters...), const char *packed, std::index_sequence<index...>)
{
    constexpr size_t count = sizeof...(Parameters);
    constexpr size_t sizes[] = {sizeof(Parameters)..., 0}, alignments[] = {alignof(Parameters)..., 1};
    size_t offsets[count + 1] = {}, end = 0;
    for (size_t i = 0; i < count; i++) {
        offsets[i] = (end + alignments[i] - 1) / alignments[i] * alignments[i];
        end = offsets[i] + sizes[i];
    }
    kernel(*reinterpret_cast<const std::remove_const_t<Parameters> *>(packed + offsets[index])...);
}

template <class... Parameters>
EMULATED_UNCHECKED void call(void (*kernel)(Parameters...), const char *packed)
{
    call_with(kernel, packed, std::index_sequence_for<Parameters...>());
}

}  // namespace emulated
