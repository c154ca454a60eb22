"""Graphs: work of several launches and copies, captured once and replayed with one call.

Those of a training step: nn/train/replay.py. A launch costs the host some microseconds, often more than the
device needs for it; a replay costs that once for all it holds. Bind the launches and allocate first, then::

    with capture(driver, streams.compute) as graph:
        first(streams.compute)
        second(streams.compute)
    for _ in range(steps):
        graph(streams.compute)

Nothing runs during the capture. What is captured are the calls with their arguments: each replay reads and
writes the same memory, device and (pinned) host, with what is in it by then.

A `Recorder` does the same for work that phases divide and that the host must interrupt: the phases keep their
calls and device times, and what no graph can hold is called between two graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from pyrt.driver import Driver, EventHandle, StreamHandle
from pyrt.errors import UserError
from pyrt.phases import Phase, Phases


class Graph:
    """Captured work, to be queued on a stream any number of times, like a `Launch`; one replay at a time."""

    __slots__ = ("call",)

    def __init__(self) -> None:
        self.call: Callable[[StreamHandle], None] = _not_yet

    def __call__(self, stream: StreamHandle) -> None:
        self.call(stream)


def _not_yet(stream: StreamHandle) -> None:
    raise RuntimeError("this graph's capture has not ended well: there is nothing to replay")


@contextmanager
def capture(driver: Driver, stream: StreamHandle) -> Iterator[Graph]:
    """Capture what the stream is given within the block; the graph can be replayed after it.

    Other streams take part from where they wait for an event that was recorded in the block; at its end the
    first stream must have waited for all of them. An event that is to be asked outside, for times, is
    recorded by `Driver.record_in_graph`. See `Driver.begin_capture` for what must not be done meanwhile.

    The stream can be used again where the block raises, too. Raises RuntimeError where no graph comes of it.
    """
    graph = Graph()
    driver.begin_capture(stream)
    try:
        yield graph
    except BaseException:
        with suppress(RuntimeError, UserError):  # what went wrong is on its way already
            driver.end_capture(stream)
        raise
    graph.call = driver.end_capture(stream)


Call = Callable[[], object]


class Replay:
    """Recorded work, to be run any number of times: graphs, and what is called after each of them."""

    def __init__(self, driver: Driver, stream: StreamHandle, phases: Phases) -> None:
        self._driver, self._stream, self._phases = driver, stream, phases
        self._replaying = phases.phase("graph replay")
        self.pieces: list[tuple[Graph, list[Call]]] = []
        self.entered: list[Phase] = []
        """The phases in it, each as often as it is entered."""
        self.timed: list[tuple[Phase, EventHandle, EventHandle]] = []
        """Phases with the events at their start and end."""
        self._done = driver.create_event(timing=False)
        self._runs = 0
        self._unread = False
        self._used = False

    def __call__(self) -> None:
        """Queue it all, in this order."""
        if not self._used:
            self._use()
        self._runs += 1
        if self._unread and self._driver.is_done(self._done):
            self._read()
        for graph, after in self.pieces:
            with self._replaying:
                graph.call(self._stream)
            for call in after:
                call()
        if self.timed:
            # The graph's own events do not say whether they are this replay's.
            self._driver.record(self._done, self._stream)
            self._unread = True

    def settle(self) -> None:
        """Add what was run since the last time to its phases; waits for the last replay if it is timed."""
        if self._unread:
            self._driver.synchronize_event(self._done)
            self._read()
        for phase in self.entered:
            phase.calls += self._runs
        self._runs = 0

    def _use(self) -> None:
        self._used = True
        self._phases.use(self._replaying)
        for phase in self.entered:
            self._phases.use(phase)

    def _read(self) -> None:
        for phase, start, stop in self.timed:
            if phase.timer is not None:
                phase.timer.add(self._driver.elapsed(start, stop))
        self._unread = False


class Recorder:
    """Makes replays of what queues work on one stream."""

    def __init__(self, driver: Driver, stream: StreamHandle, phases: Phases) -> None:
        self._driver, self._stream, self._phases = driver, stream, phases
        self._replay: Replay | None = None
        """The one that is recorded at the moment."""
        # Of the recording that goes on:
        self._capture: ExitStack
        self._timed: bool
        self._starts: dict[Phase, EventHandle]
        self._last: list[Call]

    def record(self, work: Call, timed: bool = False) -> Replay:
        """Have ``work`` queue what it queues once, without doing it, as a replay.

        Each replay counts as a call of every phase entered in it, and takes no host time of them. With
        ``timed`` it holds events that time them on the device. The rules of `capture` are ``work``'s too.
        """
        self._replay = replay = Replay(self._driver, self._stream, self._phases)
        self._timed, self._starts, self._last = timed, {}, []
        try:
            with ExitStack() as self._capture, self._phases.noted(self):
                self._begin(replay)
                work()
        finally:
            self._replay = None
        replay.pieces[-1][1].extend(self._last)
        self._phases.add_replays(replay)
        return replay

    def launch(self, work: Call) -> None:
        """Do at once, without a graph, what a replay of this ``work`` would do."""
        self._last = []
        work()
        for call in self._last:
            call()

    def between(self, call: Call) -> None:
        """Record that every replay calls this once the work so far is queued; for use within ``work``."""
        if self._replay is None:
            call()
            return
        self._capture.close()
        self._replay.pieces[-1][1].append(call)
        self._begin(self._replay)

    def at_end(self, call: Call) -> None:
        """Record that every replay calls this once all work is queued; for use within ``work``."""
        self._last.append(call)

    def _begin(self, replay: Replay) -> None:
        graph = self._capture.enter_context(capture(self._driver, self._stream))
        replay.pieces.append((graph, []))

    def enter(self, phase: Phase) -> None:
        """Note a phase's start."""
        assert self._replay is not None
        self._replay.entered.append(phase)
        if self._timed and phase.timer is not None:
            self._starts[phase] = self._mark(phase.timer.stream)

    def leave(self, phase: Phase) -> None:
        """Note a phase's end."""
        if phase in self._starts and phase.timer is not None and self._replay is not None:
            self._replay.timed.append((phase, self._starts.pop(phase), self._mark(phase.timer.stream)))

    def _mark(self, stream: StreamHandle) -> EventHandle:
        event = self._driver.create_event(timing=True)
        self._driver.record_in_graph(event, stream)
        return event
