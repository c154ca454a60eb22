// The emulated device's kernels at work: blocks run over the cores, the threads of a block are fibres.
//
// A launch has a worker (an operating system thread) for each core. A worker takes a block and passes over
// its threads again and again: each runs until it ends, waits at a barrier or for its warp, or pauses
// because it polls memory that others write. A block whose threads do nothing but poll is put back, and the
// worker takes another one: a new one or, once all have begun, one that was put back. A loop that polls by
// plain volatile loads never comes back to its worker; so where nothing has moved for a while and a block is
// there to be taken, one more worker joins. Thus all blocks get their turn, whatever they wait for.

#include "runtime.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

namespace emulated {

__thread const Place *place;
__thread Thread *running;
static thread_local jmp_buf scheduler;

// ---------------------------------------------------------------------------------------------------------
// Fibres. makecontext puts a function on a stack of its own, once; from then on _setjmp and _longjmp switch,
// without a system call.
// ---------------------------------------------------------------------------------------------------------

// Never destroyed: at exit a kernel may still wait for a rank that is gone.
static std::mutex idle_mutex;
static std::vector<Fibre *> &idle_fibres = *new std::vector<Fibre *>;

static void end_of_thread(Thread &thread);

// Not inlined, like end_of_thread: a fibre goes on under another operating system thread than before, so the
// loop below must not keep the address of a thread_local variable.
static __attribute__((noinline)) void run_thread()
{
    Launch &launch = running->block->launch;
    launch.kernel(launch.arguments);
    end_of_thread(*running);
}

static __attribute__((noinline)) void to_scheduler() { _longjmp(scheduler, 1); }

__attribute__((noinline)) void suspend()
{
    if (!_setjmp(running->fibre->here))
        to_scheduler();
}

static void fibre_main(unsigned high, unsigned low)
{
    Fibre *fibre = reinterpret_cast<Fibre *>(uintptr_t(high) << 32 | low);
    for (;;) {
        if (!_setjmp(fibre->here))
            to_scheduler();
        run_thread();
    }
}

static Fibre *new_fibre()
{
    Fibre *fibre = new Fibre;
    void *stack = mmap(nullptr, Fibre::STACK, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    fibre->stack = static_cast<char *>(stack);
    // Stacks that begin at the same place of a page would fight for the same few lines of the cache.
    static std::atomic<size_t> count{0};
    const size_t shift = count++ % 128 * 128;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = Fibre::STACK - shift;
    context.uc_link = nullptr;
    const uintptr_t self = reinterpret_cast<uintptr_t>(fibre);
    makecontext(&context, reinterpret_cast<void (*)()>(fibre_main), 2, unsigned(self >> 32), unsigned(self));
    if (!_setjmp(scheduler))
        setcontext(&context);
    return fibre;
}

static Fibre *take_fibre()
{
    {
        std::lock_guard<std::mutex> lock(idle_mutex);
        if (!idle_fibres.empty()) {
            Fibre *fibre = idle_fibres.back();
            idle_fibres.pop_back();
            return fibre;
        }
    }
    return new_fibre();
}

static void give_back(Fibre *fibre)
{
    std::lock_guard<std::mutex> lock(idle_mutex);
    idle_fibres.push_back(fibre);
}

// A fibre whose thread will never end.
static void discard(Fibre *fibre)
{
    munmap(fibre->stack, Fibre::STACK);
    delete fibre;
}

static void resume(Thread &thread)
{
    if (!thread.fibre)
        thread.fibre = take_fibre();
    thread.paused = false;
    running = &thread;
    place = &thread.place;
    if (!_setjmp(scheduler))
        _longjmp(thread.fibre->here, 1);
    running = nullptr;
    if (thread.state == State::done) {
        give_back(thread.fibre);
        thread.fibre = nullptr;
    }
}

// ---------------------------------------------------------------------------------------------------------
// Blocks
// ---------------------------------------------------------------------------------------------------------

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

static __attribute__((noinline)) void end_of_thread(Thread &thread)
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

void maybe_pause()
{
    const int patience = 16;  // a thread that does not poll pays for a switch now and then
    if (++running->tries % patience == 0)
        emulated_pause();
}

// `code` is a return address: one less lies in the line of the call.
Finding found(const Thread &thread, const void *code, const char *what)
{
    const uint3 &b = thread.place.block, &t = thread.place.thread;
    const uint64_t offset = static_cast<const char *>(code) - thread.block->launch.library - 1;
    Finding finding = {};
    snprintf(finding.what, sizeof finding.what, "%s", what);
    finding.where = {offset, {b.x, b.y, b.z}, {t.x, t.y, t.z}};
    return finding;
}

void Launch::fail(const Finding &found)
{
    std::lock_guard<std::mutex> lock(mutex);
    if (!failed.exchange(true))
        *finding = found;
}

void stop(const Finding &found)
{
    running->block->launch.fail(found);
    for (;;)
        suspend();
}

// ---------------------------------------------------------------------------------------------------------
// Workers
// ---------------------------------------------------------------------------------------------------------

// They outlive their launch: a thread that ends costs more than a small kernel, and an MPI that watches the
// process's memory (UCX does) keeps a note of its stack for as long as the process lives.
struct Worker {
    Launch *launch = nullptr;  // that it is called to
    std::condition_variable called;
};

// Never destroyed, as the fibres.
static std::mutex workers_mutex;
static std::vector<Worker *> &idle_workers = *new std::vector<Worker *>;

// A process that is forked has none of them: who called one would wait for ever.
static void before_fork() { workers_mutex.lock(); }
static void after_fork() { workers_mutex.unlock(); }
static void after_fork_in_child()
{
    idle_workers.clear();
    workers_mutex.unlock();
}
[[maybe_unused]] static const int forks = pthread_atfork(before_fork, after_fork, after_fork_in_child);

enum class Progress { ended, made, polls };

// Runs every thread that can run, once.
static Progress pass(Block &block)
{
    bool ran = false, made = false;
    if (block.launch.shuffled)
        std::shuffle(block.order.begin(), block.order.end(), block.dice);
    for (const int number : block.order) {
        Thread &thread = block.threads[number];
        if (thread.state != State::ready)
            continue;
        resume(thread);
        ran = true;
        made |= !thread.paused;
        if (block.launch.failed)
            return Progress::ended;
    }
    if (block.alive == 0)
        return Progress::ended;
    if (!ran) {
        const auto stuck = std::find_if(block.threads.begin(), block.threads.end(),
                                        [](const Thread &thread) { return thread.state != State::done; });
        const char *what = stuck->state == State::at_barrier
                               ? "waits at a barrier for threads that wait elsewhere"
                               : "waits for lanes of its warp that wait elsewhere";
        block.launch.fail(found(*stuck, stuck->code, what));
        return Progress::ended;
    }
    return made ? Progress::made : Progress::polls;
}

static std::unique_ptr<Block> next_block(Launch &launch)
{
    const unsigned turn = launch.started++;
    if (turn >= launch.blocks)
        return nullptr;
    return std::make_unique<Block>(launch, launch.shuffled ? launch.order[turn] : turn);
}

// The block to go on with: a new one while there are any, else the one that has been put back for longest.
static std::unique_ptr<Block> take_block(Launch &launch)
{
    if (auto block = next_block(launch))
        return block;
    std::lock_guard<std::mutex> lock(launch.mutex);
    if (launch.polling.empty())
        return nullptr;
    auto block = std::move(launch.polling.front());
    launch.polling.pop_front();
    return block;
}

static void put_back(Launch &launch, std::unique_ptr<Block> block)
{
    std::lock_guard<std::mutex> lock(launch.mutex);
    launch.polling.push_back(std::move(block));
    launch.put_back++;
}

static void end_block(Launch &launch)
{
    std::lock_guard<std::mutex> lock(launch.mutex);
    launch.ended++;
    launch.finished.notify_one();
}

// Runs a block until it ends, or has done nothing but poll for a while.
static Progress run_block(Block &block)
{
    const int patience = 20;  // passes; every block that is put back keeps the stacks of its threads
    for (int polled = 0; polled < patience;) {
        const Progress progress = pass(block);
        if (progress == Progress::ended)
            return progress;
        polled = progress == Progress::polls ? polled + 1 : 0;
    }
    return Progress::polls;
}

static void work(Launch &launch)
{
    const auto nap = std::chrono::microseconds(20);
    while (!launch.failed && launch.ended < launch.blocks) {
        auto block = take_block(launch);
        if (block && run_block(*block) == Progress::ended) {
            block.reset();
            end_block(launch);
            continue;
        }
        if (block)
            put_back(launch, std::move(block));
        std::this_thread::sleep_for(nap);
    }
}

// Takes part in a launch, then waits for the next one. The launch may be gone once it has been left.
static void serve(Worker &self)
{
    for (;;) {
        std::unique_lock<std::mutex> lock(workers_mutex);
        self.called.wait(lock, [&self] { return self.launch; });
        Launch &launch = *self.launch;
        self.launch = nullptr;
        lock.unlock();
        work(launch);
        lock.lock();
        idle_workers.push_back(&self);
        lock.unlock();
        std::lock_guard<std::mutex> last(launch.mutex);
        launch.workers--;
        launch.finished.notify_one();
    }
}

// One more worker for a launch, whose mutex is held.
static void add_worker(Launch &launch)
{
    launch.workers++;
    std::lock_guard<std::mutex> lock(workers_mutex);
    Worker *worker;
    if (idle_workers.empty()) {
        worker = new Worker;
        std::thread thread(serve, std::ref(*worker));
        pthread_setname_np(thread.native_handle(), "emulated device");
        thread.detach();
    } else {
        worker = idle_workers.back();
        idle_workers.pop_back();
    }
    worker->launch = &launch;
    worker->called.notify_one();
}

static unsigned cores()
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

static void run(Launch &launch)
{
    const auto patience = std::chrono::milliseconds(20);
    std::unique_lock<std::mutex> lock(launch.mutex);
    for (unsigned i = 0; i < std::min(cores(), launch.blocks); i++)
        add_worker(launch);
    unsigned before = 0;
    while (launch.ended < launch.blocks && !launch.failed) {
        launch.finished.wait_for(lock, patience);
        const unsigned now = launch.started + launch.ended + launch.put_back;
        if (now == before && (launch.started < launch.blocks || !launch.polling.empty()))
            add_worker(launch);
        before = now;
    }
    launch.finished.wait(lock, [&launch] { return launch.workers == 0; });
}

}  // namespace emulated

// ---------------------------------------------------------------------------------------------------------
// What kernels call
// ---------------------------------------------------------------------------------------------------------

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

void emulated_pause()
{
    running->paused = true;
    suspend();
}

void emulated_atomic(const volatile void *address, int size, Access access, const void *code)
{
    maybe_pause();
    if (running->block->launch.checked)
        checks::atomic_access(address, size, access, code);
}

void emulated_fence()
{
    std::atomic_thread_fence(std::memory_order_seq_cst);
    maybe_pause();
    if (running->block->launch.checked)
        checks::fence();
}

long long emulated_nanoseconds()
{
    maybe_pause();
    return std::chrono::steady_clock::now().time_since_epoch().count();
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

// ---------------------------------------------------------------------------------------------------------
// What Python calls
// ---------------------------------------------------------------------------------------------------------

// Runs a kernel to its end; 0, or 1 where `finding` says what stopped it. grid and block are x, y, z; a seed
// that is not negative decides the order of blocks and threads.
int emulated_launch(void (*kernel)(const char *), const unsigned *grid, const unsigned *block,
                    const char *arguments, size_t dynamic_shared, int checked, int64_t seed, Finding *finding)
{
    Dl_info info = {};
    dladdr(reinterpret_cast<void *>(kernel), &info);
    Launch launch;
    launch.kernel = kernel;
    launch.arguments = arguments;
    launch.grid = dim3(grid[0], grid[1], grid[2]);
    launch.block = dim3(block[0], block[1], block[2]);
    launch.dynamic_shared = dynamic_shared;
    launch.blocks = grid[0] * grid[1] * grid[2];
    launch.finding = finding;
    launch.library = static_cast<const char *>(info.dli_fbase);
    launch.checked = checked;
    if (checked)
        checks::launch_begins(launch);
    launch.shuffled = seed >= 0;
    launch.seed = seed;
    if (launch.shuffled) {
        launch.order.resize(launch.blocks);
        std::iota(launch.order.begin(), launch.order.end(), 0);
        std::shuffle(launch.order.begin(), launch.order.end(), std::mt19937(launch.seed));
    }
    run(launch);
    return launch.failed;
}
}
