"""Training with parameter servers, in legs: from where all ranks have met to where they meet again.

A leg has so many steps for each worker, whoever makes them: a worker asks for another one when it pushes the
gradients of the last. So a slow worker makes fewer, and all meet when the last steps are over. Ranks meet
where an epoch ends, where a checkpoint is due, and where one is asked to stop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np

from nn.input.schedule import Schedule
from nn.parallel.shard import Shard
from nn.problem.settings import Settings
from nn.train.rank_resources import RankResources
from nn.train.workers import AsynchronousReport
from pyrt.exchange import Exchange
from pyrt.exchange.server.leg import Leg, ServerSide
from pyrt.exchange.server.roles import Roles

Sums = dict[int, tuple[float, int]]
"""For epochs, from 0: the sum of the losses of samples, and how many these are."""


Shown = Callable[[int, float], None]
"""Is told of each step over all workers: its number, and the mean loss of the last updates, one for each
worker."""


class Losses:
    """Adds up the losses of a leg, on the first server."""

    def __init__(self, sums: Sums, first: int, workers: int, schedule: Schedule, shown: Shown) -> None:
        """The leg begins with step ``first``."""
        self._sums, self._step, self._shown = sums, first, shown
        self._latest = [(0.0, 0)] * workers
        self._in_epoch = workers * schedule.batches
        self._updates = 0

    def __call__(self, grant: int, loss: float, samples: int) -> None:
        """See `pyrt.exchange.server.leg.Note`."""
        latest, epoch = self._latest, grant // self._in_epoch
        total, counted = self._sums.get(epoch, (0.0, 0))
        self._sums[epoch] = total + loss, counted + samples
        latest[self._updates % len(latest)] = loss, samples
        self._updates += 1
        if self._updates % len(latest) == 0:
            self._shown(self._step, sum(one for one, _ in latest) / sum(count for _, count in latest))
            self._step += 1


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
        self._first = self._own = 0

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
        if resources.groups.all.name != "server":
            return None
        return cls(cast(ServerSide, exchange), resources, shard, schedule, settings)

    def updates(self, step: int) -> int:
        """Count the updates of so many steps."""
        return step if self._is_synchronous else step * self._roles.workers

    def begin(self, step: int) -> None:
        """Begin after so many steps. Collective."""
        self._first = self._own = step
        self._exchange.start_at(self.updates(step))
        self._exchange.begin()

    def run(
        self, first: int, last: int, may_end_early: bool, queue: Callable[[int], None], shown: Shown
    ) -> tuple[int, Sums]:
        """Train from step ``first``, where all ranks have met, to where they meet again. Collective.

        A worker calls ``queue`` with the number of each step that it makes, of its own. Returns the step
        where they meet, ``last`` at most, and the losses of the steps before it.
        """
        stop = min([last, *(first - first % end + end for end in self._ends)])
        sums: Sums = {}
        leg = Leg(first, stop, may_end_early, Losses(sums, first, self._roles.workers, self._schedule, shown))
        if self._exchange.is_server:
            self._exchange.serve(leg)
        else:
            self._exchange.lead(leg, lambda: self._make_step(queue))
        step = self._exchange.meet_at()
        return step, self._job.comm.bcast(sums)

    def _make_step(self, queue: Callable[[int], None]) -> None:
        """Make this worker's next step."""
        size = self._schedule.size(self._own)
        start, stop = self._shard.own_samples(size)
        self._exchange.begin_step(stop - start, size if self._is_synchronous else stop - start)
        queue(self._own)
        self._own += 1

    def report(self) -> AsynchronousReport:
        """Tell of the training up to where all have met. Collective."""
        counts = self._exchange.counts()
        coverage = self._schedule.coverage(self._first)
        if self._shard.works:
            mine = self._schedule.coverage_of(self._shard.own_samples, self._first, self._own)
        else:
            mine = np.zeros_like(coverage)
        coverage = coverage + self._job.comm.allreduce(mine)
        return AsynchronousReport.of(self._roles.workers, counts.updates, coverage, servers=counts)
