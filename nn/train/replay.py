"""How steps get onto the device: their operations launched one by one, or replayed from graphs.

A launch costs the host more than many a kernel takes. A graph holds a step, or several of them where all of
a step stays on the device; where the exchange leaves it, the operations between two of its calls. Which
batch a step is for it finds on the device (kernels/nn/batch.cuh), so the same graph serves all of a size.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Protocol

from nn.input.schedule import Schedule
from nn.program.step import EmptyStep, TrainingStep
from pyrt.arrays import DeviceArray
from pyrt.exchange import Exchange
from pyrt.graphs import Recorder
from pyrt.redistribute import Bound, Redistribution, Redistributor

MOST = 8
"""Steps in the largest graph: a launch for each eighth step costs next to nothing."""

_TIMED_FIRST = 5
_TIMED_EVERY = 127
"""Steps 1 to 4 (step 0 warms up), and then every 127th are replayed from graphs that hold events, to time the
phases. These take longer, by 70 us where a step takes 52: so many of them cost a run 1%. A prime: it meets
full and short batches alike."""


class Run(NamedTuple):
    """Consecutive steps that are queued at once."""

    first: int
    steps: int
    timed: bool

    @property
    def stop(self) -> int:
        """The step behind the last one."""
        return self.first + self.steps


def is_timed(step: int, steps: int) -> bool:
    """Return whether a run of so many steps times the phases of this step in its graph."""
    return 0 < step < _TIMED_FIRST or (step > 0 and step % _TIMED_EVERY == 0) or steps == 1


def next_run(schedule: Schedule, step: int, stop: int, most: int, ends: Sequence[int]) -> Run:
    """Choose the steps from this one on, 1, 2, 4, .. up to ``most`` of them, that one graph replays.

    A step that is timed, and a short last one, are runs of their own; no run crosses ``stop``, the end of an
    epoch, or a multiple of one of the ``ends``.
    """
    if is_timed(step, schedule.steps):
        return Run(step, 1, True)
    ends_of_epochs = (schedule.epoch(step) + 1) * schedule.batches
    stop = min(stop, ends_of_epochs, step + most, *(step - step % end + end for end in ends))
    count = 1
    while (
        step + count < stop
        and schedule.size(step + count) == schedule.batch
        and not is_timed(step + count, schedule.steps)
    ):
        count += 1
    return Run(step, 1 << (count.bit_length() - 1), False)


class Steps(Protocol):
    """The steps of one batch size."""

    def start(self, count: int, timed: bool) -> None:
        """Queue so many of them, or of a single one all that comes before the end of its exchange."""

    def launch(self) -> None:
        """Queue one of them as ``start`` does, but launch each of its operations."""

    def finish(self) -> None:
        """Queue what ``start`` has left."""


class Launched:
    """Each operation is launched, one step at a time."""

    def __init__(self, step: TrainingStep | EmptyStep, exchange: Exchange) -> None:
        self._step, self._exchange = step, exchange

    def start(self, count: int, timed: bool) -> None:
        self._step.run()

    def launch(self) -> None:
        self._step.run()

    def finish(self) -> None:
        self._exchange.finish()


class Replayed:
    """Graphs of a step, captured when this is made."""

    def __init__(
        self,
        step: TrainingStep | EmptyStep,
        exchange: Exchange,
        recorder: Recorder,
        most: int,
    ) -> None:
        """Capture graphs of up to ``most`` steps at once; ``step`` has a `Gate` for its exchange."""
        self._step, self._exchange, self._recorder = step, exchange, recorder
        self._timed = recorder.record(partial(self._work, 1), timed=True)
        self._plain = [recorder.record(partial(self._work, 1 << log)) for log in range(most.bit_length())]

    def start(self, count: int, timed: bool) -> None:
        (self._timed if timed else self._plain[count.bit_length() - 1])()

    def launch(self) -> None:
        self._recorder.launch(partial(self._work, 1))

    def finish(self) -> None:
        if not self._exchange.on_device:
            self._exchange.finish()

    def _work(self, count: int) -> None:
        """Queue what a graph captures: whole steps, or a step up to the end of its exchange."""
        for _ in range(count):
            self._step.run()
            if self._exchange.on_device:
                self._exchange.finish()


class GatedLinks:
    """Stands before the links while steps are recorded: moves that leave the device are made in each replay,
    between two graphs. So are all, where the exchange leaves it: a graph that ends for its calls, while a
    move is under way, could not hold the rest of the move."""

    def __init__(self, links: Redistributor, recorder: Recorder, exchange: Exchange) -> None:
        self._links, self._recorder = links, recorder
        self.name, self.on_device = links.name, links.on_device and exchange.on_device

    def bind(self, name: str, move: Redistribution, source: DeviceArray, target: DeviceArray) -> Bound:
        """See `Redistributor.bind`."""
        bound = self._links.bind(name, move, source, target)
        return bound if self.on_device else _Gated(bound, self._recorder)

    def close(self) -> None:
        """See `Redistributor.close`."""
        self._links.close()


class _Gated:
    """A move whose calls are made between two graphs."""

    def __init__(self, bound: Bound, recorder: Recorder) -> None:
        self._bound, self._recorder = bound, recorder

    def start(self) -> None:
        self._recorder.between(self._bound.start)

    def finish(self) -> None:
        self._recorder.between(self._bound.finish)


class Gate:
    """Stands before the exchange while steps are recorded: its calls that leave the device are made in each
    replay, between two graphs."""

    def __init__(self, exchange: Exchange, recorder: Recorder, buckets: int) -> None:
        self._exchange, self._recorder, self._last = exchange, recorder, buckets - 1
        self.name, self.on_device = exchange.name, exchange.on_device
        self.updates = exchange.updates

    def ready(self, bucket: int) -> None:
        """See `Exchange.ready`. The last bucket's call can wait for the last graph: no work is behind it."""
        if self.on_device:
            self._exchange.ready(bucket)
        elif bucket < self._last:
            self._recorder.between(partial(self._exchange.ready, bucket))
        else:
            self._recorder.at_end(partial(self._exchange.ready, bucket))

    def finish(self) -> None:
        """See `Exchange.finish`, which `Replayed` calls."""
        self._exchange.finish()

    def close(self) -> None:
        """See `Exchange.close`."""
        self._exchange.close()
