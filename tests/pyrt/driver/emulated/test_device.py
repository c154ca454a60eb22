"""The emulated device at work: who waits for whom, what streams promise, what is compiled and cached."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing, nullcontext, suppress
from pathlib import Path

import numpy as np
import pytest

from pyrt.arrays import DeviceArray, pinned
from pyrt.driver.emulated import DeviceError, EmulatedDriver, compile
from pyrt.errors import UserError
from pyrt.kernels import KERNELS, all_constants, flatten, with_constants
from tests import few
from tests.mpi import TIMEOUT, environment
from tests.pyrt.driver.emulated.conftest import Bench

WAITS = {
    "plain volatile loads": "while (*(volatile int *)turn != mine) ;",
    "atomics": "while (atomicAdd(turn, 0) != mine) ;",
    "acquire": "while (emulated::load_acquire(turn) != mine) ;",
    "fences": "while (*(volatile int *)turn != mine) __threadfence();",
    "sleep": "while (*(volatile int *)turn != mine) __nanosleep(100);",
}
IN_TURN = """
// Each block waits for the one after it, which starts later; each thread 0 for the block's shared memory.
extern "C" __global__ void test(int *turn, int *order)
{
    __shared__ int mine;
    if (threadIdx.x == 0)
        mine = gridDim.x - 1 - blockIdx.x;
    __syncthreads();
    if (threadIdx.x == 33) {
        WAIT
        order[mine] = blockIdx.x;
        __threadfence();
        emulated::store_release(turn, mine + 1);
    }
    __syncthreads();
    if (mine != gridDim.x - 1 - blockIdx.x)
        order[0] = -1;
}
"""


class TestProgress:
    @pytest.mark.parametrize("wait", WAITS)
    @pytest.mark.parametrize("bench", few(["checking"], of=["plain", "checking"]))
    def test_blocks_that_wait_for_later_blocks(
        self, request: pytest.FixtureRequest, bench: str, wait: str
    ) -> None:
        kernel = request.getfixturevalue(bench).kernel(IN_TURN.replace("WAIT", WAITS[wait]))
        _, order = kernel(12, 64, np.zeros(1, np.int32), np.full(12, -2, np.int32))
        assert order.tolist() == list(range(11, -1, -1))

    def test_blocks_that_poll_in_different_ways(self, plain: Bench) -> None:
        """The last block first, then all in order: one that polls atomically was put back for one that polls
        by plain loads, and waits for it.
        """
        kernel = plain.kernel(f"""
        extern "C" __global__ void test(int *turn)
        {{
            const int mine = (blockIdx.x + 1) % gridDim.x;
            if (mine % 2)
                {WAITS["atomics"]}
            else
                {WAITS["plain volatile loads"]}
            __threadfence();
            *(volatile int *)turn = mine + 1;
        }}""")
        (turn,) = kernel(12, 1, np.zeros(1, np.int32))
        assert turn == 12

    @pytest.mark.parametrize("wait", [wait for wait in WAITS if wait != "plain volatile loads"])
    def test_threads_of_a_block_that_wait_for_later_threads(self, plain: Bench, wait: str) -> None:
        kernel = plain.kernel(f"""
        extern "C" __global__ void test(int *turn)
        {{
            const int mine = blockDim.x - 1 - threadIdx.x;
            {WAITS[wait]}
            *(volatile int *)turn = mine + 1;
        }}""")
        (turn,) = kernel(1, 40, np.zeros(1, np.int32))
        assert turn == 40

    @pytest.mark.parametrize("wait", WAITS)
    def test_kernels_of_two_streams_that_wait_for_each_other(self, plain: Bench, wait: str) -> None:
        ping = plain.named(
            "ping",
            f"""
        extern "C" __global__ void ping(int first, int *turn)
        {{
            for (int mine = first; mine < 6; mine += 2) {{
                {WAITS[wait]}
                __threadfence();
                *(volatile int *)turn = mine + 1;
            }}
        }}""",
        )
        turn = DeviceArray.from_host(plain.driver, np.zeros(1, np.int32))
        for first, stream in ((1, plain.stream), (0, plain.driver.create_stream())):
            ping.bind((1,), (1,), first, turn)(stream)
        assert turn.to_host() == 6

    def test_threads_that_wait_where_nobody_comes_are_reported(self, plain: Bench) -> None:
        kernel = plain.kernel("""
        extern "C" __global__ void test()
        {
            if (threadIdx.x == 1)
                __syncwarp();
            else
                __syncthreads();
        }""")
        with pytest.raises(DeviceError, match=r"test\.cu:7: .*thread \(0, 0, 0\) waits at a barrier for thr"):
            kernel(1, 2)

    def test_a_barrier_does_not_wait_for_threads_that_have_ended(self, plain: Bench) -> None:
        kernel = plain.kernel("""
        extern "C" __global__ void test(int *x)
        {
            if (threadIdx.x > 2)
                return;
            x[threadIdx.x] = __syncthreads_count(1);
        }""")
        (x,) = kernel(1, 40, np.zeros(4, np.int32))
        assert x.tolist() == [3, 3, 3, 0]


@pytest.mark.parametrize(
    ("grid", "block", "shared"),
    [
        ((0,), (32,), 0),
        ((1, 65536), (32,), 0),
        ((1,), (32, 33), 0),
        ((1,), (1, 1, 65), 0),
        ((1,), (1,), 232449),
    ],
)
def test_launches_that_a_gpu_refuses(
    plain: Bench, grid: tuple[int, ...], block: tuple[int, ...], shared: int
) -> None:
    kernel = plain.named("nothing", 'extern "C" __global__ void nothing() {}')
    launch = kernel.bind(grid, block, shared=shared)
    with pytest.raises(DeviceError, match=r"^nothing: grid .* a GPU takes 1 to"):
        launch(plain.stream)


@pytest.mark.parametrize(
    ("floats", "dynamic", "fits"),
    [
        (12288, 183296, True),
        (12289, 0, False),
        (12288, 183300, False),
    ],
)
def test_shared_memory_that_a_gpu_refuses(plain: Bench, floats: int, dynamic: int, fits: bool) -> None:
    """48 KiB for variables, 227 KiB in all."""
    kernel = plain.kernel(f"""
    extern "C" __global__ void test(float *x)
    {{
        __shared__ float a[{floats - 10}];
        __shared__ float b[10];
        extern __shared__ float c[];
        a[0] = b[0] = x[0];
        x[1] = a[0] + b[0];
    }}""")
    expected = nullcontext() if fits else pytest.raises(DeviceError, match=r"test\.cu:.* more shared memory")
    with expected:
        _, x = kernel(1, 1, np.ones(2, "f4"), shared=dynamic)[0]
        assert x == 2


def is_worker(task: Path) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return (task / "comm").read_text() == "emulated device\n"
    return False


@pytest.mark.parametrize(("value", "checks"), [("", False), ("0", False), ("1", True)])
def test_a_variable_turns_the_checks_on(value: str, checks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYRT_SANITIZE", value)
    with closing(EmulatedDriver()) as driver:
        assert driver.device_name.endswith("with checks") == checks


def test_workers_outlive_a_launch(plain: Bench) -> None:
    kernel = plain.kernel('extern "C" __global__ void test(int *x) { x[blockIdx.x] += 1; }')

    def workers() -> set[str]:
        (x,) = kernel(64, 1, np.zeros(64, np.int32))
        assert np.all(x == 1)
        return {task.name for task in Path("/proc/self/task").iterdir() if is_worker(task)}

    first = workers()
    assert first
    assert all(first <= workers() for _ in range(20))


FORKED = """
import os, signal, sys
from pathlib import Path

import numpy as np

from pyrt.driver.emulated import EmulatedDriver
from pyrt.kernels import KernelLibrary
from pyrt.arrays import DeviceArray

folder = Path(sys.argv[1])
(folder / "test.cu").write_text('extern "C" __global__ void test(int *x) { x[blockIdx.x] += 1; }')


def run():
    driver = EmulatedDriver()
    x = DeviceArray.from_host(driver, np.zeros(64, np.int32))
    kernel = KernelLibrary(driver, [folder], str(folder / "cache")).kernel("test", "test")
    kernel.bind((64,), (1,), x)(driver.create_stream())
    assert np.all(x.to_host() == 1)
    driver.close()


run()
child = os.fork()
signal.alarm(40)  # who waits for ever ends
run()
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_process_has_workers_of_its_own(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKED, str(tmp_path)]
    subprocess.run(command, env=environment(), timeout=TIMEOUT, check=True)


LATE = """
extern "C" __global__ void test(float *x)
{
    for (const long long start = clock64(); clock64() - start < 50000000;)
        ;
    x[0] += 1;
}
"""


def fail() -> None:
    raise ValueError("mine")


class TestStreams:
    def test_the_host_goes_on_and_a_missing_wait_shows(self, plain: Bench) -> None:
        plain.kernel(LATE)(1, 1, np.zeros(1, "f4"))
        x, seen = DeviceArray.from_host(plain.driver, np.zeros(1, "f4")), pinned(plain.driver, (1,), "f4")
        late = plain.named("test", LATE).bind((1,), (1,), x)
        before = time.perf_counter()
        late(plain.stream)
        assert time.perf_counter() - before < 0.04
        other = plain.driver.create_stream()
        x.queue_download(seen, other)
        plain.driver.synchronize_stream(other)
        assert seen == 0  # nobody has waited for the kernel
        assert x.to_host() == 1

    def test_the_interpreter_goes_on_while_a_kernel_runs(self, plain: Bench) -> None:
        plain.kernel(LATE)(1, 1, np.zeros(1, "f4"))
        x = DeviceArray.from_host(plain.driver, np.zeros(1, "f4"))
        event = plain.driver.create_event(timing=False)
        plain.named("test", LATE).bind((1,), (1,), x)(plain.stream)
        plain.driver.record(event, plain.stream)
        counted = 0
        while not plain.driver.is_done(event):
            counted += 1
        assert counted > 100

    def test_their_threads_end(self) -> None:
        driver = EmulatedDriver()
        before = threading.active_count()
        for _ in range(30):
            DeviceArray.from_host(driver, np.zeros(3)).to_host()
        driver.close()
        deadline = time.monotonic() + 5
        while threading.active_count() > before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert threading.active_count() <= before

    def test_an_error_is_raised_once_and_by_whoever_synchronises(self, plain: Bench) -> None:
        driver = plain.driver
        event = driver.create_event(timing=False)
        for synchronize in (
            driver.synchronize,
            lambda: driver.synchronize_stream(plain.stream),
            lambda: driver.synchronize_event(event),
        ):
            plain.stream.queue(fail)
            driver.record(event, plain.stream)
            with pytest.raises(ValueError, match="mine"):
                synchronize()
            driver.synchronize()

    def test_an_error_that_nobody_asked_for_is_raised_at_the_end(self) -> None:
        driver = EmulatedDriver()
        driver.create_stream().queue(fail)
        with pytest.raises(ValueError, match="mine"):
            driver.close()
        driver.close()


class TestCompile:
    def test_kernels_need_no_change_but_of_shared_declarations(self) -> None:
        files = sorted(KERNELS.rglob("*.cu"))
        assert files
        for file in files:
            constants = all_constants(file.read_text())[0]
            source = with_constants(flatten(file, [KERNELS], constants), constants)
            translated = compile.translate(source).split("\n")
            for before, after in zip(source.split("\n"), translated, strict=False):
                code = before.split("//")[0].strip()
                assert "__shared__" in before or not code or code in after

    def test_comments_go_and_strings_stay(self) -> None:
        source = '#line 3 "a//b.cu"\nint x; /* one\ntwo */ const char *s = "/* \\" //"; // three'
        expected = '#line 3 "a//b.cu"\nint x; \n const char *s = "/* \\" //";  \n'
        assert compile.translate(source) == expected

    @pytest.mark.parametrize("declaration", ["float a[3], b[4];", "int a = 3;"])
    def test_what_it_cannot_translate_is_named(self, declaration: str) -> None:
        with pytest.raises(UserError, match=r"each __shared__ variable.*: __shared__ " + declaration[:5]):
            compile.translate(f"void f() {{ __shared__ {declaration} }}")

    def test_the_compiler_is_the_one_that_is_there(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """$CXX, else g++, else clang++."""

        find = compile.compiler.__wrapped__
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("CXX", raising=False)
        with pytest.raises(UserError, match=r"needs a C\+\+ compiler: install g\+\+ or clang\+\+"):
            find()
        for name in ("clang++", "g++"):
            (tmp_path / name).write_text(f"#!/bin/sh\necho {name} 1.0\n")
            (tmp_path / name).chmod(0o755)
            assert find() == ([str(tmp_path / name)], f"{name} 1.0\n")
        monkeypatch.setenv("CXX", "clang++")
        assert find() == ([str(tmp_path / "clang++")], "clang++ 1.0\n")
        monkeypatch.setenv("CXX", "nothing++")
        with pytest.raises(UserError, match=r"\$CXX names nothing\+\+, which is not there"):
            find()

    def test_ctrl_c_is_for_the_ranks_alone(self, tmp_path: Path) -> None:
        """A terminal sends it to all of a group; what a rank then does is for the rank to say."""
        compiling = f"""if True:
            import signal
            from pyrt.driver.emulated import compile
            signal.signal(signal.SIGINT, lambda *_: None)
            compile._run(["sh", "-c", "touch {tmp_path}/begun; sleep 0.5; touch {tmp_path}/done"], "fails")
        """
        rank = subprocess.Popen([sys.executable, "-c", compiling], env=environment(), start_new_session=True)
        deadline = time.monotonic() + TIMEOUT
        while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.killpg(rank.pid, signal.SIGINT)
        assert rank.wait(TIMEOUT) == 0
        assert (tmp_path / "done").exists()

    def test_checked_and_plain_kernels_are_kept_apart(self, tmp_path: Path) -> None:
        source = 'extern "C" __global__ void test(int *x) { x[0] = 1; }'
        libraries = {compile.kernel_library(source, str(tmp_path), checked) for checked in (False, True)}
        assert len(libraries) == 2

    def test_another_version_of_the_names_or_the_compiler_compiles_anew(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = 'extern "C" __global__ void test(int *x) { x[0] = 1; }'
        first = compile.kernel_library(source, str(tmp_path), False)
        assert compile.kernel_library(source, str(tmp_path), False) == first
        command, version = compile.compiler()
        monkeypatch.setattr(compile, "compiler", lambda: (command, version + "!"))
        second = compile.kernel_library(source, str(tmp_path), False)
        names = tmp_path / "cuda_names.h"
        names.write_text(compile.NAMES.read_text() + "\n")
        monkeypatch.setattr(compile, "NAMES", names)
        third = compile.kernel_library(source, str(tmp_path), False)
        assert len({first, second, third}) == 3
