"""The loop of a training whose ranks make the same steps: it queues them, and reads their losses later.

Of parameter servers and their workers the loop is `nn.train.legs`.
"""

from __future__ import annotations

import math

from nn.checkpoints.checkpointer import Checkpointer
from nn.problem.problem import Problem
from nn.problem.progress import Epoch
from nn.train.diverged import require_finite_epoch, require_finite_loss
from nn.train.epoch_log import EpochLog
from nn.train.losses import LossLog
from nn.train.replay import MOST
from nn.train.step_queue import StepQueue
from nn.train.watcher import Announcer
from nn.train.workers import AsynchronousReport, Workers
from pyrt.driver import Driver


class StepLoop:
    """Queues the steps of one rank, and takes their losses."""

    def __init__(
        self, queue: StepQueue, losses: LossLog, workers: Workers | None, problem: Problem, driver: Driver
    ) -> None:
        """With ``workers`` ranks make these steps without waiting for each other."""
        self._queue, self._losses, self._workers = queue, losses, workers
        self._schedule, self._meets_at_ends = problem.schedule, problem.settings.epoch_barrier
        self._computes_at_once = not driver.has_kernels
        self.step = 0
        """Counts the steps that are queued."""
        self.loss = math.nan
        """Holds the loss of the last step whose loss was read."""

    def updates(self, step: int) -> int:
        """Count the updates of so many steps."""
        return step

    def begin(self, step: int, log: EpochLog, announcer: Announcer) -> None:
        """Begin after so many steps; losses go to the log and the announcer. Collective."""
        self.step, self._log, self._announcer = step, log, announcer
        if self._workers is not None:
            self._workers.begin()

    def advance(self, last: int, checkpointer: Checkpointer | None) -> tuple[list[Epoch], bool]:
        """Queue some steps, not past ``last``.

        Returns the epochs whose last losses have been read, and whether a checkpoint is due; then, and at
        the last step, no loss is pending. Raises Diverged, on all ranks, when a loss is not finite.

        Without validation the steps of an epoch are queued before the last losses of the one before are
        read: the device never waits for the host in between.
        """
        run = self._queue.next_run(self.step, last, MOST)
        self._queue.queue(run)
        self.step = run.stop
        log, ended = self._log, []
        log.queued(run.stop)
        is_due = checkpointer is not None and checkpointer.is_due(run.stop, log.step)
        is_read = is_due or run.stop == last
        losses = self._losses.read(run.stop, now=is_read or self._waits(run.stop))
        if self._workers is not None and (is_read or self._meets(run.stop)):
            self._workers.meet()
        for step, loss in losses:
            self._check(step, loss)
            self.loss = loss
            epoch = log.add(step, loss)
            if epoch is not None:
                require_finite_epoch(epoch)
                ended.append(epoch)
        if is_read:
            known_now = log.collect()
            for epoch in known_now:
                require_finite_epoch(epoch)
            ended += known_now
        self._announcer.queued(run.steps)
        self._queue.end(run)
        return ended, is_due

    def report(self) -> AsynchronousReport | None:
        """Tell of workers that do not wait for each other, where all have met; None where they do.

        Collective.
        """
        return self._workers.report(self.step) if self._workers is not None else None

    def _waits(self, stop: int) -> bool:
        """Return whether to wait for the losses of all steps before ``stop`` before queueing more steps.

        NumPy has done these steps: reading their losses waits for nothing.
        """
        return (
            self._computes_at_once
            or self._meets(stop)
            or (self._ends_epoch(stop) and self._log.validates_at_ends)
            or self._announcer.tells_loss(stop - 1)
            or stop == self._schedule.steps
        )

    def _meets(self, stop: int) -> bool:
        """Return whether workers wait for each other behind these steps, whatever else there is to do."""
        return self._workers is not None and self._meets_at_ends and self._ends_epoch(stop)

    def _ends_epoch(self, stop: int) -> bool:
        return stop % self._schedule.batches == 0

    def _check(self, step: int, loss: float) -> None:
        """Raise Diverged if the loss of a step is not finite; tell it if it is to be told.

        A worker's own loss is not known to the others: they see that of the epoch.
        """
        if self._workers is None:
            require_finite_loss(loss, step, self._schedule)
        self._announcer.loss(step, loss)
