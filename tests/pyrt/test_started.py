"""When a process and the mpirun above it began: seen from inside, and from where they were started."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tests.mpi import TIMEOUT, environment, finish, start

CODE = """
import time
first_line = time.perf_counter()
from pyrt.started import launch_start, process_start
print(launch_start(), process_start(), first_line)
"""
RESOLUTION = 0.03
"""Seconds: a few ticks of the clocks that are compared."""


def test_the_launcher_began_before_its_ranks_and_they_before_their_first_line() -> None:
    before = time.perf_counter()
    job = start(2, sys.executable, "-c", CODE)
    after = time.perf_counter()  # mpirun runs by now
    done = finish(job)
    ranks = [tuple(map(float, line.split())) for line in done.stdout.splitlines()]
    assert len(ranks) == 2, done
    for launch, process, first_line in ranks:
        assert before - RESOLUTION <= launch <= after + RESOLUTION
        assert launch <= process + RESOLUTION
        assert process <= first_line + RESOLUTION


def test_it_is_the_launcher_that_counts_not_the_rank(tmp_path: Path) -> None:
    """A launcher that is slow to start its rank."""
    launcher = tmp_path / "mpirun"
    launcher.write_text('#!/bin/sh\nsleep 0.3\n"$@"\nexit\n')
    launcher.chmod(0o755)
    before = time.perf_counter()
    printed = subprocess.check_output(
        [launcher, sys.executable, "-c", CODE], env=environment(), timeout=TIMEOUT
    )
    launch, process, _ = map(float, printed.split())
    assert before - RESOLUTION <= launch
    assert launch + 0.3 <= process + RESOLUTION


def test_without_a_launcher_the_process_itself_counts() -> None:
    code = "from pyrt.started import launch_start, process_start; print(process_start() - launch_start())"
    printed = subprocess.check_output([sys.executable, "-c", code], env=environment(), timeout=TIMEOUT)
    assert abs(float(printed)) < RESOLUTION
