// The tensor memory accelerator (sm_90): one thread queues the copy of a whole tile from global to shared
// memory, and a barrier in shared memory counts the bytes that arrive.
//
// A tile is 64 columns of 2 bytes (or 32 of 4): a row is 128 bytes. Of a row's eight 16-byte chunks, chunk
// c lies at c xor (row % 8), so that the same chunk of eight neighbouring rows lies in eight different
// groups of banks: the layout that wgmma calls 128-byte swizzle. Tiles begin at multiples of 1024 bytes.
// A row may be 64 bytes too: of its four chunks, chunk c lies at c xor (row / 2 % 4), 64-byte swizzle.
#pragma once

#include "common.cuh"

// A barrier with phases: a phase ends when all expected arrivals and bytes are there. Phases are told apart
// by their parity, 0 for the first.
typedef unsigned long long Barrier;

// The place of a byte of a tile with rows of `row` bytes, given its address without the permutation.
__device__ inline size_t swizzled(size_t address, int row = 128) { return address ^ (address >> 3 & row - 16); }

#ifdef PYRT_EMULATED

// As EmulatedDriver.tensor_map packs it; see Driver.tensor_map.
struct alignas(64) TensorMap {
    const char *data;
    long long sizes[4], strides[3];
    int box[4], element;
};

// Arrivals that each phase waits for and that are still missing; the bytes that are expected, less those
// that came.
struct EmulatedBarrier {
    unsigned char expected, missing;
    unsigned short phase;
    int bytes;
};

__device__ inline void change(Barrier *barrier, int arrivals, int bytes)
{
    emulated_fence();  // what this thread did so far is released
    Barrier before = emulated::load_acquire(barrier), seen;
    do {
        seen = before;
        EmulatedBarrier state;
        memcpy(&state, &seen, sizeof state);
        state.missing -= arrivals;
        state.bytes += bytes;
        if (state.missing == 0 && state.bytes == 0) {
            state.missing = state.expected;
            state.phase++;
        }
        Barrier after;
        memcpy(&after, &state, sizeof after);
        before = atomicCAS_block(barrier, seen, after);
    } while (before != seen);
}

__device__ inline void init_barrier(Barrier *barrier, int arrivals)
{
    const EmulatedBarrier state = {(unsigned char)arrivals, (unsigned char)arrivals, 0, 0};
    memcpy(barrier, &state, sizeof state);
}
__device__ inline void fence_barrier_init() {}
__device__ inline void arrive(Barrier *barrier) { change(barrier, 1, 0); }
__device__ inline void arrive_and_expect(Barrier *barrier, int bytes) { change(barrier, 1, bytes); }
__device__ inline void wait(Barrier *barrier, int parity)
{
    EmulatedBarrier state;
    do {
        const Barrier now = emulated::load_acquire(barrier);
        memcpy(&state, &now, sizeof state);
    } while ((state.phase & 1) == parity);
}

__device__ inline void prefetch_map(const TensorMap *) {}

// The copy is there at once.
__device__ inline void copy_box(void *tile, const TensorMap *map, int x, int y, int z, Barrier *barrier)
{
    const int *box = map->box, width = map->element, count = box[0] * box[1] * box[2] * box[3];
    for (int i = 0; i < count; i++) {
        const long long at[] = {x + i % box[0], y + i / box[0] % box[1], z + i / (box[0] * box[1]) % box[2],
                                i / (box[0] * box[1] * box[2])};
        const char *source = map->data + at[0] * width;
        bool inside = at[0] >= 0 && at[0] < map->sizes[0];
        for (int d = 1; d < 4; d++) {
            source += at[d] * map->strides[d - 1];
            inside &= at[d] >= 0 && at[d] < map->sizes[d];
        }
        char *target = (char *)swizzled((size_t)tile + i * width, box[0] * width);
        for (int byte = 0; byte < width; byte++)
            target[byte] = inside ? source[byte] : 0;
    }
    change(barrier, 0, -count * width);
}

// As EmulatedDriver.window_map packs it; see Driver.window_map.
struct alignas(64) WindowMap {
    const char *data;
    long long sizes[4], strides[3];
    int first[2], last[2], step, channels, pixels, element;
};

__device__ inline void prefetch_map(const WindowMap *) {}

__device__ inline void copy_windows(void *tile, const WindowMap *map, int channel, int x, int y, int n,
                                    int place_x, int place_y, Barrier *barrier)
{
    const int width = map->element;
    for (int pixel = 0; pixel < map->pixels; pixel++) {
        const long long at[] = {0, x + place_x, y + place_y, n};
        bool inside = true;
        for (int d = 1; d < 4; d++)
            inside &= at[d] >= 0 && at[d] < map->sizes[d];
        for (int i = 0; i < map->channels; i++) {
            const char *source = map->data + (offset)(channel + i) * width;
            for (int d = 1; d < 4; d++)
                source += at[d] * map->strides[d - 1];
            char *target = (char *)swizzled((size_t)tile + (pixel * map->channels + i) * width);
            for (int byte = 0; byte < width; byte++)
                target[byte] = inside && channel + i < map->sizes[0] ? source[byte] : 0;
        }
        x += map->step;
        if (x > map->sizes[1] - 1 + map->last[0])
            x = map->first[0], y += map->step;
        if (y > map->sizes[2] - 1 + map->last[1])
            y = map->first[1], n++;
    }
    change(barrier, 0, -map->pixels * map->channels * width);
}

#else

// What cuTensorMapEncodeTiled makes.
struct alignas(64) TensorMap {
    char opaque[128];
};

__device__ inline unsigned shared_address(const void *pointer) { return __cvta_generic_to_shared(pointer); }

// By one thread, before fence_barrier_init and a barrier of the block.
__device__ inline void init_barrier(Barrier *barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
                 : "memory");
}

__device__ inline void fence_barrier_init()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ inline void arrive(Barrier *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Arrives, and makes the phase wait for so many bytes too.
__device__ inline void arrive_and_expect(Barrier *barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(bytes) : "memory");
}

// Waits until the phase of this parity has ended.
__device__ inline void wait(Barrier *barrier, int parity)
{
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "AGAIN_%=: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra AGAIN_%=;\n"
        "}\n" ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}

// The map itself lies in global memory; it is only read.
__device__ inline void prefetch_map(const TensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Starts the copy of the map's box from (x, y, z, 0) on; what lies outside is zero. Its bytes count at the
// barrier when they are there.
__device__ inline void copy_box(void *tile, const TensorMap *map, int x, int y, int z, Barrier *barrier)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(shared_address(tile)), "l"(map), "r"(x), "r"(y),
                 "r"(z), "r"(0), "r"(shared_address(barrier)) : "memory");
}

// cuTensorMapEncodeIm2col makes it.
struct alignas(64) WindowMap {
    char opaque[128];
};

__device__ inline void prefetch_map(const WindowMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Starts the copy of the map's number of pixels and of channels, from `channel` on: what windows see at place
// (place_x, place_y) in them, from the window of image n that begins at (x, y), in the order of windows, and of
// images. What lies outside is zero.
__device__ inline void copy_windows(void *tile, const WindowMap *map, int channel, int x, int y, int n,
                                    int place_x, int place_y, Barrier *barrier)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8};" ::"r"(shared_address(tile)), "l"(map),
                 "r"(channel), "r"(x), "r"(y), "r"(n), "r"(shared_address(barrier)), "h"((short)place_x),
                 "h"((short)place_y) : "memory");
}

#endif
