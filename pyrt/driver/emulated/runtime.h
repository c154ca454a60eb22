// What the parts of the runtime share: launches, blocks, warps, and threads that are fibres.
#pragma once

#include <setjmp.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda_names.h"

namespace emulated {

const int WARP = 32;

// A stack, and where on it to go on. It serves one thread after another.
struct Fibre {
    static const size_t STACK = 64 << 10;
    char *stack;
    jmp_buf here;
};

enum class State { ready, at_barrier, at_warp, done };

struct Warp {
    unsigned alive = 0;    // lanes that have not ended
    unsigned waiting = 0;  // lanes that wait in emulated_meet
    uint64_t values[WARP] = {};
};

struct Block;

struct Thread {
    Place place;
    Block *block;
    int number;  // within the block
    State state = State::ready;
    Fibre *fibre = nullptr;  // while it is under way
    void *line = nullptr;    // the code at which it last stopped
    bool paused = false;     // whether it last stopped to wait for others
    int tries = 0;           // accesses to memory that others may write, since the last pause
    unsigned mask = 0;       // of lanes that it waits for
    uint64_t value = 0;      // that it gives them
};

// Storage of the __shared__ variables of a block: found by declaration, made when a thread first meets it.
struct SharedMemory {
    struct Variable {
        const void *key;
        char *address;
    };
    char *start = nullptr;
    size_t used = 0;
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

    Block(Launch &launch, unsigned number);
    ~Block();
};

// What stopped a launch, for Python to put into words. Mirrored by _Finding in runtime.py.
struct Finding {
    char what[256];
    void *code;
    unsigned block[3], thread[3];
};

struct Launch {
    void (*kernel)(const char *arguments);
    const char *arguments;
    dim3 grid, block;
    size_t dynamic_shared;
    unsigned blocks;
    Finding *finding;

    std::atomic<unsigned> started{0}, ended{0};
    std::atomic<bool> failed{false};
    std::mutex mutex;
    std::condition_variable finished;

    // The first finding is kept; the launch stops at the next switch of each of its threads.
    void fail(const Thread &thread, const void *code, const char *what);
};

extern thread_local Thread *running;

// Lets the scheduler of this core choose who goes on.
void suspend();

}  // namespace emulated
