// The emulated device's kernels at work: a launch shares its blocks among the cores (launch.cpp), a block has
// shared memory, a barrier and warps (blocks.cpp), its threads are fibres (fibres.cpp). Here is what these
// files share, and what they use of the device's memory (memory.cpp) and of the checks (checks.cpp).
#pragma once

#include <setjmp.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "cuda_names.h"

namespace emulated {

const int WARP = 32;
const unsigned char POISON = 0xff;  // what fresh memory is full of: NaN in every floating point type

// A stack, and where on it to go on. It serves one thread after another.
struct Fibre {
    static const size_t STACK = 64 << 10;
    char *stack;
    jmp_buf here;
};

enum class State { ready, at_barrier, at_warp, done };

// What lanes of a warp gave each other. Some may meet others before the rest have read it.
struct Meeting {
    unsigned lanes = 0;  // that may still read
    uint64_t values[WARP] = {};
};

struct Warp {
    unsigned alive = 0;           // lanes that have not ended
    unsigned waiting = 0;         // lanes that wait in emulated_meet
    std::list<Meeting> meetings;  // one, unless lanes part
};

struct Block;

struct Thread {
    Place place;
    Block *block;
    int number;  // within the block
    State state = State::ready;
    Fibre *fibre = nullptr;      // while it is under way
    const void *code = nullptr;  // where it last stopped, and, at a barrier,
    int line = 0;                // in which line
    bool paused = false;         // whether it last stopped to wait for others
    int tries = 0;               // accesses to memory that others may write
    unsigned mask = 0;           // of lanes that it waits for
    uint64_t value = 0;          // that it gives them
    Meeting *meeting = nullptr;  // the last one
    uint32_t met = 0;            // when it last met lanes of its warp
    uint32_t acquired = 0;       // when it last read what another thread may have released
};

// Storage of the __shared__ variables of a block: found by declaration, made when a thread first meets it.
struct SharedMemory {
    static const size_t MOST = 227 << 10;   // that sm_90 gives a block,
    static const size_t STATIC = 48 << 10;  // of which for variables whose size the compiler knows
    static const size_t BYTES = 256 << 10;  // with the gaps
    static const size_t GAP = 64;           // before each variable, so that the checks see who oversteps
    struct Variable {
        const void *key;
        char *address;
    };
    char *start;
    size_t used = 0, in_variables = 0;
    std::vector<Variable> variables;
};

struct Launch;

struct Block {
    Launch &launch;
    std::vector<Thread> threads;
    std::vector<Warp> warps;
    SharedMemory shared;
    int alive;
    int arrived = 0;  // at the barrier
    int counted = 0;  // of these, with a predicate that is not 0
    int result = 0;   // of the last barrier
    // For the checks: the number of its first thread among all threads of all launches; when its barrier last
    // opened, and when it last read what another block may have released.
    uint32_t first_thread = 0, opened = 0, acquired = 0;
    std::vector<int> order;  // in which its threads take their turn
    std::mt19937 dice;       // that shuffle it

    Block(Launch &launch, unsigned number);
    ~Block();
};

// What stopped a launch, for Python to put into words. Mirrored by _Finding in runtime.py.
struct Finding {
    struct Where {
        uint64_t code;  // offset in the kernel's library; 0: not known
        unsigned block[3], thread[3];
    };
    char what[256];
    Where where;
    char other_did[64];  // "" where no other thread has to do with it
    Where other;
};

struct Launch {
    void (*kernel)(const char *arguments);
    const char *arguments;
    dim3 grid, block;
    size_t dynamic_shared;
    bool checked;   // whether the kernel was compiled for the checks
    bool shuffled;  // whether blocks and threads take their turn in an order that `seed` decides
    unsigned seed;
    unsigned blocks;
    std::vector<unsigned> order;  // in which blocks start, where shuffled
    Finding *finding;
    const char *library;  // where the kernel's library begins
    uint32_t first_thread = 0, begun = 0;  // for the checks: its first thread's number, and the time

    std::atomic<unsigned> started{0}, ended{0};
    std::atomic<bool> failed{false};
    std::mutex mutex;
    std::condition_variable finished;
    std::deque<std::unique_ptr<Block>> polling;  // blocks put back, for any worker to go on with
    unsigned put_back = 0;                       // how often one was
    unsigned workers = 0;                        // that have not left yet

    // Keeps the first finding; the launch ends when each worker next looks.
    void fail(const Finding &found);
};

// ---------------------------------------------------------------------------------------------------------
// Fibres (fibres.cpp)
// ---------------------------------------------------------------------------------------------------------

extern __thread Thread *running;

// Lets a thread of a block that runs on this core go on until it ends or is suspended.
void resume(Thread &thread);

// Lets the scheduler of this core choose who goes on.
void suspend();

// Lets others run where this thread has come here often: it may poll.
void maybe_pause();

// Frees the fibre of a thread that will never end.
void discard(Fibre *fibre);

// ---------------------------------------------------------------------------------------------------------
// Blocks (blocks.cpp)
// ---------------------------------------------------------------------------------------------------------

Place place_of(const Launch &launch, unsigned block, unsigned thread);

// Lets those go on that waited for this thread, which has come to the end of its kernel.
void end_of_thread(Thread &thread);

// ---------------------------------------------------------------------------------------------------------
// Launches (launch.cpp)
// ---------------------------------------------------------------------------------------------------------

// What a thread did at a place in its kernel's code.
Finding found(const Thread &thread, const void *code, const char *what);

// Ends the launch, for what the running thread did.
[[noreturn]] void stop(const Finding &found);

// ---------------------------------------------------------------------------------------------------------
// Memory (memory.cpp)
// ---------------------------------------------------------------------------------------------------------

// One stretch of addresses, none of them used twice, holds all that kernels may access but their stacks.
const size_t REGION = size_t(1) << 38;
extern char *const region;

char *allocate(size_t size);

// ---------------------------------------------------------------------------------------------------------
// Checks (checks.cpp). Called only once they are enabled; what concerns a launch, where it is checked.
// ---------------------------------------------------------------------------------------------------------

namespace checks {

extern bool enabled;

void launch_begins(Launch &launch);
void block_begins(Block &block, unsigned number);
void barrier_opens(Block &block);
void lanes_meet(Block &block, int warp, unsigned lanes);
void atomic_access(const volatile void *address, int size, Access access, const void *code);
void fence();

// From now on these bytes may be accessed, and have (not) been written; or may not.
void permit(const void *address, size_t size, bool written);
void forbid(const void *address, size_t size, bool freed);

}  // namespace checks

}  // namespace emulated
