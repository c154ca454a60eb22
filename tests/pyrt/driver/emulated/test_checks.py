"""--sanitize: one bug of each kind is reported with its place, and its clean twin passes.

In each source the line with the comment "here" is the one that the report must name. BUG=1 plants the bug.
"""

from __future__ import annotations

import re
import shutil
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest

from pyrt.arrays import DeviceArray, pinned
from pyrt.driver.emulated import DeviceError, EmulatedDriver, compile
from tests.pyrt.driver.emulated.conftest import Bench

HEAD = "// constants: BUG=0|1\n"

OUT_OF_BOUNDS = """
extern "C" __global__ void test(int n, float *x)
{
    x[threadIdx.x + BUG] = 1;  // here
}
"""
MEMSET = """
extern "C" __global__ void test(int n, float *x)
{
    if (threadIdx.x == 7)
        memset(x, 0, (n + BUG) * sizeof(float));  // here
}
"""
STRUCTURE = """  // too large for a load and a store: the compiler calls memcpy
struct Large { float of[512]; };
extern "C" __global__ void test(int n, float *x)
{
    __shared__ Large large[2];
    if (threadIdx.x != 7)
        return;
    for (int i = 0; i < 512 - BUG; i++)
        large[0].of[i] = i;
    large[1] = large[0];  // here
    x[0] = large[1].of[500];
}
"""
BEFORE_THE_START = """
extern "C" __global__ void test(int n, const float *x)
{
    if (threadIdx.x == 2)
        asm volatile("" : : "r"(x[-BUG]));  // here
}
"""
SHARED_OUT_OF_BOUNDS = """
extern "C" __global__ void test(int n, float *x)
{
    __shared__ float tile[8];
    __shared__ float other[8];
    if (threadIdx.x < 8)
        other[threadIdx.x] = 0;
    if (threadIdx.x == 3)
        tile[threadIdx.x + 4 + BUG] = 1;  // here
}
"""
DYNAMIC_OUT_OF_BOUNDS = """
extern "C" __global__ void test(int n, float *x)
{
    extern __shared__ float tile[];
    if (threadIdx.x == 3)
        tile[3 + BUG] = 1;  // here
}
"""
NO_MEMORY = """
extern "C" __global__ void test(int n, float *x)
{
    float *nothing = BUG ? nullptr : x;
    if (threadIdx.x == 1)
        *nothing = 1;  // here
}
"""
MISALIGNED = """
extern "C" __global__ void test(int n, float *x)
{
    if (threadIdx.x == 1)
        *(float4 *)(x + BUG) = make_float4(1, 2, 3, 4);  // here
}
"""
MISALIGNED_SHARED = """
extern "C" __global__ void test(int n, float *x)
{
    __shared__ alignas(16) float tile[8];
    if (threadIdx.x == 1)
        *(double *)(tile + 2 + BUG) = 1;  // here
}
"""
PROMISES_LESS = """
extern "C" __global__ void test(int n, float *x)
{
#if BUG
    __shared__ float tile[8];
#else
    __shared__ alignas(16) float tile[8];
#endif
    if (threadIdx.x == 1)
        *(double *)(tile + 2) = 1;  // here
}
"""
UNWRITTEN = """
extern "C" __global__ void test(int n, float *x)
{
    __shared__ float tile[8];
    if (threadIdx.x < 8 - BUG)
        tile[threadIdx.x] = threadIdx.x;
    __syncthreads();
    if (threadIdx.x == 5)
        x[0] = tile[7];  // here
}
"""
MISSING_BARRIER = """
extern "C" __global__ void test(int n, float *x)
{
    __shared__ float tile[64];
    tile[threadIdx.x] = threadIdx.x;
    if (!BUG)
        __syncthreads();
    if (threadIdx.x == 40)
        x[0] = tile[3];  // here
}
"""
WRITE_AFTER_READ = """
extern "C" __global__ void test(int n, float *x)
{
    __shared__ float tile[64];
    tile[threadIdx.x] = threadIdx.x;
    __syncthreads();
    x[threadIdx.x] = tile[0];
    if (!BUG)
        __syncthreads();
    if (threadIdx.x == 50)  // 63, the last to arrive, has gone on first
        tile[0] = 1;  // here
}
"""
MISSING_SYNCWARP = """
extern "C" __global__ void test(int n, float *x)
{
    __shared__ float tile[32];
    if (threadIdx.x >= 32)
        return;
    tile[threadIdx.x] = threadIdx.x;
    if (!BUG)
        __syncwarp();
    if (threadIdx.x == 9)
        x[0] = tile[8];  // here
}
"""
BYTE_BY_BYTE = """
extern "C" __global__ void test(int n, unsigned char *x)
{
    if (threadIdx.x == 0)
        for (int i = 0; i < n % 60; i++)
            x[i] = i;
    if (!BUG)
        __syncthreads();
    if (threadIdx.x == 1)
        x[n - 1] = x[1];  // here
}
"""
BETWEEN_BLOCKS = """
extern "C" __global__ void test(int n, int *x)
{
    if (threadIdx.x == 0) {
        if (BUG)
            x[0] += 1;  // here
        else
            atomicAdd(&x[0], 1);
    }
}
"""
MIXED_WITH_ATOMIC = """
extern "C" __global__ void test(int n, int *x)
{
    if (threadIdx.x < 9)
        atomicAdd(&x[0], 1);
    if (BUG == 0)
        __syncthreads();
    if (threadIdx.x == 9)
        x[0] = 1;  // here
}
"""
MISSING_FENCE = """
// The last block to arrive adds up what all have written.
extern "C" __global__ void test(int n, int *x)
{
    if (threadIdx.x != 0)
        return;
    x[1 + blockIdx.x] = 1;
    if (!BUG)
        __threadfence();
    if (atomicAdd(&x[0], 1) == gridDim.x - 1)
        for (int i = 1; i <= gridDim.x; i++)
            x[n - 1] += x[i];  // here
}
"""
BARRIER_AFTER_RETURN = """
extern "C" __global__ void test(int n, float *x)
{
    if (BUG && threadIdx.x >= 60)
        return;
    __syncthreads();  // here
}
"""
TWO_BARRIERS = """
extern "C" __global__ void test(int n, float *x)
{
    if (threadIdx.x < 32 || !BUG)
        __syncthreads();  // here
    else
        __syncthreads();
}
"""

BUGS = {
    "out of bounds": (OUT_OF_BOUNDS, "(0, 0, 0)", "(63, 0, 0)", "writes 4 bytes out of bounds"),
    "memset": (MEMSET, "(0, 0, 0)", "(7, 0, 0)", "writes 260 bytes out of bounds"),
    "structure": (STRUCTURE, "(0, 0, 0)", "(7, 0, 0)", "reads memory that nobody has written"),
    "before the start": (BEFORE_THE_START, "(0, 0, 0)", "(2, 0, 0)", "reads 4 bytes out of bounds"),
    "shared": (SHARED_OUT_OF_BOUNDS, "(0, 0, 0)", "(3, 0, 0)", "writes 4 bytes out of bounds"),
    "dynamic shared": (DYNAMIC_OUT_OF_BOUNDS, "(0, 0, 0)", "(3, 0, 0)", "writes 4 bytes out of bounds"),
    "no memory": (NO_MEMORY, "(0, 0, 0)", "(1, 0, 0)", "which is no memory of the device"),
    "misaligned": (MISALIGNED, "(0, 0, 0)", "(1, 0, 0)", "not aligned for its type"),
    "misaligned shared": (MISALIGNED_SHARED, "(0, 0, 0)", "(1, 0, 0)", "not aligned for its type"),
    "promises less": (PROMISES_LESS, "(0, 0, 0)", "(1, 0, 0)", "not aligned for its type"),
    "unwritten": (UNWRITTEN, "(0, 0, 0)", "(5, 0, 0)", "reads memory that nobody has written"),
    "missing barrier": (MISSING_BARRIER, "(0, 0, 0)", "(40, 0, 0)", r"thread \(3, 0, 0\) wrote it"),
    "write after read": (WRITE_AFTER_READ, "(0, 0, 0)", "(50, 0, 0)", r"read it, with nothing to order"),
    "missing syncwarp": (MISSING_SYNCWARP, "(0, 0, 0)", "(9, 0, 0)", r"thread \(8, 0, 0\) wrote it"),
    "byte by byte": (BYTE_BY_BYTE, "(0, 0, 0)", "(1, 0, 0)", r"thread \(0, 0, 0\) wrote it"),
    "between blocks": (BETWEEN_BLOCKS, "(., 0, 0)", "(0, 0, 0)", "with nothing to order the two"),
    "mixed with atomic": (MIXED_WITH_ATOMIC, "(0, 0, 0)", "(9, 0, 0)", "wrote it, with nothing to order"),
    "missing fence": (MISSING_FENCE, "(., 0, 0)", "(0, 0, 0)", "wrote it, with nothing to order"),
    "barrier after return": (
        BARRIER_AFTER_RETURN,
        "(0, 0, 0)",
        "(0, 0, 0)",
        "that other threads never reach",
    ),
    "two barriers": (TWO_BARRIERS, "(0, 0, 0)", "(0, 0, 0)", "waits at a barrier, others at another"),
}
BLOCKS = {"between blocks": 4, "missing fence": 4}


def expected(bug: bool, words: str) -> AbstractContextManager[Any]:
    """Expects the report of a planted bug, or none."""
    return pytest.raises(DeviceError, match=words) if bug else nullcontext()


def place(source: str, block: str, thread: str) -> str:
    """A regular expression for the place that a report must name."""
    line = source[: source.index("// here")].count("\n") + 1
    block, thread = (text.replace("(", r"\(").replace(")", r"\)") for text in (block, thread))
    return rf"^test: .*test\.cu:{line}: block {block} thread {thread} "


def run(checking: Bench, name: str, bug: int) -> None:
    source = BUGS[name][0]
    x = np.zeros(64, np.int32 if "int *x" in source else np.uint8 if "char *x" in source else np.float32)
    checking.kernel(HEAD + source, BUG=bug)(BLOCKS.get(name, 1), 64, 64, x, shared=16)


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_reported_with_its_place(checking: Bench, name: str) -> None:
    source, block, thread, what = BUGS[name]
    if name == "misaligned" and "clang" in compile.compiler()[1]:
        pytest.skip("clang++ checks no copies of whole vectors")
    with pytest.raises(DeviceError) as caught:
        run(checking, name, 1)
    assert re.search(place(HEAD + source, block, thread), str(caught.value)), caught.value
    assert re.search(what, str(caught.value)), caught.value


@pytest.mark.parametrize("name", BUGS)
def test_its_clean_twin_passes(checking: Bench, name: str) -> None:
    run(checking, name, 0)


@pytest.mark.skipif(shutil.which("clang++") is None, reason="there is no clang++")
@pytest.mark.parametrize("name", BUGS)
def test_clang_finds_them_too(checking: Bench, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "clang++")
    monkeypatch.setattr(compile, "compiler", compile.compiler.__wrapped__)
    test_its_clean_twin_passes(checking, name)
    test_a_bug_is_reported_with_its_place(checking, name)


def test_both_lines_of_a_race_are_named(checking: Bench) -> None:
    with pytest.raises(DeviceError, match=r"test\.cu:10: .*; .*test\.cu:6: .* wrote it"):
        run(checking, "missing barrier", 1)


def test_the_line_is_right_beside_a_kernel_with_many_arguments(checking: Bench) -> None:
    """Which once made it a line of another file."""
    source = """
    extern "C" __global__ void many(int a, double b, float c, const int *d, const float *e, int f,
                                         double *out)
    {
        out[0] = a, out[1] = b, out[2] = c, out[3] = d[0], out[4] = e != nullptr, out[5] = f;
    }

    extern "C" __global__ void test(int n, const float *x, float *y)
    {
        const int i = threadIdx.x;
        if (i < n)
            y[i] += x[i];  // here
    }"""
    with pytest.raises(DeviceError, match=place(source, "(0, 0, 0)", "(4, 0, 0)")):
        checking.kernel(source)(1, 8, 8, np.zeros(4, "f4"), np.zeros(8, "f4"))


def test_the_device_goes_on_after_a_report(checking: Bench) -> None:
    with pytest.raises(DeviceError):
        run(checking, "missing barrier", 1)
    run(checking, "missing barrier", 0)


def test_atomic_and_volatile_accesses_do_not_race_with_each_other_nor_reads_with_reads(
    checking: Bench,
) -> None:
    """Nor does a volatile store need what it writes to be written already."""
    source = """
    extern "C" __global__ void test(int *x, int *y)
    {
        const int seen = *(volatile int *)x + *x;
        atomicAdd(&y[0], emulated::load_acquire(&y[0]) + seen);
        ((volatile int *)y)[1] = 7;
        emulated::store_release(&y[1], 7);
    }"""
    y = DeviceArray.empty(checking.driver, (2,), "i4")
    y.rows(0, 1).set(np.zeros(1))
    checking.kernel(source)(3, 40, np.zeros(1, "i4"), y)
    assert y.to_host().tolist() == [0, 7]


def test_two_checking_devices_beside_each_other(checking: Bench) -> None:
    x = DeviceArray.from_host(checking.driver, np.ones(4, "f4"))
    other = EmulatedDriver(sanitize=True)
    (y,) = checking.kernel(READ)(1, 4, x, np.zeros(4, "f4"))[1:]
    other.close()
    assert np.all(y == 1)


READ = 'extern "C" __global__ void test(const float *x, float *y) { y[threadIdx.x] = x[threadIdx.x]; }'


def test_fresh_memory_is_poisoned_and_reading_it_is_reported(plain: Bench, checking: Bench) -> None:
    (y,) = plain.kernel(READ)(1, 4, DeviceArray.empty(plain.driver, (4,), "f4"), np.zeros(4, "f4"))[1:]
    assert np.all(np.isnan(y))
    with pytest.raises(DeviceError, match=r"test\.cu:1: .* reads memory that nobody has written"):
        checking.kernel(READ)(1, 4, DeviceArray.empty(checking.driver, (4,), "f4"), np.zeros(4, "f4"))


LATE = """
extern "C" __global__ void late(int nanoseconds, float *x)
{
    for (const long long start = clock64(); clock64() - start < nanoseconds;)
        ;
    x[0] = 1;
}
"""


def queue_late(checking: Bench, x: DeviceArray) -> None:
    """Queue a kernel that writes x after 50 ms."""
    checking.named("late", LATE).bind((1,), (1,), 50_000_000, x)(checking.stream)


@pytest.mark.parametrize("bug", [True, False])
def test_a_host_array_that_changes_before_it_is_copied(checking: Bench, bug: bool) -> None:
    driver, stream = checking.driver, checking.stream
    host = pinned(driver, (8,), "f4")
    host[:] = 1
    x = DeviceArray.empty(driver, (8,), "f4")
    queue_late(checking, x)
    x.queue_upload(host, stream)
    with expected(bug, r"host array of shape \(8,\) changed after copy_to_device"):
        if not bug:
            driver.synchronize_stream(stream)
        host[3] = 2
        driver.synchronize_stream(stream)


@pytest.mark.parametrize("bug", [True, False])
def test_memory_freed_while_a_stream_uses_it(checking: Bench, bug: bool) -> None:
    driver, stream = checking.driver, checking.stream
    x = DeviceArray.empty(driver, (8,), "f4")
    queue_late(checking, x)
    with expected(bug, "32 bytes of memory were freed while the kernel late") as caught:
        if not bug:
            driver.synchronize_stream(stream)
        driver.free(x.pointer)
        driver.synchronize_stream(stream)
    if bug:
        (note,) = caught.value.__notes__
        assert re.search(r"late\.cu:6: .* writes 4 bytes of memory that has been freed", note)


def test_a_copy_from_freed_memory(checking: Bench) -> None:
    driver = checking.driver
    x = DeviceArray.from_host(driver, np.zeros(8, "f4"))
    driver.free(x.pointer)
    with pytest.raises(DeviceError, match="32 bytes that are not allocated"):
        x.to_host()
