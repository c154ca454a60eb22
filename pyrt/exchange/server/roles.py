"""The roles of ranks, parameter servers and workers; and the range of parameters that a server holds."""

from __future__ import annotations

from dataclasses import dataclass

from pyrt.arrays import ALIGNMENT
from pyrt.exchange import Bucket
from pyrt.redistribute.regions import share


@dataclass(frozen=True)
class Roles:
    """The first ranks of a job are servers, all others are workers: so no worker is rank 0, which prints."""

    ranks: int
    servers: int

    @property
    def workers(self) -> int:
        return self.ranks - self.servers

    def is_server(self, rank: int) -> bool:
        return rank < self.servers

    def worker(self, rank: int) -> int:
        """Return the number of a worker among the workers."""
        return rank - self.servers

    def rank_of(self, worker: int) -> int:
        """Return the rank of a worker."""
        return self.servers + worker

    def chain(self, shard: int, kept: int) -> list[int]:
        """Return the servers that hold a shard at the start, the head first: ``kept`` of them."""
        return [(shard + place) % self.servers for place in range(kept)]


def shards(size: int, itemsize: int, servers: int) -> list[Bucket]:
    """Cut a flat buffer of so many elements into a range for each server, of equal bytes.

    They begin at multiples of `ALIGNMENT` bytes, and so differ by as much at most. A range may be empty where
    there are more servers than such pieces.
    """
    unit = ALIGNMENT // itemsize
    pieces = -(-size // unit)
    found = []
    for server in range(servers):
        start, stop = share(pieces, servers, server)
        found.append(Bucket(min(start * unit, size), min(stop * unit, size)))
    return found
