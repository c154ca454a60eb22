"""The meeting of all ranks: servers give their shards to all, and share their counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from pyrt.exchange import Bucket, ExchangeContext
from pyrt.exchange.server.leg import ServerCounts
from pyrt.exchange.server.message import HEADER_BYTES, VERSION, Message, pinned_bytes
from pyrt.exchange.server.roles import Roles
from pyrt.job.survivors import RankLost


class Told(NamedTuple):
    """A server's counts of a shard that it holds."""

    shard: int
    updates: int
    stale: list[int]
    furthest: int


class Meeting:
    """The shards of all servers, as one rank has them. Every call is collective."""

    def __init__(self, setting: ExchangeContext, roles: Roles, ranges: Sequence[Bucket]) -> None:
        self._driver, self._job, self._stream = setting.driver, setting.job, setting.streams.compute
        self._places = [setting.parameters.rows(*place) for place in ranges]
        largest = max(place.size for place in self._places)
        dtype = setting.parameters.dtype
        self._message = Message(pinned_bytes(setting.driver, HEADER_BYTES + largest * dtype.itemsize), dtype)
        self._refresh = setting.update.refresh()
        self._phase = setting.phases.phase("meet")
        self.comm = setting.job.comm.Dup()
        """The communicator of messages between two ranks; ranks keep their numbers in it when others die."""
        self._rank = self.comm.rank
        self._roles, self._kept = roles, setting.asynchrony.kept
        self.versions = [0] * len(ranges)
        self._is_closed = False

    def hold(self, versions: Mapping[int, int], step: int) -> int:
        """Give all ranks all shards. Return the ``step`` of the first server.

        ``versions`` are those of the shards that this rank holds. Raises RuntimeError, on all ranks, if a
        shard is not the same on both servers that hold it.
        """
        with self._phase:
            self._driver.synchronize_stream(self._stream)
            self._job.wait_for_all()
            wrong: list[str] = []
            for shard in range(len(self._places)):
                while not self._is_spread(shard, versions.get(shard), wrong):
                    pass  # its server has died: the next one has it too
            told = self._job.comm.allgather((step, wrong))
            self._refresh(self._stream)
            self._driver.synchronize_stream(self._stream)
        if words := "; ".join(one for _, found in told for one in found):
            raise RuntimeError(words)
        return told[0][0]

    def _is_spread(self, shard: int, version: int | None, wrong: list[str]) -> bool:
        """Broadcast a shard from the first living server that holds it; return False if that server dies.

        ``version`` is that of this rank's own copy; None where it has none. Says what is ``wrong`` with it.
        """
        members, place, message = self._job.members, self._places[shard], self._message
        holder = next(rank for rank in self._roles.chain(shard, self._kept) if rank in members)
        comm, root, numbers = self._job.comm, members.index(holder), message.numbers[: place.size]
        is_mine = self._rank == holder
        if is_mine:
            assert version is not None, "a holder has it"
            message.header[VERSION] = version
            place.queue_download(numbers, self._stream)
            self._driver.synchronize_stream(self._stream)
        try:
            # In one call: ranks have other numbers behind one in which a rank is found to be dead.
            comm.Bcast([message.raw[: HEADER_BYTES + numbers.nbytes], MPI.BYTE], root)
        except RankLost:
            return False
        self.versions[shard] = int(message.header[VERSION])
        if not is_mine:
            if version is not None and not self._is_copy(shard, version):
                wrong.append(
                    f"shard {shard} of the parameters, version {self.versions[shard]} on rank {holder}, "
                    f"differs from its copy, version {version} on rank {self._rank}"
                )
            place.queue_upload(numbers, self._stream)
            self._driver.synchronize_stream(self._stream)
        return True

    def _is_copy(self, shard: int, version: int) -> bool:
        """Return whether this rank's copy of a shard, of this version, has the bits that have come."""
        place, other = self._places[shard], self._message.numbers[: self._places[shard].size]
        mine = np.empty_like(other)
        place.queue_download(mine, self._stream)
        self._driver.synchronize_stream(self._stream)
        return version == self.versions[shard] and mine.tobytes() == other.tobytes()

    def counts(self, mine: Sequence[Told]) -> ServerCounts:
        """Collect the counts of all servers; of a shard on two servers take the first one's."""
        told = self._job.comm.allgather(list(mine))  # which leaves out those that have died
        everywhere = dict(zip(self._job.members, told, strict=True))
        shards = [self._told_of(shard, everywhere) for shard in range(len(self._places))]
        most = max((place for one in shards for place, count in enumerate(one.stale) if count), default=0)
        stale = [one.stale[: most + 1] for one in shards]
        return ServerCounts(shards[0].updates, stale, max(one.furthest for one in shards))

    def _told_of(self, shard: int, everywhere: Mapping[int, Sequence[Told]]) -> Told:
        holder = next(rank for rank in self._roles.chain(shard, self._kept) if rank in everywhere)
        return next(told for told in everywhere[holder] if told.shard == shard)

    def close(self) -> None:
        """Free the communicator, where all ranks come to their end. Safe to call twice."""
        if not self._is_closed:
            self._is_closed = True
            self._job.leave(self.comm)
