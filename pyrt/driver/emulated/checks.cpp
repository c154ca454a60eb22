// The checks of --sanitize: what g++ -fsanitize=thread,alignment reports of a kernel, judged here.
//
// The compiler puts a call of ours (__tsan_read4 and its like) in front of every load and store. Each 4 bytes
// of the device's memory have a Granule that says which of them may be accessed, which have been written,
// and who accessed them last. Two threads race where they touch the same bytes, one of them writing, and
// nothing has put one access after the other: time is a counter that moves on whenever a barrier opens, lanes
// of a warp meet, or a fence is passed, so
//
// - an access before the block's barrier last opened is past for all of the block,
// - one before this thread last met its warp is past for it, if the other is of that warp,
// - one of another block is past if a fence was passed between it and the last time that this block read
//   something atomically (volatile loads count): the one has released, the other acquired. Who released what
//   to whom is not followed, so that a fence of a third block may hide a race.

#include <dlfcn.h>
#include <stdarg.h>
#include <sys/mman.h>

#include <algorithm>

#include "runtime.h"

namespace emulated {
namespace checks {

bool enabled = false;

static const int BYTES = 4;  // of memory that share a granule

// An access: its time, the thread's number among all threads, which of the 4 bytes, and whether it was atomic.
struct Access {
    uint32_t time;
    uint32_t thread : 27, bytes : 4, atomic : 1;
};

struct Granule {
    Access write, read;
    Access read_too;  // by another thread than `read`, so that one of the two is not the writer
    uint32_t writer;  // where in the kernel's library the code is that wrote
    uint8_t permitted, written, freed;  // a bit for each byte
};

static_assert(sizeof(Granule) == 32, "a granule is half a line of the cache");

static Granule *granules;
static std::atomic<uint32_t> time_now{1};
static std::atomic<uint32_t> threads_begun{0};

static Granule *granule_of(const volatile void *address)
{
    return granules + (static_cast<const volatile char *>(address) - region) / BYTES;
}

static bool is_device(const volatile void *address)
{
    return size_t(static_cast<const volatile char *>(address) - region) < REGION;
}

// Calls visit(granule, bytes) for each granule of a stretch; `bytes` are those of the granule that belong to it.
template <class Visit>
static inline void each_granule(const volatile void *address, size_t size, Visit visit)
{
    Granule *granule = granule_of(address);
    unsigned first = uintptr_t(address) % BYTES;
    for (size_t left = size; left > 0; granule++, first = 0) {
        const unsigned count = std::min<size_t>(left, BYTES - first);
        visit(*granule, ((1u << count) - 1) << first);
        left -= count;
    }
}

void permit(const void *address, size_t size, bool written)
{
    if (!is_device(address))
        return;
    each_granule(address, size, [=](Granule &granule, unsigned bytes) {
        granule.permitted |= bytes;
        granule.freed &= ~bytes;
        granule.written = written ? granule.written | bytes : granule.written & ~bytes;
    });
}

void forbid(const void *address, size_t size, bool freed)
{
    each_granule(address, size, [=](Granule &granule, unsigned bytes) {
        granule = {};
        granule.freed = freed ? bytes : 0;
    });
}

bool permitted(const void *address, size_t size)
{
    bool all = true;
    if (is_device(address))
        each_granule(address, size, [&](const Granule &granule, unsigned bytes) {
            all &= (granule.permitted & bytes) == bytes;
        });
    return all;
}

// ---------------------------------------------------------------------------------------------------------
// Time
// ---------------------------------------------------------------------------------------------------------

void launch_begins(Launch &launch)
{
    const size_t threads = size_t(launch.blocks) * launch.block.x * launch.block.y * launch.block.z;
    launch.first_thread = threads_begun.fetch_add(threads);
    launch.begun = ++time_now;
}

void block_begins(Block &block, unsigned number)
{
    block.first_thread = block.launch.first_thread + number * block.threads.size();
    block.opened = block.acquired = block.launch.begun;
    forbid(block.shared.start, SharedMemory::BYTES, false);
    permit(block.shared.start, block.launch.dynamic_shared, false);
}

void barrier_opens(Block &block) { block.opened = ++time_now; }

void lanes_meet(Block &block, int warp, unsigned lanes)
{
    const uint32_t now = ++time_now;
    for (int lane = 0; lane < WARP; lane++)
        if (lanes >> lane & 1)
            block.threads[warp * WARP + lane].met = now;
}

void fence() { ++time_now; }

// ---------------------------------------------------------------------------------------------------------
// Accesses
// ---------------------------------------------------------------------------------------------------------

enum class Kind { read, write, atomic };

static const char *verb(Kind kind)
{
    return kind == Kind::read ? "reads" : kind == Kind::write ? "writes" : "changes atomically";
}

static const unsigned THREADS = 1u << 27;  // numbers of threads, after which they begin again

// Whether an access of the past may as well have come after the running thread's.
static bool is_unordered(const Access &access, unsigned bytes, const Thread &self, uint32_t number)
{
    const Block &block = *self.block;
    if (access.time < block.launch.begun || !(access.bytes & bytes) || access.thread == number)
        return false;
    const uint32_t other = (access.thread - block.first_thread) % THREADS;
    if (other >= block.threads.size())
        return access.time >= block.acquired;
    if (access.time < block.opened)
        return false;
    return int(other / WARP) != self.number / WARP || access.time >= self.met;
}

static uint64_t offset(const Launch &launch, const void *code)
{
    return static_cast<const char *>(code) - launch.library - 1;  // within the call, not after it
}

[[noreturn]] static void stop_for_race(const void *code, Kind kind, const Access &other, bool other_wrote,
                                       uint32_t writer)
{
    const Thread &self = *running;
    Launch &launch = self.block->launch;
    std::unique_lock<std::mutex> lock(launch.mutex);
    if (!launch.failed) {
        Finding &finding = *launch.finding;
        const unsigned threads = launch.block.x * launch.block.y * launch.block.z;
        const uint32_t number = (other.thread - launch.first_thread) % THREADS;
        const bool ours = number / threads < launch.blocks;
        snprintf(finding.other_did, sizeof finding.other_did, "%s it, with nothing to order the two%s",
                 other_wrote ? "wrote" : "read", ours ? "" : ": in another kernel's");
        const Place place = place_of(launch, ours ? number / threads : 0, ours ? number % threads : 0);
        finding.other = {other_wrote && ours ? writer : 0,
                         {place.block.x, place.block.y, place.block.z},
                         {place.thread.x, place.thread.y, place.thread.z}};
    }
    lock.unlock();
    char what[64];
    snprintf(what, sizeof what, "%s memory that another thread uses", verb(kind));
    stop(code, what);
}

static void require_permitted(const Granule &granule, unsigned bytes, size_t size, Kind kind, const void *code)
{
    if (!(bytes & ~granule.permitted))
        return;
    char what[96];
    snprintf(what, sizeof what, "%s %zu bytes %s", verb(kind), size,
             granule.freed & bytes ? "of memory that has been freed" : "out of bounds");
    stop(code, what);
}

// Of a thread that goes through memory byte by byte, all bytes are remembered.
static Access merged(Access access, const Access &before)
{
    if (before.thread == access.thread && before.time == access.time && before.atomic == access.atomic)
        access.bytes |= before.bytes;
    return access;
}

static inline void check_granule(Granule &granule, unsigned bytes, size_t size, Kind kind, const void *code)
{
    const Thread &self = *running;
    const Block &block = *self.block;
    const uint32_t number = (block.first_thread + self.number) % THREADS;
    const bool atomic = kind == Kind::atomic;
    require_permitted(granule, bytes, size, kind, code);
    if (kind != Kind::write && (bytes & ~granule.written))
        stop(code, "reads memory that nobody has written");
    if (is_unordered(granule.write, bytes, self, number) && !(atomic && granule.write.atomic))
        stop_for_race(code, kind, granule.write, true, granule.writer);
    const Access access = {time_now.load(std::memory_order_relaxed), number, bytes, atomic};
    if (kind == Kind::read) {
        const bool keep = is_unordered(granule.read, granule.read.bytes, self, number);
        (keep ? granule.read_too : granule.read) = merged(access, keep ? granule.read_too : granule.read);
        return;
    }
    for (const Access &read : {granule.read, granule.read_too})
        if (is_unordered(read, bytes, self, number))
            stop_for_race(code, kind, read, false, 0);
    granule.write = merged(access, granule.write);
    granule.writer = offset(block.launch, code);
    granule.written |= bytes;
}

// Memory that only this thread has, and the constants of the kernel's library.
static bool is_private(const volatile void *address)
{
    const char *start = running->fibre->stack;
    if (size_t(static_cast<const volatile char *>(address) - start) < Fibre::STACK)
        return true;
    Dl_info info;
    return dladdr(const_cast<void *>(address), &info) && info.dli_fbase == running->block->launch.library;
}

static inline void access(const volatile void *address, size_t size, Kind kind, const void *code)
{
    if (is_device(address)) {
        each_granule(address, size, [=](Granule &granule, unsigned bytes) {
            check_granule(granule, bytes, size, kind, code);
        });
    } else if (!is_private(address)) {
        char what[96];
        snprintf(what, sizeof what, "%s %zu bytes at %p, which is no memory of the device", verb(kind), size,
                 const_cast<const void *>(address));
        stop(code, what);
    }
}

void atomic_access(const volatile void *address, int size, const void *code)
{
    access(address, size, Kind::atomic, code);
    running->block->acquired = time_now;
}

}  // namespace checks
}  // namespace emulated

// ---------------------------------------------------------------------------------------------------------
// What the compiler calls
// ---------------------------------------------------------------------------------------------------------

using namespace emulated;
using checks::Kind;

#define CODE __builtin_return_address(0)

#define HOOKS(size)                                                                                         \
    void __tsan_read##size(void *address) { checks::access(address, size, Kind::read, CODE); }              \
    void __tsan_write##size(void *address) { checks::access(address, size, Kind::write, CODE); }            \
    void __tsan_unaligned_read##size(void *address) { checks::access(address, size, Kind::read, CODE); }    \
    void __tsan_unaligned_write##size(void *address) { checks::access(address, size, Kind::write, CODE); }  \
    void __tsan_volatile_read##size(void *address)                                                          \
    {                                                                                                       \
        maybe_pause();                                                                                      \
        checks::atomic_access(address, size, CODE);                                                         \
    }                                                                                                       \
    void __tsan_volatile_write##size(void *address) { checks::atomic_access(address, size, CODE); }

extern "C" {

HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)

void __tsan_init() {}
void __tsan_read_range(void *address, size_t size) { checks::access(address, size, Kind::read, CODE); }
void __tsan_write_range(void *address, size_t size) { checks::access(address, size, Kind::write, CODE); }

// What the linker puts in the place of memcpy and its like.
void *__wrap_memcpy(void *target, const void *source, size_t size)
{
    checks::access(source, size, Kind::read, CODE);
    checks::access(target, size, Kind::write, CODE);
    return memcpy(target, source, size);
}

void *__wrap_memmove(void *target, const void *source, size_t size)
{
    checks::access(source, size, Kind::read, CODE);
    checks::access(target, size, Kind::write, CODE);
    return memmove(target, source, size);
}

void *__wrap_memset(void *target, int byte, size_t size)
{
    checks::access(target, size, Kind::write, CODE);
    return memset(target, byte, size);
}

// -fsanitize=alignment: called where an address is not aligned for its type.
void __ubsan_handle_type_mismatch_v1(const void *, const void *)
{
    stop(CODE, "accesses memory at an address that is not aligned for its type");
}

// Turns the checks on, for good: before anything is allocated. 0 where there is no room for them.
int emulated_enable_checks()
{
    const size_t size = REGION / checks::BYTES * sizeof(checks::Granule);
    void *memory =
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    checks::enabled = memory != MAP_FAILED;
    checks::granules = static_cast<checks::Granule *>(memory);
    return checks::enabled;
}

// Whether all these bytes belong to live allocations, or are none of the device's.
int emulated_permitted(const void *address, size_t size)
{
    return !checks::enabled || checks::permitted(address, size);
}
}
