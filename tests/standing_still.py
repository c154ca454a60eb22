"""Tests that stand still end by themselves, with the stacks of all threads.

A clock runs for each test, from its set-up to the end of its tear-down. When it stops,

- a rank of a test of several prints its stacks, and the system ends it some seconds later, also inside MPI.
  mpiexec then ends the others, which have printed theirs, and the test fails: the next one gets new ranks;
- a test of this process alone fails where it is. Where Python cannot run, as inside a kernel, the stacks are
  printed and the process ends.

A long test that makes progress says so by `allow`. A rank that has failed waits for the others for a moment.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import wraps
from types import FrameType
from typing import ParamSpec, TextIO, TypeVar

import pytest
from pytest_mpi.plugin import CHILD_PROCESS_FLAG

Given, T = ParamSpec("Given"), TypeVar("T")

LIMIT = 50.0
"""Seconds without a word of progress."""

STARTING = 50.0
"""Seconds in which MPI and pytest start in a rank."""

GRACE = 5.0
"""Seconds between the first thing that is tried and the next."""

IS_RANK = CHILD_PROCESS_FLAG in os.environ
"""Whether this process is a rank that runs tests: see tests/rank_pool.py."""

_stderr: TextIO = sys.stderr
"""Where stacks go: not into what pytest captures, which is lost with the process."""

_SOON = 1.0
"""Seconds in which the thread that prints stacks is not started anew: a fuzz test makes much progress."""

_printing: tuple[float, float] | None = None
"""When that thread was started, and for how many seconds; None while there is none."""


def start() -> None:
    """Start the first clock, before MPI starts."""
    global _stderr
    if _stderr is sys.stderr:  # not again for each test of a rank
        _stderr = os.fdopen(os.dup(2), "w")
    if IS_RANK:
        allow(STARTING)
    else:
        signal.signal(signal.SIGALRM, _fail)


def allow(seconds: float | None = None) -> None:
    """Start the clock of the running test anew: it may take so many seconds from here (default: LIMIT)."""
    seconds = LIMIT if seconds is None else seconds
    if IS_RANK:
        _print_stacks_after(seconds)
        signal.setitimer(signal.ITIMER_REAL, seconds + GRACE)
    else:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        _print_stacks_after(seconds + GRACE)


def _print_stacks_after(seconds: float) -> None:
    global _printing
    now = time.monotonic()
    if _printing is not None and seconds == _printing[1] and now < _printing[0] + min(_SOON, seconds / 10):
        return
    faulthandler.dump_traceback_later(seconds, exit=not IS_RANK, file=_stderr)
    _printing = now, seconds


def progress(work: Callable[Given, T]) -> Callable[Given, T]:
    """Return what does the same, and then starts the clock anew: its end is progress."""

    @wraps(work)
    def working(*arguments: Given.args, **named: Given.kwargs) -> T:
        result = work(*arguments, **named)
        allow()
        return result

    return working


def stop() -> None:
    """Stop the clock."""
    global _printing
    signal.setitimer(signal.ITIMER_REAL, 0)
    faulthandler.cancel_dump_traceback_later()
    _printing = None


def _fail(number: int, frame: FrameType | None) -> None:
    pytest.fail("stands still")


class Clock:
    """The pytest plugin."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[object]:
        """Run a clock; not in the process that waits for ranks, which have their own."""
        if IS_RANK or not item.get_closest_marker("parallel"):
            allow()
        try:
            return (yield)
        finally:
            if IS_RANK:
                allow()  # the end of the session
            else:
                stop()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[object]:
        """Print a rank's failure at once, which the wait for the others may keep for ever."""
        report = yield
        if IS_RANK and report.failed and call.excinfo is not None:  # also where --tb=no leaves no text
            text = "".join(traceback.format_exception(call.excinfo.value))
            print(f"{item.name} failed on a rank:\n{text}", file=_stderr, flush=True)
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_exception_interact(self) -> None:
        """Start the clock that pytest has stopped."""
        allow(GRACE if IS_RANK else None)
