// Blocks: the shared memory of their threads, their barrier, and the meetings of the lanes of their warps.

#include <string.h>

#include <algorithm>
#include <numeric>

#include "runtime.h"

namespace emulated {

static std::mutex storage_mutex;
static std::vector<char *> &idle_storage = *new std::vector<char *>;

static char *take_storage()
{
    std::lock_guard<std::mutex> lock(storage_mutex);
    if (idle_storage.empty())
        return allocate(SharedMemory::BYTES);
    char *storage = idle_storage.back();
    idle_storage.pop_back();
    return storage;
}

Place place_of(const Launch &launch, unsigned block, unsigned thread)
{
    const dim3 &b = launch.block, &g = launch.grid;
    return {{thread % b.x, thread / b.x % b.y, thread / b.x / b.y},
            {block % g.x, block / g.x % g.y, block / g.x / g.y},
            b,
            g};
}

Block::Block(Launch &launch, unsigned number)
    : launch(launch), threads(launch.block.x * launch.block.y * launch.block.z),
      warps((threads.size() + WARP - 1) / WARP), alive(threads.size()), order(threads.size()),
      dice(launch.seed + number)
{
    std::iota(order.begin(), order.end(), 0);
    for (int i = 0; i < alive; i++) {
        threads[i].place = place_of(launch, number, i);
        threads[i].block = this;
        threads[i].number = i;
        warps[i / WARP].alive |= 1u << i % WARP;
    }
    shared.start = take_storage();
    memset(shared.start, POISON, launch.dynamic_shared);
    shared.used = launch.dynamic_shared;
    if (launch.checked)
        checks::block_begins(*this, number);
}

Block::~Block()
{
    for (Thread &thread : threads)
        if (thread.fibre)
            discard(thread.fibre);
    std::lock_guard<std::mutex> lock(storage_mutex);
    idle_storage.push_back(shared.start);
}

// ---------------------------------------------------------------------------------------------------------
// Where threads wait for each other
// ---------------------------------------------------------------------------------------------------------

// Threads at a barrier of which others don't come: those have ended, or are at another one.
static void require_all_at_barrier(Block &block)
{
    const auto is_waiting = [](const Thread &thread) { return thread.state == State::at_barrier; };
    const Thread &first = *std::find_if(block.threads.begin(), block.threads.end(), is_waiting);
    for (const Thread &thread : block.threads)
        if (!is_waiting(thread))
            block.launch.fail(found(first, first.code, "waits at a barrier that other threads never reach"));
        else if (thread.line != first.line)
            block.launch.fail(found(first, first.code, "waits at a barrier, others at another"));
}

// The barrier opens once all threads have arrived that have not ended, as on a GPU.
static bool open_barrier(Block &block)
{
    if (block.arrived == 0 || block.arrived < block.alive)
        return false;
    if (block.launch.checked) {
        require_all_at_barrier(block);
        checks::barrier_opens(block);
    }
    block.result = block.counted;
    block.arrived = block.counted = 0;
    for (Thread &thread : block.threads)
        if (thread.state == State::at_barrier)
            thread.state = State::ready;
    return true;
}

// A meeting that nobody reads any more, or a new one.
static Meeting &new_meeting(Warp &warp)
{
    for (Meeting &meeting : warp.meetings)
        if (!meeting.lanes)
            return meeting;
    return warp.meetings.emplace_back();
}

static void leave_meeting(Thread &thread)
{
    if (thread.meeting)
        thread.meeting->lanes &= ~(1u << thread.number % WARP);
}

// Lets the lanes in mask go on once all of them wait that have not ended.
static bool let_meet(Block &block, int warp_number, unsigned mask)
{
    Warp &warp = block.warps[warp_number];
    const unsigned lanes = mask & warp.alive;
    if ((warp.waiting & lanes) != lanes)
        return false;
    warp.waiting &= ~lanes;
    if (block.launch.checked)
        checks::lanes_meet(block, warp_number, lanes);
    Thread *const threads = &block.threads[warp_number * WARP];
    for (int lane = 0; lane < WARP; lane++)
        if (lanes >> lane & 1)
            leave_meeting(threads[lane]);
    Meeting &meeting = new_meeting(warp);
    meeting.lanes = lanes;
    for (int lane = 0; lane < WARP; lane++) {
        meeting.values[lane] = 0;
        if (lanes >> lane & 1) {
            meeting.values[lane] = threads[lane].value;
            threads[lane].meeting = &meeting;
            threads[lane].state = State::ready;
        }
    }
    return true;
}

void end_of_thread(Thread &thread)
{
    Block &block = *thread.block;
    const int warp_number = thread.number / WARP;
    Warp &warp = block.warps[warp_number];
    thread.state = State::done;
    block.alive--;
    warp.alive &= ~(1u << thread.number % WARP);
    leave_meeting(thread);
    open_barrier(block);
    for (int lane = 0; lane < WARP; lane++)
        if (warp.waiting >> lane & 1)
            let_meet(block, warp_number, block.threads[warp_number * WARP + lane].mask);
}

}  // namespace emulated

using namespace emulated;

extern "C" {

int emulated_barrier(int predicate, int line)
{
    Thread &thread = *running;
    Block &block = *thread.block;
    thread.code = __builtin_return_address(0);
    thread.line = line;
    thread.state = State::at_barrier;
    block.arrived++;
    block.counted += predicate;
    if (!open_barrier(block) || block.launch.shuffled)
        suspend();
    return block.result;
}

void emulated_meet(unsigned mask, uint64_t value)
{
    Thread &thread = *running;
    const int warp_number = thread.number / WARP;
    thread.code = __builtin_return_address(0);
    thread.state = State::at_warp;
    thread.mask = mask;
    thread.value = value;
    thread.block->warps[warp_number].waiting |= 1u << thread.number % WARP;
    if (!let_meet(*thread.block, warp_number, mask) || thread.block->launch.shuffled)
        suspend();
}

uint64_t emulated_value(unsigned lane)
{
    return running->meeting->values[lane];
}

void *emulated_shared(const void *key, size_t size, size_t alignment)
{
    SharedMemory &shared = running->block->shared;
    for (const auto &variable : shared.variables)
        if (variable.key == key)
            return variable.address;
    // Aligned as it says and no better, so that --sanitize finds vectors in arrays that promise less.
    size_t start = (shared.used + SharedMemory::GAP + alignment - 1) / alignment * alignment;
    if (start % (2 * alignment) == 0)
        start += alignment;
    const size_t statics = shared.in_variables + size, dynamic = running->block->launch.dynamic_shared;
    if (statics > SharedMemory::STATIC || statics + dynamic > SharedMemory::MOST ||
        start + size > SharedMemory::BYTES)
        stop(found(*running, __builtin_return_address(0), "needs more shared memory than there is"));
    char *address = shared.start + start;
    shared.used = start + size;
    shared.in_variables = statics;
    memset(address, POISON, size);
    if (running->block->launch.checked)
        checks::permit(address, size, false);
    shared.variables.push_back({key, address});
    return address;
}

void *emulated_dynamic_shared() { return running->block->shared.start; }
}
