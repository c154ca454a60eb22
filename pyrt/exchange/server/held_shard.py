"""A shard on a server: takes gradients, applies them, answers with parameters; or keeps a copy of another's.

With two servers for each shard they are a chain (van Renesse and Schneider, Chain Replication for Supporting
High Throughput and Availability, 2004). The first, the head, applies what workers push, and passes it on; the
second, the tail, applies it in the same order, and says so; then the head answers. So all that workers have
an answer to is on both. If the head dies the tail takes its place, and workers push again what is unanswered.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from pyrt.exchange.server.chained_shard import ChainedShard, WorkerLink
from pyrt.exchange.server.message import APPLIED, GRANT, MEET, STEP, WORKER, Message


class HeldShard(ChainedShard):
    """A shard on one server. Each worker is in turn awaited, owed parameters, and sent them, by `turn`."""

    def is_over(self) -> bool:
        """Return whether the leg has ended: no more pushes come, and all that was asked for has gone."""
        is_at_work = self._owed or self._leaving or self._unsummed or self._arrived or self._following
        if is_at_work or not self.clocks.have_all_met:
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
