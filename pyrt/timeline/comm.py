"""A communicator that tells a timeline of its calls while it records.

A call that waits is recorded from start to end. One that does not wait is recorded from the call until a test
finds that it is over: it may have been so a little earlier.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from pyrt.timeline import CALL, Timeline
from pyrt.timeline import MPI as TRACK

WAITING = (
    *("Allreduce", "Barrier", "Bcast", "Gather", "Gatherv", "Recv", "Scatterv", "Send", "Sendrecv"),
    *("allgather", "allreduce", "bcast", "gather", "scatter"),
)
"""Calls that return when they are over."""

POSTING = ("Iallgatherv", "Iallreduce", "Ialltoallv", "Ibarrier", "Ibcast")
"""Calls that return a request."""


class TracedComm(MPI.Intracomm):
    """An intracommunicator; `traced` makes a class of it that knows its timeline."""

    timeline: Timeline

    def Split(self, color: int = 0, key: int = 0) -> MPI.Intracomm:
        return type(self)(super().Split(color, key))


class TracedRequest(MPI.Request):
    """A request that tells its timeline of its completion, once a test has found it."""

    timeline: Timeline
    call: str
    posted: float
    nbytes: int | None

    def Test(self, status: MPI.Status | None = None) -> bool:
        is_done = super().Test(status)
        if is_done and self.timeline.is_on and self.posted:
            self.timeline.add(TRACK, CALL, self.call, self.posted, self.nbytes)
            self.posted = 0.0
        return is_done


def traced(comm: MPI.Comm, timeline: Timeline) -> TracedComm:
    """Return the same communicator, whose calls are told to the timeline; so are those of its copies."""
    calls: dict[str, Any] = {"timeline": timeline}
    calls |= {name: _waiting(name) for name in WAITING} | {name: _posting(name) for name in POSTING}
    of_timeline: type[TracedComm] = type("TracedComm", (TracedComm,), calls)
    return of_timeline(comm)


def _waiting(name: str) -> Callable[..., Any]:
    plain = getattr(MPI.Intracomm, name)

    def call(self: TracedComm, *arguments: Any, **named: Any) -> Any:
        timeline = self.timeline
        if not timeline.is_on:
            return plain(self, *arguments, **named)
        start = time.perf_counter()
        result = plain(self, *arguments, **named)
        timeline.add(TRACK, CALL, name, start, _nbytes(arguments))
        return result

    return call


def _posting(name: str) -> Callable[..., MPI.Request]:
    plain = getattr(MPI.Intracomm, name)

    def call(self: TracedComm, *arguments: Any, **named: Any) -> MPI.Request:
        timeline = self.timeline
        if not timeline.is_on:
            request: MPI.Request = plain(self, *arguments, **named)
            return request
        posted = time.perf_counter()
        of_call = TracedRequest(plain(self, *arguments, **named))
        of_call.timeline, of_call.call = timeline, name
        of_call.posted, of_call.nbytes = posted, _nbytes(arguments)
        return of_call

    return call


def _nbytes(arguments: tuple[Any, ...]) -> int | None:
    """Return the bytes of the array that the call sends, where it is one."""
    nbytes = getattr(arguments[0], "nbytes", None) if arguments else None
    return nbytes if isinstance(nbytes, int) else None
