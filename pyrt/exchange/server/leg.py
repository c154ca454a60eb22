"""A leg: training from where all ranks have met to where they meet again; and the counts of servers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from pyrt.exchange import Asynchronous

Note = Callable[[int, float, int], None]
"""Takes each update: the number of its step over all workers, the sum of the losses of its samples, and the
number of samples."""


@dataclass(frozen=True)
class Leg:
    """The steps from ``first`` to ``stop``: each stands for one of each worker, whoever makes it."""

    first: int
    stop: int
    may_end_early: bool
    """The leg ends as soon as it can when a rank is asked to stop."""
    note: Note
    lost: Callable[[int], None]
    """Takes each rank that has died; called on the first server."""


@dataclass(frozen=True)
class ServerCounts:
    """The counts of all servers in a run."""

    updates: int
    """The number of updates of the first shard."""
    staleness: list[list[int]]
    """For each shard, how many updates were stale by 0, 1, .. versions; the last number counts all beyond."""
    furthest: int
    """The most steps that a worker was ahead of the slowest one when it began a step."""


@runtime_checkable
class ServerSide(Asynchronous, Protocol):
    """The exchange with servers, as a server or a worker has it."""

    is_server: bool

    def start_at(self, version: int) -> None:
        """Begin with this version of all shards: so many updates were made before."""

    def meet_at(self) -> int:
        """Give all ranks the parameters; return the step at which they have met. Collective."""

    def counts(self) -> ServerCounts:
        """Collect what all servers have counted. Collective."""


class Server(ServerSide, Protocol):
    """The side of a rank that holds parameters."""

    def serve(self, leg: Leg) -> None:
        """Apply gradients as they come until all workers have ended the leg."""


class Worker(ServerSide, Protocol):
    """The side of a rank that computes gradients."""

    def lead(self, leg: Leg, make_step: Callable[[], None]) -> None:
        """Make steps as they are granted."""

    def begin_step(self, samples: int, weight: int) -> None:
        """Begin a step of so many samples; its loss times the ``weight`` is the sum of their losses."""
