"""Comparison of clocks: a device's with its host's, and other nodes' with that of rank 0.

It is Cristian's algorithm (1989): ask the other clock, and note the times of question and answer. The clock
was read between these; their middle is wrong by half of the round trip at most. The quickest of several
tries is taken.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyrt.driver import Driver, EventHandle, StreamHandle

if TYPE_CHECKING:
    from mpi4py import MPI

TRIES = 32

Clock = Callable[[], float]


@dataclass(frozen=True)
class Anchor:
    """An event, and when the device passed it by the host's clock, wrong by up to ``error`` seconds."""

    event: EventHandle
    time: float
    error: float


def anchor(driver: Driver, stream: StreamHandle) -> Anchor:
    """Mark a place in a stream that has nothing to do, and find out when it was passed."""
    found = []
    for _ in range(TRIES):
        event = driver.create_event(timing=True)
        asked = time.perf_counter()
        driver.record(event, stream)
        driver.synchronize_event(event)
        answered = time.perf_counter()
        found.append(Anchor(event, (asked + answered) / 2, (answered - asked) / 2))
    return min(found, key=lambda one: one.error)


@dataclass(frozen=True)
class HostClock:
    """Seconds to add to a rank's `time.perf_counter` to have that of rank 0; wrong by up to ``error``."""

    offset: float
    error: float


def compare_hosts(comm: MPI.Comm, clock: Clock = time.perf_counter, name: str | None = None) -> HostClock:
    """Compare this rank's clock with that of rank 0. Collective.

    ``name`` names the clock: ranks whose clocks have the same name read the same one.
    """
    names = comm.allgather(name if name is not None else clock_name())
    own = HostClock(0.0, 0.0)
    for rank in range(1, comm.size):
        if names[rank] == names[0]:
            continue
        if comm.rank == 0:
            _answer(comm, rank, clock)
        elif comm.rank == rank:
            own = _ask(comm, clock)
    return own


def clock_name() -> str:
    """Name the clock behind `time.perf_counter`: that of a Linux machine since it was started."""
    parts = []
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/time"))  # a container may shift the clock
    return " ".join(parts)


def _ask(comm: MPI.Comm, clock: Clock) -> HostClock:
    found = []
    for _ in range(TRIES):
        asked = clock()
        comm.send(None, 0)
        theirs = comm.recv(source=0)
        answered = clock()
        found.append(HostClock(theirs - (asked + answered) / 2, (answered - asked) / 2))
    return min(found, key=lambda one: one.error)


def _answer(comm: MPI.Comm, rank: int, clock: Clock) -> None:
    for _ in range(TRIES):
        comm.recv(source=rank)
        comm.send(clock(), rank)
