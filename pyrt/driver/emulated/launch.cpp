// Launches: a worker (an operating system thread) for each core, whose blocks they share.
//
// A worker takes a block and passes over its threads again and again: each runs until it ends, waits at a
// barrier or for its warp, or pauses because it polls memory that others write. A block whose threads do
// nothing but poll is put back, and the worker takes another one: a new one or, once all have begun, one that
// was put back. A loop that polls by plain volatile loads never comes back to its worker; so where nothing
// has moved for a while and a block is there to be taken, one more worker joins. Thus all blocks get their
// turn, whatever they wait for.

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "runtime.h"

namespace emulated {

// ---------------------------------------------------------------------------------------------------------
// What stops a launch
// ---------------------------------------------------------------------------------------------------------

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

using namespace emulated;

extern "C" {

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
