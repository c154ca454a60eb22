"""Records what happens in some steps of a run, on all ranks and on one clock; no profiler is needed.

    host             | batch iteration                                         |  phases
                       | forward           | backward        |
    MPI                                        | Iallreduce       |             from post to completion
    stream compute       | kernel | kernel | kernel | kernel        | kernel |   between two events each
    stream download                            | copy |

`Phases`, a `TracedDriver` (pyrt/timeline/driver.py) and a `TracedComm` (pyrt/timeline/comm.py) tell a
`Timeline` what they do. Outside of the recorded steps this costs them one look at a flag a call.
pyrt/timeline/clocks.py puts all clocks on one; pyrt/timeline/chrome.py writes the file.

    timeline = Timeline()
    job, driver = timeline.traced_job(job), timeline.traced_driver(driver)
    phases.timeline = timeline
    timeline.begin(streams, phases)  # around some steps that are launched, not replayed from graphs
    ..
    records = timeline.end(job)      # collective
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pyrt.driver import Driver, EventHandle, StreamHandle
from pyrt.timeline.clocks import Anchor, HostClock, anchor, compare_hosts

if TYPE_CHECKING:  # MPI must start first, and NumPy come after it (pyrt/job/__init__.py)
    from pyrt.job import Job
    from pyrt.phases import Phases
    from pyrt.streams import Streams

HOST, MPI, MEMORY = "host", "MPI", "copies"
"""Tracks that are no streams: phases; calls of MPI; copies, where the device is the host itself."""

PHASE, CALL, KERNEL, EXCHANGE, COPY, FILL, STEP = "phase", "mpi", "kernel", "exchange", "copy", "fill", "step"
"""Kinds of spans. An exchange is a kernel that works for one: over other GPUs' memory, or on messages."""


class Span(NamedTuple):
    """Something that took time, by this process's `time.perf_counter`; seconds."""

    track: str
    kind: str
    name: str
    start: float
    stop: float
    step: int
    """The step in which it began, counted from 1."""
    phase: str
    """The innermost phase in which it began."""
    nbytes: int | None = None


@dataclass(frozen=True)
class RankRecord:
    """The spans that one rank has recorded, and the errors of its clocks."""

    rank: int
    node: str
    device: str
    spans: list[Span]
    host_clock: HostClock
    device_clock_error: float
    """Seconds by which all times of streams may be wrong together."""


class _Queued(NamedTuple):
    """Work on a stream, between two events."""

    stream: StreamHandle
    kind: str
    name: str
    step: int
    phase: str
    nbytes: int | None
    start: EventHandle
    stop: EventHandle


class Timeline:
    """The recording of one rank between `begin` and `end`; it can be used once."""

    def __init__(self) -> None:
        self.is_on = False
        self.step = 0
        """The step that is queued, counted from 1."""
        self._spans: list[Span] = []
        self._queued: list[_Queued] = []
        self._tracks: dict[int, str] = {}
        """The track of each stream, by its id."""
        self._driver: Driver
        self._phases: Phases
        self._anchor: Anchor

    def traced_driver(self, driver: Driver) -> Driver:
        """Return a driver that tells this timeline of kernels and copies."""
        from pyrt.timeline.driver import TracedDriver

        traced: Any = TracedDriver(driver, self)
        return traced

    def traced_job(self, job: Job) -> Job:
        """Return a job whose communicator, and all made from it, tell this timeline of their calls."""
        from pyrt.timeline.comm import traced

        return replace(job, comm=traced(job.comm, self))

    def begin(self, streams: Streams, phases: Phases) -> None:
        """Record from here on; waits for the device, so that only what is queued from now on is recorded."""
        self._driver, self._phases = streams.driver, phases
        self._tracks = {id(stream): f"stream {name}" for name, stream in streams.by_name.items()}
        self._tracks[id(None)] = MEMORY
        self._driver.synchronize()
        self._anchor = anchor(self._driver, streams.compute)
        self.is_on = True

    def end(self, job: Job) -> list[RankRecord] | None:
        """Stop recording; return all ranks' records on rank 0, None on others. Collective."""
        self.is_on = False
        self._driver.synchronize()
        spans = [*self._spans, *map(self._span, self._queued)]
        self._spans, self._queued = [], []
        spans.sort(key=lambda span: span.start)
        record = RankRecord(
            job.rank,
            f"node of rank {job.node.bcast(job.rank)}",
            f"{self._driver.name}, {self._driver.device_name}",
            spans,
            compare_hosts(job.comm),
            self._anchor.error,
        )
        return job.comm.gather(record)

    def add(self, track: str, kind: str, name: str, start: float, nbytes: int | None = None) -> None:
        """Add a span that began at ``start`` on the host and ends now."""
        stop = time.perf_counter()
        self._spans.append(Span(track, kind, name, start, stop, self.step, self._phases.current, nbytes))

    def left(self, phase: str, entered: float, left: float) -> None:
        """Add a phase that the host has left."""
        self._spans.append(Span(HOST, PHASE, phase, entered, left, self.step, phase))

    @contextmanager
    def queued(self, stream: StreamHandle, kind: str, name: str, nbytes: int | None = None) -> Iterator[None]:
        """Add the work that is queued on the stream within the block."""
        start, stop = (self._driver.create_event(timing=True) for _ in range(2))
        self._driver.record(start, stream)
        yield
        self._driver.record(stop, stream)
        self._queued.append(_Queued(stream, kind, name, self.step, self._phases.current, nbytes, start, stop))

    def _span(self, work: _Queued) -> Span:
        """Read the events of queued work that is done."""
        start = self._anchor.time + self._driver.elapsed(self._anchor.event, work.start)
        stop = start + self._driver.elapsed(work.start, work.stop)
        track = self._tracks.setdefault(id(work.stream), f"stream {len(self._tracks)}")
        return Span(track, work.kind, work.name, start, stop, work.step, work.phase, work.nbytes)
