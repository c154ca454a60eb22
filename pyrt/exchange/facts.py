"""What is known of an exchange before one is made: its name, its words, what it sends, how it is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyrt.exchange import Bucket, Exchange, ExchangeContext


class Traffic(NamedTuple):
    """What a rank sends to others."""

    elements: float
    messages: float

    def plus(self, other: Traffic) -> Traffic:
        return Traffic(self.elements + other.elements, self.messages + other.messages)


NO_TRAFFIC = Traffic(0, 0)

CountTraffic = Callable[[Sequence[Bucket], int, int, int], Traffic]
"""(buckets, ranks, rank, itemsize) -> what this rank sends, to ranks of one node."""


def ring_traffic(buckets: Sequence[Bucket], ranks: int, rank: int, itemsize: int) -> Traffic:
    """Count one message of all buckets, which MPI sums, as a ring would do it."""
    size = sum(bucket.stop - bucket.start for bucket in buckets)
    return Traffic(2 * (ranks - 1) / ranks * size, 2 * (ranks - 1))


@dataclass(frozen=True)
class Facts:
    """One of them for each exchange, as FACTS in its file."""

    name: str
    description: str
    """For people: what happens, in a line."""
    make: Callable[[ExchangeContext], Exchange]
    """Collective. Raises UserError, on all ranks, where it cannot work here."""
    traffic: CountTraffic = ring_traffic
    rung: int | None = None
    """Its place among those that a user may choose, from the plain to the fast; None: it is no choice."""
    overlaps: bool = False
    """Whether it sums the first buckets while the backward pass fills the next: smaller ones help it then."""
    on_device: bool = False
    """Whether kernels do all of it, and a graph can hold it."""
    updates_once_a_node: bool = False
    """Whether each parameter is updated by one rank of a node, not by all."""
    asynchronous: bool = False
    """Whether ranks update with their own gradients and wait for nobody: see `pyrt.exchange.Asynchronous`."""

    def sent(self, buckets: Sequence[Bucket], ranks: int, rank: int, itemsize: int) -> Traffic:
        """Count what this rank sends; one rank alone sends nothing."""
        return self.traffic(buckets, ranks, rank, itemsize) if ranks > 1 else NO_TRAFFIC
