"""Training with parameter servers, in legs: from where all ranks have met to where they meet again.

The steps of a leg are not dealt out beforehand: a worker asks for another one when it pushes the gradients of
the last. So a slow worker makes fewer, and all meet when the last steps are over. Ranks meet where an epoch
ends, where a checkpoint is due, and where one is asked to stop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, cast

import numpy as np

from nn.input.schedule import Schedule
from nn.parallel.shard import Shard
from nn.problem.settings import Settings
from nn.train.rank_resources import RankResources
from nn.train.workers import AsynchronousReport, LostRank
from pyrt.exchange import Exchange
from pyrt.exchange.server.leg import Leg, Server, ServerSide, Worker
from pyrt.exchange.server.roles import Roles

Sums = dict[int, tuple[float, int]]
"""Holds, for each epoch from 0, the sum of the losses of samples, and the number of samples."""


class Told(Protocol):
    """Receives the progress of a training, on the first server."""

    def step(self, step: int, loss: float) -> None:
        """Note a step over all workers. Its loss is the mean over the last p updates, for p workers."""

    def lost(self, rank: LostRank) -> None:
        """Note that a rank has died."""


class LegLog:
    """Adds up the losses of a leg on the first server, and tells of each step."""

    def __init__(self, leg: tuple[int, int], roles: Roles, sums: Sums, told: Told) -> None:
        """``leg``: the step with which it begins, and the number of steps in an epoch."""
        self._step, batches = leg
        self._in_epoch = roles.workers * batches
        self._latest = [(0.0, 0)] * roles.workers
        self._roles, self._sums, self._told = roles, sums, told
        self._updates = 0

    def note(self, grant: int, loss: float, samples: int) -> None:
        """See `pyrt.exchange.server.leg.Note`."""
        latest, epoch = self._latest, grant // self._in_epoch
        total, counted = self._sums.get(epoch, (0.0, 0))
        self._sums[epoch] = total + loss, counted + samples
        latest[self._updates % len(latest)] = loss, samples
        self._updates += 1
        if self._updates % len(latest) == 0:
            self._told.step(self._step, sum(one for one, _ in latest) / max(1, sum(n for _, n in latest)))
            self._step += 1

    def lost(self, rank: int) -> None:
        """Note that a rank has died."""
        self._told.lost(LostRank(rank, self._roles.is_server(rank), self._step))


class Legs:
    """The legs of a training, as one rank sees them."""

    def __init__(
        self,
        exchange: ServerSide,
        resources: RankResources,
        shard: Shard,
        schedule: Schedule,
        settings: Settings,
    ) -> None:
        self._exchange, self._job, self._shard, self._schedule = exchange, resources.job, shard, schedule
        self._is_synchronous = settings.asynchrony.is_synchronous
        self._roles = Roles(resources.job.size, settings.asynchrony.servers)
        self._ends = [schedule.batches] if settings.epoch_barrier else []
        if settings.checkpoint is not None:
            self._ends.append(settings.steps_between_checkpoints(schedule.batches))
        self._first = self._own = self._met = 0

    @classmethod
    def of(
        cls,
        exchange: Exchange,
        resources: RankResources,
        shard: Shard,
        schedule: Schedule,
        settings: Settings,
    ) -> Legs | None:
        """Return those of a training with this exchange; None where it has no parameter servers."""
        if not isinstance(exchange, ServerSide):
            return None
        return cls(exchange, resources, shard, schedule, settings)

    def updates(self, step: int) -> int:
        """Count the updates of so many steps."""
        return step if self._is_synchronous else step * self._roles.workers

    def begin(self, step: int) -> None:
        """Begin after so many steps. Collective."""
        self._first = self._own = step
        self._exchange.start_at(self.updates(step))
        self._exchange.begin()

    def run(
        self, first: int, last: int, may_end_early: bool, queue: Callable[[int], None], told: Told
    ) -> tuple[int, Sums]:
        """Train from step ``first``, where all ranks have met, to where they meet again. Collective.

        A worker calls ``queue`` with the number of each step that it makes, of its own. Returns the step
        where they meet, ``last`` at most, and the losses of the steps before it.
        """
        stop = min([last, *(first - first % end + end for end in self._ends)])
        sums: Sums = {}
        log = LegLog((first, self._schedule.batches), self._roles, sums, told)
        leg = Leg(first, stop, may_end_early, log.note, log.lost)
        if self._exchange.is_server:
            cast(Server, self._exchange).serve(leg)
        else:
            worker = cast(Worker, self._exchange)
            worker.lead(leg, lambda: self._make_step(worker, queue))
        self._met = self._exchange.meet_at()
        return self._met, self._job.comm.bcast(sums)

    def _make_step(self, worker: Worker, queue: Callable[[int], None]) -> None:
        """Make this worker's next step."""
        size = self._schedule.size(self._own)
        start, stop = self._shard.own_samples(size)
        worker.begin_step(stop - start, size if self._is_synchronous else stop - start)
        queue(self._own)
        self._own += 1

    def report(self, lost: Sequence[LostRank]) -> AsynchronousReport:
        """Tell of the training up to where all have met. Collective.

        The first server knows of the ranks that it has ``lost`` in legs; others may have died since.
        """
        known = list(self._job.comm.bcast(list(lost)))
        gone = sorted(set(range(self._roles.ranks)) - {*self._job.members, *(one.rank for one in known)})
        known += [LostRank(rank, self._roles.is_server(rank), self._met) for rank in gone]
        counts = self._exchange.counts()
        coverage = self._schedule.coverage(self._first)
        if self._shard.works:
            mine = self._schedule.coverage_of(self._shard.own_samples, self._first, self._own)
        else:
            mine = np.zeros_like(coverage)
        coverage = coverage + self._job.comm.allreduce(mine)
        return AsynchronousReport.of(
            self._roles.workers, counts.updates, coverage, servers=counts, lost_ranks=known
        )
