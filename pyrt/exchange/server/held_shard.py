"""A shard on a server: takes gradients, applies them, answers with parameters; or keeps a copy of another's.

With two servers for each shard they are a chain (van Renesse and Schneider, Chain Replication for Supporting
High Throughput and Availability, 2004). The first, the head, applies what workers push, and passes it on; the
second, the tail, applies it in the same order, and says so; then the head answers. So all that workers have
an answer to is on both. If the head dies the tail takes its place, and workers push again what is unanswered.
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
from pyrt.exchange.server.message import APPLIED, GRANT, MEET, STEP, WORKER, Message, Tags
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


class HeldShard:
    """A shard on one server. Each worker is in turn awaited, owed parameters, and sent them, by `turn`."""

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

    def is_over(self) -> bool:
        """Return whether the leg has ended: no more pushes come, and all that was asked for has gone."""
        if (
            not self.clocks.have_all_met
            or self._owed
            or self._leaving
            or self._unsummed
            or self._arrived
            or self._following
        ):
            return False
        if not all(self._requests.has_gone(worker.sending) for worker in self._workers):
            return False
        return self._end.is_over(self.state.version)

    def turn(self) -> bool:
        """Take what has come, answer workers that may go on, send what is on the host.

        Return whether there was anything to do.
        """
        arrived = [
            number for number, worker in enumerate(self._workers) if self._requests.has_come(worker.receiving)
        ]
        return self._turn_of_head(arrived) if self._before is None else self._turn_of_tail(arrived)

    def _turn_of_head(self, arrived: Sequence[int]) -> bool:
        for number in arrived:
            self._take(number)
        self._hear_of_copies()
        if self._sum is not None and self._unsummed and self.clocks.are_even():
            self._apply_sum(self._sum)
        answered = [number for number in self._owed if self._answers(number)]
        if answered:
            self._owed = [number for number in self._owed if number not in answered]
            self._leaving += answered
        sent = [number for number in self._leaving if self._sends(number)]
        if sent:
            self._leaving = [number for number in self._leaving if number not in sent]
        return bool(arrived or answered or sent)

    def _take(self, number: int) -> None:
        """Take a worker's gradients."""
        worker = self._workers[number]
        worker.push.require_whole(worker.rank)
        header, known = worker.push.header, self.clocks.steps(number)
        self._owed.append(number)
        if header[WORKER] == number and header[STEP] == known - 1:
            return  # the former head passed it on, and died before it could answer
        if header[WORKER] != number or header[STEP] != known:
            raise RuntimeError(
                f"worker {number} pushes step {header[STEP]} of {header[WORKER]}, after {known}"
            )
        self.clocks.count(number)
        if self._sum is not None:
            self._unsummed.append(number)
        else:
            self._apply(number, worker.push, [worker])

    def _apply_sum(self, total: Message) -> None:
        """Apply the sum of what all workers have pushed, in their order."""
        first, *others = workers = [self._workers[number] for number in sorted(self._unsummed)]
        np.copyto(total.raw, first.push.raw)
        for other in others:
            np.add(total.numbers, other.push.numbers, out=total.numbers)
        if self._behind is not None:
            total.seal()
        number = min(self._unsummed)
        self._unsummed.clear()
        self._apply(number, total, workers)

    def _apply(self, number: int, gradients: Message, workers: Sequence[WorkerLink]) -> None:
        """Update the shard by the gradients of a worker's push, or by the sum over these workers."""
        worker = self._workers[number]
        self.state.apply(gradients, [one.push for one in workers])
        for one in workers:
            one.applied = self.state.version
            self._applied(self.shard, one.push)
        if self._behind is None:
            return
        gradients.header[APPLIED] = self.state.version
        tags, behind = self._tags, self._behind
        worker.hearing = self._requests.receive(worker.copied, behind, tags.copied(self.shard, number))
        worker.copying = self._requests.send(gradients.raw, behind, tags.copy(self.shard, number))

    def _hear_of_copies(self) -> None:
        """Hear from the tail which updates it has made."""
        for worker in self._workers if self._behind is not None else ():
            if self._requests.has_come(worker.hearing):
                self._copied = max(self._copied, int(worker.copied[APPLIED]))

    def _answers(self, number: int) -> bool:
        """Begin the answer to a worker if it may go on, or the leg is over; return whether it was begun."""
        worker = self._workers[number]
        if number in self._unsummed or (self._behind is not None and worker.applied > self._copied):
            return False
        is_over = self.grants.are_over
        if not (is_over or self.clocks.may_go_on(number)):
            return False
        grant = self.grants.take()
        worker.pull.header[GRANT] = MEET if grant is None else grant
        if not is_over:
            self.clocks.go_on(number)
        self.state.copy_to(worker.pull)
        self._driver.record(worker.ready, self._compute)
        return True

    def _sends(self, number: int) -> bool:
        """Send the answer once it is on the host; return whether it is."""
        worker = self._workers[number]
        if not self._driver.is_done(worker.ready):
            return False
        if not (self._requests.has_gone(worker.sending) and self._requests.has_gone(worker.copying)):
            return False
        worker.pull.seal()
        if worker.pull.header[GRANT] == MEET:
            self.clocks.leave(number)
        else:
            self._await(number)
        tag = self._tags.pull(self.shard)
        worker.sending = self._requests.send(worker.pull.sent, worker.rank, tag)
        return True

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

    def lose_worker(self, number: int) -> bool:
        """Go on without a worker; return whether it died in a step, not while it waited for an answer."""
        worker = self._workers[number]
        waits = number in self._owed or number in self._leaving
        was_going = self.clocks.is_going(number)
        self.clocks.lose(number)
        self._owed = [one for one in self._owed if one != number]
        self._leaving = [one for one in self._leaving if one != number]
        worker.sending = MPI.REQUEST_NULL
        if self._before is None:
            worker.receiving = MPI.REQUEST_NULL
        return was_going and not waits

    def lose_server(self, rank: int) -> None:
        """Go on without a server: a head without its tail, a tail as the head."""
        self._end.lose(rank)
        if rank == self._behind:
            self._behind = None
            for worker in self._workers:
                worker.copying = worker.hearing = MPI.REQUEST_NULL
        if rank == self._before:
            self._before = None
            self._arrived.clear()
            self._following.clear()
            for worker in self._workers:
                worker.receiving = worker.copying = MPI.REQUEST_NULL
            for number in self.clocks.living:
                self._await(number)
