// The checks of --sanitize: what the compiler's -fsanitize=thread,alignment reports of a kernel, judged here.
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
//   something atomically (volatile loads count), one of the same block if between it and the last time that
//   this thread, or a lane that it has met since, did: the one has released, the other acquired. Who released
//   what to whom is not followed, so that a fence of a third party may hide a race.

#include <dlfcn.h>
#include <stdarg.h>
#include <sys/mman.h>

#include <algorithm>

#include "runtime.h"

namespace emulated {
namespace checks {

bool enabled = false;

static const int BYTES = 4;  // of memory that share a granule

// When somebody accessed a granule, by its number among all threads; which of the bytes; whether atomically.
struct Record {
    uint32_t time;
    uint32_t thread : 27, bytes : 4, atomic : 1;
};

struct Granule {
    Record write, read;
    Record read_too;  // by another thread than `read`, so that one of the two is not the writer
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

// Calls visit(granule, bytes) for each granule of a stretch, with those of its bytes that belong to it.
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
    block.opened = block.acquired = block.launch.begun;  // what earlier launches did is past
    forbid(block.shared.start, SharedMemory::BYTES, false);
    permit(block.shared.start, block.launch.dynamic_shared, false);
}

void barrier_opens(Block &block) { block.opened = ++time_now; }

void lanes_meet(Block &block, int warp, unsigned lanes)
{
    const uint32_t now = ++time_now;
    Thread *first = &block.threads[warp * WARP];
    uint32_t acquired = 0;
    for (int lane = 0; lane < WARP; lane++)
        if (lanes >> lane & 1)
            acquired = std::max(acquired, first[lane].acquired);
    for (int lane = 0; lane < WARP; lane++)
        if (lanes >> lane & 1) {
            first[lane].met = now;
            first[lane].acquired = acquired;
        }
}

void fence() { ++time_now; }

// ---------------------------------------------------------------------------------------------------------
// Accesses
// ---------------------------------------------------------------------------------------------------------

// What a thread does to memory, and where in its code.
struct Deed {
    Access access;
    bool atomic;
    size_t size;
    const void *code;

    bool reads() const { return access != Access::write; }
    bool writes() const { return access != Access::read; }
    const char *verb() const { return !writes() ? "reads" : reads() ? "changes" : "writes"; }
};

static const unsigned THREADS = 1u << 27;  // numbers of threads, after which they begin again

// Whether nothing has put what was done in the past before what the running thread does now.
static bool is_unordered(const Record &past, unsigned bytes, bool atomic, const Thread &self, uint32_t number)
{
    const Block &block = *self.block;
    if (!(past.bytes & bytes) || past.thread == number || (past.atomic && atomic))
        return false;
    const uint32_t other = (past.thread - block.first_thread) % THREADS;
    if (other >= block.threads.size())
        return past.time >= block.acquired;
    if (past.time < block.opened || past.time < self.acquired)
        return false;
    return int(other / WARP) != self.number / WARP || past.time >= self.met;
}

// `writer` is the place in the code where the other thread wrote; 0 where it read: that is not remembered.
[[noreturn]] static void stop_for_race(const Deed &deed, const Record &other, uint32_t writer)
{
    const Launch &launch = running->block->launch;
    char what[64];
    snprintf(what, sizeof what, "%s memory that another thread uses", deed.verb());
    Finding finding = found(*running, deed.code, what);
    const unsigned threads = launch.block.x * launch.block.y * launch.block.z;
    const uint32_t number = (other.thread - launch.first_thread) % THREADS;
    const bool ours = number / threads < launch.blocks;
    snprintf(finding.other_did, sizeof finding.other_did, "%s%s it, with nothing to order the two",
             ours ? "" : "of another kernel ", writer ? "wrote" : "read");
    const Place place = place_of(launch, ours ? number / threads : 0, ours ? number % threads : 0);
    finding.other = {ours ? writer : 0,
                     {place.block.x, place.block.y, place.block.z},
                     {place.thread.x, place.thread.y, place.thread.z}};
    stop(finding);
}

static void require_permitted(const Granule &granule, unsigned bytes, const Deed &deed)
{
    if (!(bytes & ~granule.permitted))
        return;
    char what[96];
    snprintf(what, sizeof what, "%s %zu bytes %s", deed.verb(), deed.size,
             granule.freed & bytes ? "of memory that has been freed" : "out of bounds");
    stop(found(*running, deed.code, what));
}

// Of a thread that goes through memory byte by byte, all bytes are remembered.
static Record merged(Record now, const Record &before)
{
    if (before.thread == now.thread && before.time == now.time && before.atomic == now.atomic)
        now.bytes |= before.bytes;
    return now;
}

static inline void check_granule(Granule &granule, unsigned bytes, const Deed &deed)
{
    const Thread &self = *running;
    const Block &block = *self.block;
    const uint32_t number = (block.first_thread + self.number) % THREADS;
    const auto races = [&](const Record &past) {
        return is_unordered(past, bytes, deed.atomic, self, number);
    };
    require_permitted(granule, bytes, deed);
    if (deed.reads() && (bytes & ~granule.written))
        stop(found(self, deed.code, "reads memory that nobody has written"));
    if (races(granule.write))
        stop_for_race(deed, granule.write, granule.writer);
    const Record now = {time_now.load(std::memory_order_relaxed), number, bytes, deed.atomic};
    if (!deed.writes()) {
        const bool keep = is_unordered(granule.read, granule.read.bytes, false, self, number);
        Record &record = keep ? granule.read_too : granule.read;
        record = merged(now, record);
        return;
    }
    for (const Record &read : {granule.read, granule.read_too})
        if (races(read))
            stop_for_race(deed, read, 0);
    granule.write = merged(now, granule.write);
    granule.writer = static_cast<const char *>(deed.code) - block.launch.library - 1;
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

static inline void check(const volatile void *address, const Deed &deed)
{
    if (is_device(address)) {
        each_granule(address, deed.size,
                     [&](Granule &granule, unsigned bytes) { check_granule(granule, bytes, deed); });
    } else if (!is_private(address)) {
        char what[96];
        snprintf(what, sizeof what, "%s %zu bytes at %p, which is no memory of the device", deed.verb(),
                 deed.size, const_cast<const void *>(address));
        stop(found(*running, deed.code, what));
    }
}

void atomic_access(const volatile void *address, int size, Access access, const void *code)
{
    check(address, {access, true, size_t(size), code});
    if (access != Access::write)
        running->acquired = running->block->acquired = time_now;
}

static void plain_access(const void *address, size_t size, Access access, const void *code)
{
    check(address, {access, false, size, code});
}

}  // namespace checks
}  // namespace emulated

// ---------------------------------------------------------------------------------------------------------
// What the compiler calls
// ---------------------------------------------------------------------------------------------------------

using namespace emulated;
using checks::plain_access;

#define CODE __builtin_return_address(0)

#define HOOKS(size)                                                                                         \
    void __tsan_read##size(void *address) { plain_access(address, size, Access::read, CODE); }              \
    void __tsan_write##size(void *address) { plain_access(address, size, Access::write, CODE); }            \
    void __tsan_unaligned_read##size(void *address) { plain_access(address, size, Access::read, CODE); }    \
    void __tsan_unaligned_write##size(void *address) { plain_access(address, size, Access::write, CODE); }  \
    void __tsan_volatile_read##size(void *address) { emulated_atomic(address, size, Access::read, CODE); }  \
    void __tsan_volatile_write##size(void *address) { emulated_atomic(address, size, Access::write, CODE); }

extern "C" {

HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)

void __tsan_init() {}
void __tsan_read_range(void *address, size_t size) { plain_access(address, size, Access::read, CODE); }
void __tsan_write_range(void *address, size_t size) { plain_access(address, size, Access::write, CODE); }

// What the linker puts in the place of memcpy and its like.
void *__wrap_memcpy(void *target, const void *source, size_t size)
{
    plain_access(source, size, Access::read, CODE);
    plain_access(target, size, Access::write, CODE);
    return memcpy(target, source, size);
}

void *__wrap_memmove(void *target, const void *source, size_t size)
{
    plain_access(source, size, Access::read, CODE);
    plain_access(target, size, Access::write, CODE);
    return memmove(target, source, size);
}

void *__wrap_memset(void *target, int byte, size_t size)
{
    plain_access(target, size, Access::write, CODE);
    return memset(target, byte, size);
}

// What clang++ puts in the place of them itself.
void *__tsan_memcpy(void *target, const void *source, size_t size)
{
    plain_access(source, size, Access::read, CODE);
    plain_access(target, size, Access::write, CODE);
    return memcpy(target, source, size);
}

void *__tsan_memmove(void *target, const void *source, size_t size)
{
    plain_access(source, size, Access::read, CODE);
    plain_access(target, size, Access::write, CODE);
    return memmove(target, source, size);
}

void *__tsan_memset(void *target, int byte, size_t size)
{
    plain_access(target, size, Access::write, CODE);
    return memset(target, byte, size);
}

// -fsanitize=alignment: called where an address is not aligned for its type.
void __ubsan_handle_type_mismatch_v1(const void *, const void *)
{
    stop(found(*running, CODE, "accesses memory at an address that is not aligned for its type"));
}

// Turns the checks on, for good, for what is allocated from now on. 0 where there is no room for them.
int emulated_enable_checks()
{
    if (checks::enabled)
        return 1;
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
