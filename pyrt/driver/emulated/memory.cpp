// Device memory: pages of one reserved stretch of addresses, none of which is used twice.
//
// So a pointer that has been freed never points to something else, and a pointer tells at once whether it is
// one of the device's. Between two allocations lies a page that nobody may touch.

#include <string.h>
#include <sys/mman.h>

#include "runtime.h"

namespace emulated {

static const size_t PAGE = 4096;

static char *reserve()
{
    void *start = mmap(nullptr, REGION, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return start == MAP_FAILED ? nullptr : static_cast<char *>(start);
}

char *const region = reserve();
static std::atomic<size_t> end{0};

static size_t whole_pages(size_t size) { return (size + PAGE - 1) / PAGE * PAGE; }

char *allocate(size_t size)
{
    const size_t pages = whole_pages(size);
    const size_t start = end.fetch_add(pages + PAGE);
    if (!region || start + pages > REGION || mprotect(region + start, pages, PROT_READ | PROT_WRITE))
        return nullptr;
    memset(region + start, POISON, pages);
    return region + start;
}

}  // namespace emulated

using namespace emulated;

extern "C" {

// Memory for kernels, full of POISON; null where there is none left. `size` is more than 0.
void *emulated_allocate(size_t size)
{
    char *address = allocate(size);
    if (address && checks::enabled)
        checks::permit(address, size, false);
    return address;
}

// Gives the pages back to the system.
void emulated_free(void *address, size_t size)
{
    if (checks::enabled)
        checks::forbid(address, size, true);
    madvise(address, whole_pages(size), MADV_DONTNEED);
}

// Copies, for streams: at least one of the two is device memory.
void emulated_copy(void *target, const void *source, size_t size)
{
    memcpy(target, source, size);
    if (checks::enabled)
        checks::permit(target, size, true);
}

void emulated_fill(void *target, int byte, size_t size)
{
    memset(target, byte, size);
    if (checks::enabled)
        checks::permit(target, size, true);
}
}
