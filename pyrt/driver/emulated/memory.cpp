// Device memory: pages of one reserved stretch of addresses, none of which is used twice.
//
// So a pointer that has been freed never points to something else, and a pointer tells at once whether it is
// one of the device's. Between two allocations lies a page that nobody may touch.

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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

// Addresses for so many bytes, with no memory behind them yet; null where there are none left.
static char *take_addresses(size_t pages)
{
    const size_t start = end.fetch_add(pages + PAGE);
    return !region || start + pages > REGION ? nullptr : region + start;
}

char *allocate(size_t size)
{
    const size_t pages = whole_pages(size);
    char *address = take_addresses(pages);
    if (!address || mprotect(address, pages, PROT_READ | PROT_WRITE))
        return nullptr;
    memset(address, POISON, pages);
    return address;
}

// Puts other memory behind these addresses.
static bool map(void *address, size_t pages, int flags, int file)
{
    return mmap(address, pages, PROT_READ | PROT_WRITE, flags | MAP_FIXED, file, 0) != MAP_FAILED;
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

// Gives the pages back to the system, of shared memory too.
void emulated_free(void *address, size_t size)
{
    if (checks::enabled)
        checks::forbid(address, size, true);
    map(address, whole_pages(size), MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
}

// Moves an allocation into an empty file, where other processes find it. From now on anybody may have written
// any of it. False where the system has no room.
int emulated_move_to_file(void *address, size_t size, int file)
{
    const size_t pages = whole_pages(size);
    if (ftruncate(file, pages))
        return false;
    void *copy = mmap(nullptr, pages, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (copy == MAP_FAILED)
        return false;
    memcpy(copy, address, pages);
    if (mremap(copy, pages, pages, MREMAP_MAYMOVE | MREMAP_FIXED, address) == MAP_FAILED)
        return false;
    if (checks::enabled)
        checks::permit(address, size, true);
    return true;
}

// Memory that another process has moved into this file; null where there is no room for it.
void *emulated_map_file(size_t size, int file)
{
    const size_t pages = whole_pages(size);
    char *address = take_addresses(pages);
    if (!address || !map(address, pages, MAP_SHARED, file))
        return nullptr;
    if (checks::enabled)
        checks::permit(address, size, true);
    return address;
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
