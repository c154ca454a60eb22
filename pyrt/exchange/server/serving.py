"""A server: one rank's shards, and the steps that workers are granted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from pyrt.exchange import Bucket, ExchangeContext, UpdateCounts
from pyrt.exchange.server.chained_shard import Place
from pyrt.exchange.server.clocks import Grants
from pyrt.exchange.server.held_shard import HeldShard
from pyrt.exchange.server.leg import Leg, ServerCounts
from pyrt.exchange.server.lost_ranks import LostRanks
from pyrt.exchange.server.meeting import Meeting, Told
from pyrt.exchange.server.message import ASKED, FLAGS, GRANT, WEIGHT, Message, Tags
from pyrt.exchange.server.message_memory import MessageMemory
from pyrt.exchange.server.requests import Requests
from pyrt.exchange.server.roles import Roles
from pyrt.job.signals import stop_was_asked


class ServingExchange:
    """Holds a shard and, where each is on two servers, a copy of the one before it; `serve` polls both."""

    name = "server"
    on_device = False
    is_server = True

    def __init__(
        self, setting: ExchangeContext, memory: MessageMemory, roles: Roles, ranges: Sequence[Bucket]
    ) -> None:
        self._job, self._roles = setting.job, roles
        self._rank = setting.job.rank
        self._is_first = self._rank == 0
        kept = setting.asynchrony.kept
        self._meeting = Meeting(setting, roles, ranges)
        self._comm, self._requests = self._meeting.comm, Requests(setting.job, self._meeting.comm)
        self._lost_ranks = LostRanks(setting.job, self._comm, roles, kept)
        self._shards = [
            HeldShard(setting, memory, self._comm, place, self._note if self._is_first else _nothing)
            for place in _places(self._rank, roles, ranges, kept)
        ]
        self.updates: Sequence[Bucket] = [part for shard in self._shards for part in shard.state.updates]
        self._grants = Grants(roles.workers)
        if self._is_first:
            self._shards[0].grants = self._grants
        self._first_version = 0
        self._meets = np.zeros(roles.workers, np.int64)
        self._meeting_requests = [MPI.REQUEST_NULL] * roles.workers
        self._meet_tag = Tags(roles.servers, roles.workers).meet
        self._leg: Leg | None = None
        self._waiting = setting.phases.phase("wait for workers")

    def ready(self, bucket: int) -> None:
        """Do nothing: a server has no gradients of its own."""

    def finish(self) -> None:
        """Do nothing: a server makes no steps."""

    def start_at(self, version: int) -> None:
        """See `ServerSide.start_at`."""
        self._first_version = version
        for shard in self._shards:
            shard.start_at(version)

    def begin(self) -> None:
        """See `Asynchronous.begin`: all ranks have begun with the same parameters."""

    def serve(self, leg: Leg) -> None:
        """See `Server.serve`."""
        self._leg = leg
        self._look_for_lost_ranks()
        for shard in self._shards:
            shard.begin()
        living = self._shards[0].clocks.living
        self._grants.begin(leg.first, leg.stop, len(living))
        for worker in living:
            if self._meeting_requests[worker] == MPI.REQUEST_NULL:
                place = self._meets[worker : worker + 1]
                rank = self._roles.rank_of(worker)
                self._meeting_requests[worker] = self._requests.receive(place, rank, self._meet_tag)
        with self._waiting:
            while not self._is_over():
                if not self._turn(leg):
                    self._job.pause()

    def _is_over(self) -> bool:
        """Return whether all workers have said that they meet: then they have all that they asked for."""
        if any(request != MPI.REQUEST_NULL for request in self._meeting_requests):
            return False
        are_over = [shard.is_over() for shard in self._shards]  # each is asked: a head tells its tail
        return all(are_over)

    def _turn(self, leg: Leg) -> bool:
        """Poll all shards once; return whether there was anything to do."""
        if self._is_first and leg.may_end_early and stop_was_asked():
            self._grants.end_early()
        was_busy = False
        for shard in self._shards:
            was_busy |= shard.turn()
        for worker, request in enumerate(self._meeting_requests):
            if self._requests.has_come(request):
                self._leave(worker)
        self._look_for_lost_ranks()
        return was_busy

    def _leave(self, worker: int) -> None:
        for shard in self._shards:
            shard.clocks.leave(worker)

    def _look_for_lost_ranks(self) -> None:
        for rank in self._lost_ranks.newly_lost():
            if self._roles.is_server(rank):
                for shard in self._shards:
                    shard.lose_server(rank)
            else:
                self._lose_worker(self._roles.worker(rank))
            if self._is_first and self._leg is not None:
                self._leg.lost(rank)

    def _lose_worker(self, worker: int) -> None:
        self._meeting_requests[worker] = MPI.REQUEST_NULL
        in_step = [shard.lose_worker(worker) for shard in self._shards]
        if in_step[0]:
            self._grants.give_back()

    def _note(self, shard: int, push: Message) -> None:
        """Note a push that is applied to the first shard."""
        header = push.header
        if shard > 0 or self._leg is None:
            return
        if self._leg.may_end_early and header[FLAGS] & ASKED:
            self._grants.end_early()
        loss = float(push.loss[0]) * int(header[WEIGHT])
        self._leg.note(int(header[GRANT]), loss, int(header[FLAGS]) >> 1)

    def meet(self) -> None:
        """See `Asynchronous.meet`."""
        self.meet_at()

    def meet_at(self) -> int:
        """See `ServerSide.meet_at`."""
        versions = {shard.shard: shard.state.version for shard in self._shards}
        return self._meeting.hold(versions, self._grants.stop)

    def count(self) -> UpdateCounts:
        """See `Asynchronous.count`: no update is lost; those of the first shard."""
        counts = self.counts()
        return UpdateCounts(counts.updates, float(counts.updates), counts.staleness[0])

    def counts(self) -> ServerCounts:
        """See `ServerSide.counts`."""
        first = self._first_version
        mine = [
            Told(shard.shard, shard.state.version - first, shard.state.stale.tolist(), shard.clocks.furthest)
            for shard in self._shards
        ]
        return self._meeting.counts(mine)

    def close(self) -> None:
        self._meeting.close()


def _nothing(shard: int, push: Message) -> None:
    """Note nothing: the first server does."""


def _places(rank: int, roles: Roles, ranges: Sequence[Bucket], kept: int) -> list[Place]:
    """List the shards that a server holds: its own and, where each is on two, a copy of the one before."""
    workers = [roles.rank_of(worker) for worker in range(roles.workers)]
    before, behind = (rank - 1) % roles.servers, (rank + 1) % roles.servers
    own = Place(rank, ranges[rank], len(ranges), workers, behind=behind if kept > 1 else None)
    copy = Place(before, ranges[before], len(ranges), workers, before=before)
    return [own, copy] if kept > 1 else [own]
