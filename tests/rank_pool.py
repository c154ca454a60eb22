"""Runs the tests of several ranks in processes that stay: an mpiexec for each number of ranks.

To start MPI, NumPy and pytest takes each rank a second or more, most tests far less. So the ranks of

    mpiexec -n N python -m tests.rank_pool SOCKET

wait for the names of tests on a socket, run each as pytest does, and answer with its exit code. After a test
that fails or hangs its ranks are ended: the next test gets new ones.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TextIO

import pytest
from pytest_mpi.plugin import CHILD_PROCESS_FLAG, _extract_nprocs_for_single_test

from tests import standing_still
from tests.mpi import environment, naps

MOST_TESTS = 100
"""Tests that the same ranks run: what tests leave in MPI, as communicators, does not add up for ever."""

_ENDING = 20.0
"""Seconds in which mpiexec ends once a rank is gone."""

_LOOK = 1.0
"""Seconds between two looks at ranks that start."""

_ENVIRONMENT = environment({CHILD_PROCESS_FLAG: "1"})
"""Of the ranks: as it is now, before tests change it for themselves."""


class RankPool:
    """The ranks of one mpiexec."""

    def __init__(self, ranks: int, folder: Path) -> None:
        """Start them in this folder; AssertionError where they do not start."""
        self.left = MOST_TESTS
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115 (it is read after the ranks' end)
        self._ranks: list[TextIO] = []
        with tempfile.TemporaryDirectory(prefix="ranks-") as place, socket.socket(socket.AF_UNIX) as listener:
            address = f"{place}/socket"
            listener.bind(address)
            listener.listen(ranks)
            listener.settimeout(_LOOK)
            self._process = subprocess.Popen(
                ["mpiexec", "-n", str(ranks), sys.executable, "-m", "tests.rank_pool", address],
                cwd=folder,
                env={**_ENVIRONMENT, **naps()},
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            latest = time.monotonic() + standing_still.STARTING
            while len(self._ranks) < ranks:
                try:
                    self._ranks.append(listener.accept()[0].makefile("rw"))
                except TimeoutError:
                    if self._process.poll() is not None or time.monotonic() > latest:
                        raise AssertionError(f"{ranks} ranks do not start:\n{self.end()}") from None

    def run(self, test: str) -> str:
        """Run a test on all ranks; empty where it passes, else what they printed. Then they are gone."""
        self.left -= 1
        self._output.seek(0)
        self._output.truncate()
        with suppress(OSError):  # a rank that is gone shows below
            for rank in self._ranks:
                rank.write(f"{json.dumps(test)}\n")
                rank.flush()
        if all(_answer(rank) == "0\n" for rank in self._ranks):
            return ""
        return f"{self.end()}\n{test} failed on {len(self._ranks)} ranks"

    def end(self) -> str:
        """End the ranks; what they printed."""
        for rank in self._ranks:
            with suppress(OSError):
                rank.close()
        try:
            self._process.wait(_ENDING)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._output.seek(0)
        return self._output.read()


def _answer(rank: TextIO) -> str:
    """What a rank says next; empty where it is gone."""
    try:
        return rank.readline()
    except OSError:
        return ""


_pools: dict[int, RankPool] = {}


@atexit.register
def _end_all() -> None:
    while _pools:
        _pools.popitem()[1].end()


def run_on_ranks(ranks: int, test: str, folder: Path) -> None:
    """Run a test on so many ranks; it fails here where it fails on one of them."""
    pool = _pools.pop(ranks, None) or RankPool(ranks, folder)
    try:
        printed = pool.run(test)
    except BaseException:  # as Ctrl-C
        pool.end()
        raise
    if printed:
        pytest.fail(printed, pytrace=False)
    if pool.left:
        _pools[ranks] = pool
    else:
        pool.end()


def ranks_of(item: pytest.Item) -> int:
    """Return on how many ranks a test runs."""
    return _extract_nprocs_for_single_test(item) if item.get_closest_marker("parallel") else 1


@pytest.hookimpl(trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Take the place of what mpi-pytest has set up: an mpiexec for this test."""
    ranks = 1 if standing_still.IS_RANK else ranks_of(item)
    if ranks > 1:
        test = partial(run_on_ranks, ranks, item.nodeid, item.config.rootpath)
        item.obj = lambda *arguments, **fixtures: test()


class _Orders:
    """The pytest plugin of a rank: it runs the tests of a file as their names come.

    A session for each file, not for each test: pytest takes longer to start one than most tests take.
    """

    def __init__(self, pool: TextIO) -> None:
        self._pool = pool
        self._failed = False
        self._wait()

    @property
    def file(self) -> str:
        """The file of the next test; empty where there is none."""
        return self._test.split("::")[0]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed |= report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run tests until one of another file is asked for."""
        items = {item.nodeid: item for item in session.items}
        file = self.file
        while self.file == file and self._test in items:
            self._failed = False
            item = items[self._test]
            item.ihook.pytest_runtest_protocol(item=item, nextitem=None)  # all fixtures end with the test
            gc.collect()
            gc.freeze()  # modules, mostly
            self.answer(int(self._failed))
        return True

    def answer(self, code: int) -> None:
        """Say how a test has ended; wait for the next."""
        sys.stdout.flush()
        with suppress(BrokenPipeError):  # another rank's test has failed, and nobody listens any more
            self._pool.write(f"{code}\n")
            self._pool.flush()
        self._wait()

    def _wait(self) -> None:
        standing_still.stop()
        line = self._pool.readline()
        self._test: str = json.loads(line) if line else ""
        standing_still.allow()


def _serve(address: str) -> None:
    """Run the tests that come, on one rank."""
    from mpi4py import MPI  # noqa: F401 (starts MPI before anything else does)

    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        options = ["--runxfail", "-s", "-q", "--no-header", "--no-summary", "-p", "no:cacheprovider"]
        orders = _Orders(connection.makefile("rw"))
        while file := orders.file:
            code = pytest.main([*options, file], [orders])
            if orders.file == file:  # pytest did not come to the test
                orders.answer(int(code) or 1)


if __name__ == "__main__":
    _serve(sys.argv[1])
