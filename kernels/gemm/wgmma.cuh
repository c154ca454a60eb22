// Products of tiles in shared memory by a warpgroup's tensor cores (wgmma, sm_90a).
//
// A warpgroup is 128 threads from a multiple of 128 on. Its 64 x N product lies in the registers of all:
// element i of a thread's N / 2 is that of product_row(i), product_column(i). A product is queued; between
// begin_products and wait_for_products nobody touches the registers, and nobody writes the tiles.
#pragma once

__device__ inline int product_row(int i)
{
    return threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + i / 2 % 2 * 8;
}

__device__ inline int product_column(int i) { return i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2; }

#ifdef PYRT_EMULATED

template <int COUNT>
__device__ inline void begin_products(float (&)[COUNT])
{
}
__device__ inline void end_products() {}
// The products were there at once, but of this thread: the lanes of a warp go on together.
template <int PENDING>
__device__ inline void wait_for_products()
{
    __syncwarp();
}
template <int PENDING, int COUNT>
__device__ inline void wait_for_products(float (&)[COUNT])
{
    wait_for_products<PENDING>();
}

template <int COUNT>
__device__ inline void give_registers()
{
}
template <int COUNT>
__device__ inline void take_registers()
{
}

// An element of 64 or more lines by WIDTH bytes along k: of tiles with a row for each line, or (TRANSPOSED) for
// each k.
template <bool TRANSPOSED, int WIDTH>
__device__ inline float tile_element(const bfloat16 *tile, int line, int k)
{
    const int row = TRANSPOSED ? line / 64 * (WIDTH / 2) + k : line, column = TRANSPOSED ? line % 64 : k;
    const int row_bytes = TRANSPOSED ? 128 : WIDTH;
    return to_float(*(const bfloat16 *)swizzled((size_t)tile + row * row_bytes + column * 2, row_bytes));
}

// Stands for its lines.
struct Lines {
    const bfloat16 *tile;
};

__device__ inline void read_lines(Lines &a, const void *tile) { a.tile = (const bfloat16 *)tile; }

// The same of float32 numbers, of which tensor cores see the upper 19 bits.
template <bool TRANSPOSED, int WIDTH>
__device__ inline float tile_element(const float *tile, int line, int k)
{
    const size_t place = swizzled((size_t)tile + line * WIDTH + k * sizeof(float), WIDTH);
    return __uint_as_float(__float_as_uint(*(const float *)place) & 0xffffe000);
}

template <int N, bool TRANSPOSED_A, bool TRANSPOSED_B, int WIDTH = 128, typename T>
__device__ inline void multiply_tile(float (&d)[N / 2], const T *a, const T *b, bool accumulate)
{
    const int DEPTH = WIDTH / sizeof(T);
    for (int i = 0; i < N / 2; i++) {
        const int m = product_row(i), n = product_column(i);
        float sum = accumulate ? d[i] : 0;
        for (int k = 0; k < DEPTH; k++)
            sum += tile_element<TRANSPOSED_A, WIDTH>(a, m, k) * tile_element<TRANSPOSED_B, WIDTH>(b, n, k);
        d[i] = sum;
    }
}

template <int N, bool TRANSPOSED_B>
__device__ inline void multiply_tile(float (&d)[N / 2], const Lines &a, const void *b, bool accumulate)
{
    multiply_tile<N, false, TRANSPOSED_B>(d, a.tile, (const bfloat16 *)b, accumulate);
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

// Waits until at most PENDING groups are still on their way; d is complete then.
template <int PENDING>
__device__ inline void wait_for_products()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
template <int PENDING, int COUNT>
__device__ inline void wait_for_products(float (&d)[COUNT])
{
    wait_for_products<PENDING>();
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

// Describes to wgmma a tile of 16-bit numbers, WIDTH bytes along k: address, distance of the next 64 lines where a
// tile is transposed, distance of the next 8 rows, in units of 16 bytes; swizzle of 128 bytes, or of 64.
template <bool TRANSPOSED, int WIDTH>
__device__ inline unsigned long long describe(const void *tile)
{
    const unsigned long long address = __cvta_generic_to_shared(tile) >> 4, row = TRANSPOSED ? 128 : WIDTH;
    const unsigned long long next_lines = 64 * WIDTH >> 4, next_rows = 8 * row >> 4, swizzle = row == 128 ? 1 : 2;
    return address | next_lines << 16 | next_rows << 32 | swizzle << 62;
}

// The instruction for each width of d and kind of number: operands are d's registers, the two tiles, whether
// to add to d, and, of bf16, whether tiles are transposed.
#define R4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define R32(i) R4(i), R4(i + 4), R4(i + 8), R4(i + 12), R4(i + 16), R4(i + 20), R4(i + 24), R4(i + 28)
#define D32                                                                                                \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                               \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define D64                                                                                                \
    D32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "               \
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define D128                                                                                               \
    D64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "               \
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "                 \
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "     \
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

template <bool TRANSPOSED_A, bool TRANSPOSED_B>
__device__ inline void wgmma(float (&d)[32], const bfloat16 *, unsigned long long a, unsigned long long b,
                             bool accumulate)
{
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0;"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" D32
                 "}, %32, %33, p, 1, 1, %35, %36; }"
                 : R32(0)
                 : "l"(a), "l"(b), "r"((int)accumulate), "n"((int)TRANSPOSED_A), "n"((int)TRANSPOSED_B));
}

template <bool TRANSPOSED_A, bool TRANSPOSED_B>
__device__ inline void wgmma(float (&d)[64], const bfloat16 *, unsigned long long a, unsigned long long b,
                             bool accumulate)
{
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0;"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" D64
                 "}, %64, %65, p, 1, 1, %67, %68; }"
                 : R32(0), R32(32)
                 : "l"(a), "l"(b), "r"((int)accumulate), "n"((int)TRANSPOSED_A), "n"((int)TRANSPOSED_B));
}

template <bool TRANSPOSED_A, bool TRANSPOSED_B>
__device__ inline void wgmma(float (&d)[128], const bfloat16 *, unsigned long long a, unsigned long long b,
                             bool accumulate)
{
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %130, 0;"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" D128
                 "}, %128, %129, p, 1, 1, %131, %132; }"
                 : R32(0), R32(32), R32(64), R32(96)
                 : "l"(a), "l"(b), "r"((int)accumulate), "n"((int)TRANSPOSED_A), "n"((int)TRANSPOSED_B));
}

template <bool TRANSPOSED_A, bool TRANSPOSED_B>
__device__ inline void wgmma(float (&d)[32], const float *, unsigned long long a, unsigned long long b,
                             bool accumulate)
{
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0;"
                 "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 {" D32 "}, %32, %33, p, 1, 1; }"
                 : R32(0)
                 : "l"(a), "l"(b), "r"((int)accumulate));
}

template <bool TRANSPOSED_A, bool TRANSPOSED_B>
__device__ inline void wgmma(float (&d)[64], const float *, unsigned long long a, unsigned long long b,
                             bool accumulate)
{
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0;"
                 "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 {" D64 "}, %64, %65, p, 1, 1; }"
                 : R32(0), R32(32)
                 : "l"(a), "l"(b), "r"((int)accumulate));
}

template <bool TRANSPOSED_A, bool TRANSPOSED_B>
__device__ inline void wgmma(float (&d)[128], const float *, unsigned long long a, unsigned long long b,
                             bool accumulate)
{
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %130, 0;"
                 "wgmma.mma_async.sync.aligned.m64n256k8.f32.tf32.tf32 {" D128 "}, %128, %129, p, 1, 1; }"
                 : R32(0), R32(32), R32(64), R32(96)
                 : "l"(a), "l"(b), "r"((int)accumulate));
}

// With a's lines in registers.
template <bool TRANSPOSED_B>
__device__ inline void wgmma(float (&d)[32], const unsigned (&a)[4], unsigned long long b, bool accumulate)
{
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0;"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" D32
                 "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38; }"
                 : R32(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)accumulate),
                   "n"((int)TRANSPOSED_B));
}

#undef D128
#undef D64
#undef D32
#undef R32
#undef R4

// Queues d (+)= a b': 64 lines of a by N lines of b, WIDTH bytes along k. A tile has a row for each line, or,
// where it is TRANSPOSED, which of bf16 it may be, for each k.
template <int N, bool TRANSPOSED_A, bool TRANSPOSED_B, int WIDTH = 128, typename T>
__device__ inline void multiply_tile(float (&d)[N / 2], const T *a, const T *b, bool accumulate)
{
    const unsigned long long whole_a = describe<TRANSPOSED_A, WIDTH>(a);
    const unsigned long long whole_b = describe<TRANSPOSED_B, WIDTH>(b);
    const int step_a = (TRANSPOSED_A ? 16 * 128 : 32) >> 4;  // of an instruction: 32 bytes along k
    const int step_b = (TRANSPOSED_B ? 16 * 128 : 32) >> 4;
#pragma unroll
    for (int step = 0; step < WIDTH / 32; step++)
        wgmma<TRANSPOSED_A, TRANSPOSED_B>(d, a, whole_a + step * step_a, whole_b + step * step_b,
                                          step > 0 || accumulate);
}

// This thread's part of 64 lines of bf16, 64 along k: tensor cores that multiply them several times need not read
// shared memory for them, which is what they wait for where d is 64 wide.
struct Lines {
    unsigned steps[4][4];
};

__device__ inline void read_lines(Lines &a, const void *tile)
{
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16;
#pragma unroll
    for (int step = 0; step < 4; step++) {
        const size_t place = swizzled(__cvta_generic_to_shared(tile) + row * 128 + step * 32 + lane / 16 * 16);
        unsigned (&r)[4] = a.steps[step];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((unsigned)place) : "memory");
    }
}

// As above; a's lines stay as they are until the product is there.
template <int N, bool TRANSPOSED_B>
__device__ inline void multiply_tile(float (&d)[N / 2], const Lines &a, const void *b, bool accumulate)
{
    const unsigned long long whole_b = describe<TRANSPOSED_B, 128>(b);
    const int step_b = (TRANSPOSED_B ? 16 * 128 : 16 * 2) >> 4;
#pragma unroll
    for (int step = 0; step < 4; step++)
        wgmma<TRANSPOSED_B>(d, a.steps[step], whole_b + step * step_b, step > 0 || accumulate);
}

#endif
