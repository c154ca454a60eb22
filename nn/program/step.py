"""A step's list of operations (nn/program/passes.py) bound to a device: running it makes no decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from nn.launch.kernels import Kernels
from nn.program.operations import (
    BACKWARD,
    FORWARD,
    BucketReady,
    FinishRedistribution,
    Item,
    Operation,
    StartRedistribution,
    charged,
)
from pyrt.arrays import Arena
from pyrt.driver import EventHandle
from pyrt.exchange import Exchange, QueueWork
from pyrt.phases import Phases
from pyrt.redistribute import Bound, Redistributor
from pyrt.streams import Streams

Wrap = Callable[[Operation, QueueWork], QueueWork]
"""What is put around an operation that was bound."""


class TrainingStep:
    """The items of a step bound to a device, each under its phase."""

    def __init__(
        self,
        items: Sequence[Item],
        streams: Streams,
        phases: Phases,
        kernels: Kernels | None,
        exchange: Exchange,
        links: Redistributor,
        wrap: Wrap = lambda operation, queue: queue,
    ) -> None:
        """``kernels`` is None where NumPy computes; ``wrap`` may put something around each operation."""
        moves: dict[int, Bound] = {}
        self._parts = []
        beside = Beside(streams)
        for part in (FORWARD, BACKWARD):
            calls = [
                beside.ordered(item, under_phase(item, streams, phases, wrap(item, bound(item, kernels))))
                if isinstance(item, Operation)
                else partial(exchange.ready, item.bucket)
                if isinstance(item, BucketReady)
                else bind_redistribution(item, links, moves)
                for item in items
                if item.part == part
            ]
            if part == BACKWARD and beside.is_used:
                calls.append(beside.wait)
            self._parts.append((phases.phase(part, streams.compute), calls))

    def run(self) -> None:
        """Queue all items (in NumPy: compute them); the compute stream ends behind all of them."""
        for phase, calls in self._parts:
            with phase:
                for call in calls:
                    call()


def bind_all(
    items: Sequence[Item], streams: Streams, kernels: Kernels | None, links: Redistributor
) -> list[Callable[[], object]]:
    """Bind a list that has no gradients to sum."""
    moves: dict[int, Bound] = {}
    return [
        bind(item, streams, kernels)
        if isinstance(item, Operation)
        else bind_redistribution(item, links, moves)
        for item in items
        if not isinstance(item, BucketReady)
    ]


def bind_redistribution(
    item: StartRedistribution | FinishRedistribution, links: Redistributor, bound: dict[int, Bound]
) -> Callable[[], None]:
    """Bind the start or the end of a redistribution; ``bound`` has those of the list that were started."""
    if isinstance(item, StartRedistribution):
        with item.source.driver.ledger.of("moves"):
            move = bound[id(item)] = links.bind(item.name, item.move, item.source, item.target)
        return move.start
    return bound[id(item.started)].finish


def bound(operation: Operation, kernels: Kernels | None) -> QueueWork:
    """Bind what queues the operation on a stream, or computes it in NumPy where there are no kernels."""
    with charged(operation.writes[0].driver, operation):
        if kernels is not None:
            return operation.on_device(kernels).call
        compute = operation.in_numpy()
    return lambda stream: compute()


def bound_all(items: Sequence[Item], kernels: Kernels | None) -> list[QueueWork]:
    """Bind the operations of a list in which nothing is exchanged."""
    return [bound(item, kernels) for item in items if isinstance(item, Operation)]


def bind(operation: Operation, streams: Streams, kernels: Kernels | None) -> Callable[[], object]:
    """Bind the operation to the compute stream."""
    return partial(bound(operation, kernels), streams.compute)


def under_phase(
    operation: Operation, streams: Streams, phases: Phases, queue: QueueWork
) -> Callable[[], None]:
    """Bind the operation to its stream, under its phase."""
    stream = streams.beside if operation.beside else streams.compute
    phase = phases.phase(operation.name, stream)

    def timed() -> None:
        with phase:
            queue(stream)

    return timed


class Beside:
    """Keeps the order between the compute stream and the one beside it, which beside.py asks for."""

    def __init__(self, streams: Streams) -> None:
        self._streams, self._driver = streams, streams.driver
        self._done = self._driver.create_event(timing=False)
        self.is_used = False

    def ordered(self, operation: Operation, call: Callable[[], None]) -> Callable[[], None]:
        """Let the call, which queues the operation, wait for what it needs of the other stream."""
        if operation.beside:
            self.is_used = True
            return partial(self._fork, self._driver.create_event(timing=False), call)
        return partial(self._join, call) if operation.waits_for_beside else call

    def _fork(self, event: EventHandle, call: Callable[[], None]) -> None:
        self._driver.record(event, self._streams.compute)
        self._driver.wait(self._streams.beside, event)
        call()

    def _join(self, call: Callable[[], None]) -> None:
        self.wait()
        call()

    def wait(self) -> None:
        """Let the compute stream wait for all that was queued beside it."""
        self._driver.record(self._done, self._streams.beside)
        self._driver.wait(self._streams.compute, self._done)


class EmptyStep:
    """The step of a rank that gets no samples of a batch: its gradients are zeros, and it takes part."""

    def __init__(
        self,
        gradients: Arena,
        buckets: int,
        streams: Streams,
        phases: Phases,
        exchange: Exchange,
        skip: Sequence[Callable[[], object]],
    ) -> None:
        """``skip`` queues what comes in the place of work on samples: what counts batches and steps."""
        self._gradients = gradients.flat
        self._buckets = buckets
        self._stream = streams.compute
        self._phase = phases.phase("backward", streams.compute)
        self._exchange = exchange
        self._skip = skip

    def run(self) -> None:
        """Queue zeros and offer them to the exchange."""
        with self._phase:
            for call in self._skip:
                call()
            self._gradients.driver.fill(self._gradients.pointer, 0, self._gradients.nbytes, self._stream)
            for bucket in range(self._buckets):
                self._exchange.ready(bucket)
