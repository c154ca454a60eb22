"""Memory of several processes on the emulated device: what is left of a killed one, what is checked."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyrt.arrays import DeviceArray, pinned
from pyrt.driver.emulated import DeviceError, EmulatedDriver
from pyrt.errors import UserError
from pyrt.job import Job
from tests import few
from tests.mpi import environment
from tests.pyrt.driver.emulated.conftest import Bench
from tests.pyrt.exchange.test_peer_flags import has_the_bits_of_numpy
from tests.pyrt.exchange.trainer import BUCKETS
from tests.pyrt.sharing import use_each_others_memory

N = 1 << 20
"""Floats that a peer exports: 4 MiB."""

PEER = f"""
import sys
import numpy as np
from pyrt.driver.emulated import EmulatedDriver
from pyrt.arrays import DeviceArray

driver = EmulatedDriver()
x = DeviceArray.from_host(driver, np.arange({N}, dtype=np.float32))
print(x.export().hex(), flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


class Peer:
    """Another process with an array x of ``N`` floats that it has exported."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PEER],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.handle = bytes.fromhex(self._line())

    def run(self, code: str) -> None:
        """Let it run a line of Python."""
        assert self.process.stdin is not None
        self.process.stdin.write(code + "\n")
        self.process.stdin.flush()
        assert self._line() == "done\n"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.kill()


@pytest.fixture(scope="module")
def lender() -> Iterator[Peer]:
    """One for several tests."""
    peer = Peer()
    yield peer
    peer.kill()


def imported(bench: Bench, peer: Peer) -> DeviceArray:
    return DeviceArray.imported(bench.driver, peer.handle, (N,), "f4")


def shared_files(pid: int | str) -> list[str]:
    """Files of shared memory that a process has open or mapped; of no others is there any memory."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    mapped = [line.split(maxsplit=5)[5] for line in lines if line.split()[1] == "rw-s"]
    numbers = filter(os.path.lexists, Path(f"/proc/{pid}/fd").iterdir())
    return [file for file in (*mapped, *map(os.readlink, numbers)) if re.match("/(memfd|dev/shm)", file)]


class TestLifetime:
    def test_nothing_of_a_killed_process_is_left(self, plain: Bench, peer: Peer) -> None:
        """What it shared has no name that could be left, and goes when the last who uses it lets go."""
        files = shared_files(peer.process.pid)
        assert len(files) == 2 and all(re.fullmatch(r"/memfd:pyrt-\w+ \(deleted\)", file) for file in files)
        before = shared_files("self")
        x = imported(plain, peer)
        os.kill(peer.process.pid, signal.SIGKILL)
        peer.process.wait()
        np.testing.assert_array_equal(x.to_host(), np.arange(N))
        assert shared_files("self") != before
        plain.driver.release_memory(x.pointer)
        assert shared_files("self") == before
        with pytest.raises(UserError, match="No such file"):
            imported(plain, peer)

    def test_what_is_exported_is_freed_like_other_memory(self, plain: Bench) -> None:
        before = shared_files("self")
        x = DeviceArray.from_host(plain.driver, np.ones(N, "f4"))
        x.export()
        assert len(shared_files("self")) == len(before) + 2
        plain.driver.free(x.pointer)
        assert shared_files("self") == before

    def test_a_closed_driver_keeps_nothing(self, peer: Peer) -> None:
        before = shared_files("self")
        driver = EmulatedDriver()
        DeviceArray.from_host(driver, np.ones(N, "f4")).export()
        DeviceArray.imported(driver, peer.handle, (N,), "f4")
        assert len(shared_files("self")) == len(before) + 3
        driver.close()
        assert shared_files("self") == before

    def test_what_was_freed_is_not_taken_for_what_came_after(self, plain: Bench, peer: Peer) -> None:
        """Another file has got its number."""
        peer.run("driver.free(x.pointer); y = DeviceArray.from_host(driver, np.ones(4, 'f4')); y.export()")
        with pytest.raises(UserError, match=r"cannot be used \(it is no longer there\): ranks that share"):
            imported(plain, peer)

    def test_an_export_loses_nothing_that_is_under_way(self, plain: Bench) -> None:
        x = DeviceArray.from_host(plain.driver, np.zeros(1, "f4"))
        event = plain.driver.create_event(timing=False)
        late(plain, x)
        plain.driver.record(event, plain.stream)
        x.export()
        assert plain.driver.is_done(event)
        assert x.to_host() == 1


LATE = """
extern "C" __global__ void late(float *x)
{
    for (const long long start = clock64(); clock64() - start < 20000000;)
        ;
    x[0] = 1;
}
"""


def late(bench: Bench, x: DeviceArray) -> None:
    """Queue a kernel that writes x after 20 ms."""
    bench.named("late", LATE).bind((1,), (1,), x)(bench.stream)


DOUBLE = """// constants: BUG=0|1
extern "C" __global__ void test(int n, const float *x, float *y)
{
    y[threadIdx.x] = 2 * x[n - 8 + threadIdx.x + BUG];  // here
}
"""


def expected(bug: bool, words: str) -> AbstractContextManager[Any]:
    return pytest.raises(DeviceError, match=words) if bug else nullcontext()


class TestChecks:
    def test_what_others_may_have_written_counts_as_written(self, checking: Bench, lender: Peer) -> None:
        kernel = checking.kernel(DOUBLE, BUG=0)
        _, y = kernel(1, 8, N, imported(checking, lender), np.zeros(8, "f4"))
        np.testing.assert_array_equal(y, 2 * np.arange(N - 8, N))
        mine = DeviceArray.empty(checking.driver, (8,), "f4")
        mine.export()
        kernel(1, 8, 8, mine, np.zeros(8, "f4"))

    @pytest.mark.parametrize("bug", [True, False])
    def test_out_of_bounds(self, checking: Bench, lender: Peer, bug: bool) -> None:
        with expected(bug, r"^test: .*test\.cu:4: .*thread \(7, 0, 0\) reads 4 bytes out of bounds"):
            checking.kernel(DOUBLE, BUG=int(bug))(1, 8, N, imported(checking, lender), np.zeros(8, "f4"))

    def test_released(self, checking: Bench, lender: Peer) -> None:
        x = imported(checking, lender)
        checking.driver.release_memory(x.pointer)
        with pytest.raises(DeviceError, match=r"^test: .*test\.cu:4: .* of memory that has been freed"):
            checking.kernel(DOUBLE, BUG=0)(1, 8, N, x, np.zeros(8, "f4"))

    @pytest.mark.parametrize("bug", [True, False])
    @pytest.mark.parametrize("how", ["released", "freed"])
    def test_let_go_while_a_stream_uses_it(self, checking: Bench, lender: Peer, how: str, bug: bool) -> None:
        driver = checking.driver
        let_go: Callable[[int], None] = driver.free if how == "freed" else driver.release_memory
        y, seen = DeviceArray.from_host(driver, np.zeros(1, "f4")), pinned(driver, (N,), "f4")
        if how == "freed":
            x = DeviceArray.from_host(driver, np.zeros(N, "f4"))
            x.export()
        else:
            x = imported(checking, lender)
        late(checking, y)
        x.queue_download(seen, checking.stream)
        with expected(bug, f"{4 * N} bytes of memory were {how} while a copy to the host still uses them"):
            if not bug:
                driver.synchronize_stream(checking.stream)
            let_go(x.pointer)
            driver.synchronize_stream(checking.stream)


@pytest.mark.parallel([2])
def test_ranks_use_each_others_memory_under_the_checks(job: Job) -> None:
    """In other orders too: kernels that wait for each other go on, and nothing is reported."""
    for sanitize, seed in ((True, None), (True, 0), (False, 1)):
        driver = EmulatedDriver(sanitize, seed)
        use_each_others_memory(driver, job)
        driver.close()


@pytest.mark.parallel([3])
@pytest.mark.parametrize("kind", few(["peer"], of=["peer", "peer flags"]))
def test_ranks_train_over_peer_memory_under_the_checks(job: Job, kind: str) -> None:
    """In other orders too: the same bits, and nothing is reported."""
    orders = [(True, None), (True, 0), (False, 1), (False, 2)]
    for sanitize, seed in few(orders[1:3], of=orders):
        driver = EmulatedDriver(sanitize, seed)
        for case in ("ragged", "with a loss"):
            has_the_bits_of_numpy(kind, driver, job, BUCKETS[case], np.dtype("f4"), steps=5)
        driver.close()
