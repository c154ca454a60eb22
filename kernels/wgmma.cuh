// Products of tiles in shared memory by a warpgroup's tensor cores (wgmma, sm_90a).
//
// A warpgroup is 128 threads from a multiple of 128 on. Its 64 x N product lies in the registers of all:
// element i of a thread's N / 2 is that of product_row(i), product_column(i). A product is queued; between
// begin_products and wait_for_products nobody touches the registers, and nobody writes the tiles.
#pragma once

__device__ inline int product_row(int i)
{
    return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i / 2 % 2 * 8;
}

__device__ inline int product_column(int i) { return i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2; }

#ifdef PYRT_EMULATED

template <int COUNT>
__device__ inline void begin_products(float (&)[COUNT])
{
}
__device__ inline void end_products() {}
// The products were there at once, but of this thread: the lanes of a warp go on together.
template <int PENDING, int COUNT>
__device__ inline void wait_for_products(float (&)[COUNT])
{
    __syncwarp();
}

template <int COUNT>
__device__ inline void give_registers()
{
}
template <int COUNT>
__device__ inline void take_registers()
{
}

// An element of 64 or more lines by 64 along k: of tiles with a row for each line, or (TRANSPOSED) for each
// k.
template <bool TRANSPOSED>
__device__ inline float tile_element(const bfloat16 *tile, int line, int k)
{
    const int row = TRANSPOSED ? line / 64 * 64 + k : line, column = TRANSPOSED ? line % 64 : k;
    return to_float(*(const bfloat16 *)swizzled((size_t)tile + row * 128 + column * sizeof(bfloat16)));
}

template <int N, bool TRANSPOSED_A, bool TRANSPOSED_B>
__device__ inline void multiply_tile(float (&d)[N / 2], const bfloat16 *a, const bfloat16 *b, bool accumulate)
{
    for (int i = 0; i < N / 2; i++) {
        const int m = product_row(i) % 64, n = product_column(i);
        float sum = accumulate ? d[i] : 0;
        for (int k = 0; k < 64; k++)
            sum += tile_element<TRANSPOSED_A>(a, m, k) * tile_element<TRANSPOSED_B>(b, n, k);
        d[i] = sum;
    }
}

#else

// The registers are ready for the tensor cores.
template <int COUNT>
__device__ inline void begin_products(float (&d)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        asm volatile("" : "+f"(d[i])::"memory");
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ inline void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most PENDING groups are still on their way.
template <int PENDING, int COUNT>
__device__ inline void wait_for_products(float (&d)[COUNT])
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

// The warpgroup leaves registers to others, or waits until it can have so many a thread.
template <int COUNT>
__device__ inline void give_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
__device__ inline void take_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// How wgmma finds a tile: address, distance of the next 64 lines where a tile is transposed, distance of
// the next 8 rows, in units of 16 bytes; 128-byte swizzle.
__device__ inline unsigned long long describe(const bfloat16 *tile)
{
    const unsigned long long address = __cvta_generic_to_shared(tile) >> 4;
    const unsigned long long next_lines = 64 * 128 >> 4, next_rows = 8 * 128 >> 4, swizzle = 1;
    return address | next_lines << 16 | next_rows << 32 | swizzle << 62;
}

#define R4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define R8(i) R4(i), R4(i + 4)

template <int TRANSPOSE_A_TILE, int TRANSPOSE_B_TILE>
__device__ inline void wgmma(float (&d)[32], unsigned long long a, unsigned long long b, bool accumulate)
{
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %34, 0;"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, p, 1, 1, %35, %36; }"
        : R8(0), R8(8), R8(16), R8(24)
        : "l"(a), "l"(b), "r"((int)accumulate), "n"(TRANSPOSE_A_TILE), "n"(TRANSPOSE_B_TILE));
}

template <int TRANSPOSE_A_TILE, int TRANSPOSE_B_TILE>
__device__ inline void wgmma(float (&d)[64], unsigned long long a, unsigned long long b, bool accumulate)
{
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %66, 0;"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, %64, %65, p, 1, 1, %67, %68; }"
        : R8(0), R8(8), R8(16), R8(24), R8(32), R8(40), R8(48), R8(56)
        : "l"(a), "l"(b), "r"((int)accumulate), "n"(TRANSPOSE_A_TILE), "n"(TRANSPOSE_B_TILE));
}

#undef R8
#undef R4

// Queues d (+)= a b': 64 lines of a by N lines of b, 64 along k. A tile has a row for each line, or, where
// it is TRANSPOSED, for each k.
template <int N, bool TRANSPOSED_A, bool TRANSPOSED_B>
__device__ inline void multiply_tile(float (&d)[N / 2], const bfloat16 *a, const bfloat16 *b, bool accumulate)
{
    const unsigned long long whole_a = describe(a), whole_b = describe(b);
    const int step_a = (TRANSPOSED_A ? 16 * 128 : 16 * 2) >> 4;  // of 16 along k
    const int step_b = (TRANSPOSED_B ? 16 * 128 : 16 * 2) >> 4;
#pragma unroll
    for (int step = 0; step < 4; step++)
        wgmma<TRANSPOSED_A, TRANSPOSED_B>(d, whole_a + step * step_a, whole_b + step * step_b,
                                          step > 0 || accumulate);
}

#endif
