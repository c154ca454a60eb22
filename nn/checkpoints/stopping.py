"""At which step all ranks stop, where some of them were asked to.

Ranks get a signal at different times, some of them none. What one of them knows the others learn from a
non-blocking sum that begins after a step and is read an interval later: at the same step on every rank, when
it is long over. The interval in steps follows from how fast steps end on the device, not from how fast
the host queues them.
"""

from __future__ import annotations

import time

import numpy as np
from mpi4py import MPI

from pyrt.job import Job
from pyrt.job.signals import stop_was_asked

SECONDS = 0.2
"""Between two looks."""

_MOST = 1 << 20
"""Steps between them."""

_MOMENT = 1.0
"""Seconds for ranks that have met all the same to end their sum."""


class Stopping:
    """Made and asked at the same steps on all ranks."""

    def __init__(self, job: Job, step: int) -> None:
        """Before that step. Collective."""
        self._job, self._comm = job, job.comm.Dup()
        self._mine, self._all = np.zeros(2, np.int64), np.zeros(2, np.int64)
        self._request: MPI.Request = MPI.REQUEST_NULL
        self._done, self._since = step, time.perf_counter()
        self._next = step + 1
        self._is_agreed = False

    def is_agreed(self, step: int, done: int) -> bool:
        """Return whether all ranks stop after so many steps, of which this rank knows ``done`` to be over."""
        if step < self._next:
            return False
        if self._request != MPI.REQUEST_NULL:
            while not self._request.Test():
                self._job.pause()
            if self._all[0]:
                return True
        interval = max(1, int(self._all[1]))
        self._mine[:] = stop_was_asked(), self._interval(done) if self._job.rank == 0 else 0
        self._request = self._comm.Iallreduce(self._mine, self._all, MPI.MAX)
        self._next = step + interval
        return False

    def is_agreed_now(self) -> bool:
        """Return whether any rank was asked to stop by now. Collective."""
        self._job.wait_for_all()
        return bool(self._job.comm.allreduce(stop_was_asked(), MPI.LOR))

    def close(self) -> None:
        """Wait for the pending sum, a moment at most: after an exception the other ranks may never come."""
        give_up = time.perf_counter() + _MOMENT
        while not self._request.Test():
            if time.perf_counter() > give_up:
                return
            self._job.pause()
        self._job.leave(self._comm)

    def _interval(self, done: int) -> int:
        """Steps of `SECONDS`, by those that ended since the last look."""
        now = time.perf_counter()
        pace = (done - self._done) / max(now - self._since, 1e-9)
        self._done, self._since = done, now
        return max(1, min(_MOST, int(pace * SECONDS)))
