"""Training with parameter servers, in legs: from where all ranks have met to where they meet again.

The steps of a leg are not dealt out beforehand: a worker asks for another one when it pushes the gradients of
the last. So a slow worker makes fewer, and all meet when the last steps are over. Ranks meet where an epoch
ends, where a checkpoint is due, and where one is asked to stop.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import cast

import numpy as np

from nn.checkpoints.checkpointer import Checkpointer
from nn.parallel.shard import Shard
from nn.problem.problem import Problem
from nn.problem.progress import Epoch
from nn.train.diverged import require_finite_epoch
from nn.train.epoch_log import EpochLog
from nn.train.rank_resources import RankResources
from nn.train.step_queue import StepQueue
from nn.train.watcher import Announcer
from nn.train.workers import AsynchronousReport, LostRank
from pyrt.exchange import Exchange
from pyrt.exchange.server.leg import Leg, Server, ServerSide, Worker
from pyrt.exchange.server.roles import Roles

Sums = dict[int, tuple[float, int]]
"""Holds, for each epoch from 0, the sum of the losses of samples, and the number of samples."""


class LegLog:
    """Adds up the losses of a leg on the first server, and tells of each step over all workers.

    Its loss is the mean over the last p updates, for p workers.
    """

    def __init__(self, leg: tuple[int, int], roles: Roles, sums: Sums, announcer: Announcer) -> None:
        """``leg``: the step with which it begins, and the number of steps in an epoch."""
        self._step, batches = leg
        self._in_epoch = roles.workers * batches
        self._latest = [(0.0, 0)] * roles.workers
        self._roles, self._sums, self._announcer = roles, sums, announcer
        self._updates = 0

    def note(self, grant: int, loss: float, samples: int) -> None:
        """See `pyrt.exchange.server.leg.Note`."""
        latest, epoch = self._latest, grant // self._in_epoch
        total, counted = self._sums.get(epoch, (0.0, 0))
        self._sums[epoch] = total + loss, counted + samples
        latest[self._updates % len(latest)] = loss, samples
        self._updates += 1
        if self._updates % len(latest) == 0:
            self._announcer.queued(1)
            self._announcer.loss(self._step, _mean(latest))
            self._step += 1

    def lost(self, rank: int) -> None:
        """Note that a rank has died."""
        self._announcer.lost(LostRank(rank, self._roles.is_server(rank), self._step))


class Legs:
    """The legs of a training, as one rank sees them."""

    def __init__(
        self,
        exchange: ServerSide,
        resources: RankResources,
        shard: Shard,
        problem: Problem,
        queue: StepQueue | None,
    ) -> None:
        settings, schedule = problem.settings, problem.schedule
        self._exchange, self._job, self._shard, self._schedule = exchange, resources.job, shard, schedule
        self._queue = queue
        self._is_synchronous = settings.asynchrony.is_synchronous
        self._roles = Roles(resources.job.size, settings.asynchrony.servers)
        self._ends = [schedule.batches] if settings.epoch_barrier else []
        if settings.checkpoint is not None:
            self._ends.append(settings.steps_between_checkpoints(schedule.batches))
        self._first = self._own = 0
        self.step = 0
        """The step where all ranks have met."""
        self.loss = math.nan
        """The mean over the samples of the last leg."""

    @classmethod
    def of(
        cls,
        exchange: Exchange,
        resources: RankResources,
        shard: Shard,
        problem: Problem,
        queue: StepQueue | None,
    ) -> Legs | None:
        """Return those of a training with this exchange; None where it has no parameter servers.

        A worker queues its steps in the ``queue``; a server has none.
        """
        if not isinstance(exchange, ServerSide):
            return None
        return cls(exchange, resources, shard, problem, queue)

    def updates(self, step: int) -> int:
        """Count the updates of so many steps."""
        return step if self._is_synchronous else step * self._roles.workers

    def begin(self, step: int, log: EpochLog, announcer: Announcer) -> None:
        """Begin after so many steps; losses go to the log and the announcer. Collective."""
        self.step = self._first = self._own = step
        self._log, self._announcer = log, announcer
        self._exchange.start_at(self.updates(step))
        self._exchange.begin()

    def advance(self, last: int, checkpointer: Checkpointer | None) -> tuple[list[Epoch], bool]:
        """Train to where all ranks meet again, at step ``last`` or before. Collective.

        Returns the epochs that have ended, and whether a checkpoint is due. Raises Diverged, on all ranks,
        when the loss of an epoch is not finite.
        """
        sums = self._run(last, checkpointer is not None)
        ended = self._log.add_leg(self.step, sums)
        self.loss = _mean(sums.values())
        for epoch in ended:
            require_finite_epoch(epoch)
        is_due = checkpointer is not None and checkpointer.is_due_where_all_meet(self.step)
        return ended, is_due

    def _run(self, last: int, may_end_early: bool) -> Sums:
        """Make the steps of a leg; return the losses of the steps before the one where all meet."""
        first = self.step
        stop = min([last, *(first - first % end + end for end in self._ends)])
        sums: Sums = {}
        log = LegLog((first, self._schedule.batches), self._roles, sums, self._announcer)
        leg = Leg(first, stop, may_end_early, log.note, log.lost)
        if self._exchange.is_server:
            cast(Server, self._exchange).serve(leg)
        else:
            worker = cast(Worker, self._exchange)
            worker.lead(leg, lambda: self._make_step(worker))
        self.step = self._exchange.meet_at()
        return self._job.comm.bcast(sums)

    def _make_step(self, worker: Worker) -> None:
        """Make this worker's next step, whose number is its own."""
        assert self._queue is not None  # only servers have none
        size = self._schedule.size(self._own)
        start, stop = self._shard.own_samples(size)
        worker.begin_step(stop - start, size if self._is_synchronous else stop - start)
        self._queue.queue(self._queue.next_run(self._own, self._own + 1, 1))
        self._own += 1

    def report(self) -> AsynchronousReport:
        """Tell of the training up to where all have met. Collective.

        The first server knows of the ranks that have died in legs; others may have died since.
        """
        known = list(self._job.comm.bcast(self._announcer.lost_ranks))
        gone = sorted(set(range(self._roles.ranks)) - {*self._job.members, *(one.rank for one in known)})
        known += [LostRank(rank, self._roles.is_server(rank), self.step) for rank in gone]
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


def _mean(sums: Collection[tuple[float, int]]) -> float:
    """Return the mean loss of samples, from sums of losses, each of so many samples; 0 of none."""
    return sum(total for total, _ in sums) / max(1, sum(samples for _, samples in sums))
