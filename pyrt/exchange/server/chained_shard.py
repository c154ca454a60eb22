"""A shard on a server, as the tail of a chain has it: a copy, to which what the head passes on is applied.

pyrt/exchange/server/held_shard.py has what a chain is, and the head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from mpi4py import MPI

from pyrt.exchange import Bucket, ExchangeContext
from pyrt.exchange.server.chain_end import ChainEnd
from pyrt.exchange.server.clocks import Clocks
from pyrt.exchange.server.message import APPLIED, STEP, Message, Tags
from pyrt.exchange.server.message_memory import MessageMemory
from pyrt.exchange.server.requests import Requests
from pyrt.exchange.server.shard_state import ShardState


class Granting(Protocol):
    """Decides about steps: `pyrt.exchange.server.clocks.Grants`, and what follows it."""

    @property
    def are_over(self) -> bool:
        """Return whether no more steps are granted until all ranks have met."""

    def take(self) -> int | None:
        """Grant a step; None where there are no more."""


class Followed:
    """The grants of all servers but the first: workers follow that one's, so these only keep the bound."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks

    @property
    def are_over(self) -> bool:
        return self._clocks.is_one_meeting

    def take(self) -> int | None:
        """See `Granting.take`; no worker reads the number."""
        return 0


@dataclass(frozen=True)
class Place:
    """A shard on one server: its number, its range, and the ranks that exchange messages about it."""

    shard: int
    range: Bucket
    shards: int
    """The number of all shards."""
    workers: Sequence[int]
    """The ranks of the workers."""
    before: int | None = None
    """The head, where this server is the tail."""
    behind: int | None = None
    """The tail, where this server is the head and there is one."""


class WorkerLink:
    """The messages between a shard and one worker: the push that comes, and the pull that answers it."""

    def __init__(self, setting: ExchangeContext, memory: MessageMemory, place: Place, rank: int) -> None:
        self.rank = rank
        self.push, self.pull = memory.messages(rank, place.shard)
        self.passed_on = self.push
        """The push as a tail has it from the head; the worker's own may be shared with the tail too."""
        if place.before is not None and self.push.is_shared:
            self.passed_on = memory.own(place.shard)
        self.ready = setting.driver.create_event(timing=False)
        """The pull is on the host; of a tail: the push is applied."""
        self.copied = np.zeros_like(self.push.header)
        """The header that a tail sends to the head."""
        self.applied = 0
        """The version that the push has made."""
        self.receiving = self.sending = self.copying = self.hearing = MPI.REQUEST_NULL


class ChainedShard:
    """A shard on one server: what head and tail have of it, and the turns of a tail."""

    def __init__(
        self,
        setting: ExchangeContext,
        memory: MessageMemory,
        comm: MPI.Comm,
        place: Place,
        applied: Callable[[int, Message], None],
    ) -> None:
        """``applied`` is told of the shard and each push, once it is queued to be applied."""
        self._driver, self._compute = setting.driver, setting.streams.compute
        self._requests, self._applied = Requests(setting.job, comm), applied
        self._tags, self.shard = Tags(place.shards, len(place.workers)), place.shard
        self._before, self._behind = place.before, place.behind
        self._end = ChainEnd(self._requests, place.before, place.behind, self._tags.end(place.shard))
        self.clocks = Clocks(len(place.workers), setting.asynchrony.staleness)
        self.grants: Granting = Followed(self.clocks)
        self.state = ShardState(setting, place.range, is_copy=place.before is not None)
        self._workers = [WorkerLink(setting, memory, place, rank) for rank in place.workers]
        self._sum = memory.own(place.shard) if setting.asynchrony.staleness == 0 else None
        """The sum of the gradients of all workers, where each step has one. Their own stay as they are: if
        this server dies they push them again."""
        self._copied = 0
        """The version up to which the tail has followed."""
        self._unsummed: list[int] = []
        self._owed: list[int] = []
        self._leaving: list[int] = []
        self._arrived: list[int] = []
        """A tail's pushes that have come from the head, perhaps ahead of others that it applied earlier."""
        self._following: list[int] = []
        """A tail's pushes that are queued to be applied, and not yet confirmed to the head."""

    def start_at(self, version: int) -> None:
        """Begin with this version."""
        self.state.version = self._copied = version

    def begin(self) -> None:
        """Begin a leg."""
        self.clocks.restart()
        self._end.begin()
        for number in self.clocks.living:
            self._await(number)

    def _await(self, number: int) -> None:
        """Receive a worker's next push: from the worker or, on a tail, from the head."""
        worker = self._workers[number]
        if worker.receiving != MPI.REQUEST_NULL:
            return  # since an earlier leg
        message, source, tag = worker.push.sent, worker.rank, self._tags.push(self.shard)
        if self._before is not None:
            message, source = worker.passed_on.raw, self._before
            tag = self._tags.copy(self.shard, number)
        worker.receiving = self._requests.receive(message, source, tag)

    def _turn_of_tail(self, arrived: Sequence[int]) -> bool:
        """Apply what the head has applied, in its order, and confirm it. Return whether it did anything."""
        assert self._before is not None
        for number in arrived:
            self._workers[number].passed_on.require_whole(self._before)
        self._arrived += arrived
        while following := [number for number in self._arrived if self._is_next(number)]:
            self._follow(*following)
        told = [n for n in self._following if self._driver.is_done(self._workers[n].ready)]
        for number in told:
            worker = self._workers[number]
            self._following.remove(number)
            self._await(number)
            worker.copied[APPLIED] = worker.applied
            tag = self._tags.copied(self.shard, number)
            worker.copying = self._requests.send(worker.copied, self._before, tag)
        return bool(arrived or told)

    def _is_next(self, number: int) -> bool:
        return int(self._workers[number].passed_on.header[APPLIED]) == self.state.version + 1

    def _follow(self, number: int) -> None:
        """Make the update that the head has made with this worker's push."""
        worker = self._workers[number]
        self._arrived.remove(number)
        self.state.apply(worker.passed_on, [worker.passed_on])
        self._driver.record(worker.ready, self._compute)
        worker.applied = self.state.version
        for one in self.clocks.living if self._sum is not None else [number]:
            self.clocks.set(one, int(worker.passed_on.header[STEP]) + 1)
        self._following.append(number)
