"""When a process and the mpirun above it began: seen from inside, and from where they were started."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.mpi import TIMEOUT, environment, mpirun

CODE = """
import time
first_line = time.perf_counter()
from pyrt.job.process_times import launch_start, process_start
print(launch_start(), process_start(), first_line)
"""
RESOLUTION = 0.1
"""Seconds: ticks of the clocks that are compared, and what a busy machine does between two looks at them."""


def test_mpirun_began_before_its_rank_and_that_before_its_first_line() -> None:
    before = time.perf_counter()
    done = mpirun(1, sys.executable, "-c", CODE)
    launch, process, first_line = map(float, done.stdout.split())
    assert before - RESOLUTION <= launch
    assert launch <= process
    assert process <= first_line + RESOLUTION


@pytest.mark.parametrize("name", ["mpirun", "hydra_pmi_proxy", "prterun", "orterun", "orterun_wrapper"])
def test_it_is_the_launcher_that_counts_not_the_rank(tmp_path: Path, name: str) -> None:
    """A launcher of that name that is slow to start its rank."""
    launcher = tmp_path / name
    launcher.write_text('#!/bin/sh\nsleep 0.2\n"$@"\nexit\n')
    launcher.chmod(0o755)
    before = time.perf_counter()
    printed = subprocess.check_output(
        [launcher, sys.executable, "-c", CODE], env=environment(), timeout=TIMEOUT
    )
    launch, process, _ = map(float, printed.split())
    assert before - RESOLUTION <= launch
    assert launch + 0.2 <= process + RESOLUTION


def test_without_a_launcher_the_process_itself_counts() -> None:
    code = "from pyrt.job.process_times import *; print(process_start() - launch_start())"
    printed = subprocess.check_output([sys.executable, "-c", code], env=environment(), timeout=TIMEOUT)
    assert float(printed) == 0


WIDTHS = """
import sys
from pyrt.job.process_times import terminal_columns
sys.stderr.write(f"{terminal_columns(1)} {terminal_columns(2)} ")
"""


@pytest.mark.parametrize("launcher", [[], ["mpirun", "-n", "1"]])
def test_the_terminal_is_the_launcher_s(launcher: Sequence[str]) -> None:
    """A rank under mpirun has pipes. A terminal that does not know its width is none."""
    command = [*launcher, sys.executable, "-c", WIDTHS]
    for columns, seen in ((57, "57"), (0, "None")):
        terminal, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        done = subprocess.run(
            command, env=environment(), stdout=inner, stderr=subprocess.PIPE, timeout=TIMEOUT, check=True
        )
        os.close(terminal)
        os.close(inner)
        assert done.stderr.split() == [seen.encode(), b"None"]
