// Threads as fibres: each has a stack of its own, and goes on and stops without a system call.
//
// makecontext puts a function on a stack, once; from then on _setjmp and _longjmp switch.

#include <sys/mman.h>
#include <ucontext.h>

#include <chrono>

#include "runtime.h"

namespace emulated {

__thread const Place *place;
__thread Thread *running;
static thread_local jmp_buf scheduler;

// Never destroyed: at exit a kernel may still wait for a rank that is gone.
static std::mutex idle_mutex;
static std::vector<Fibre *> &idle_fibres = *new std::vector<Fibre *>;

// Not inlined: a fibre goes on under another operating system thread than before, so the loop below must not
// keep the address of a thread_local variable.
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

void discard(Fibre *fibre)
{
    munmap(fibre->stack, Fibre::STACK);
    delete fibre;
}

void resume(Thread &thread)
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
// Threads that poll
// ---------------------------------------------------------------------------------------------------------

void maybe_pause()
{
    const int patience = 16;  // a thread that does not poll pays for a switch now and then
    if (++running->tries % patience == 0)
        emulated_pause();
}

}  // namespace emulated

using namespace emulated;

extern "C" {

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
}
