"""Adds up the losses of each epoch, validates it, and notes its time."""

from __future__ import annotations

import math

from nn.input.schedule import Schedule
from nn.problem.progress import Epoch, Progress
from nn.train.epoch_clock import EpochClock
from nn.train.evaluation import Evaluator
from nn.train.workers import Workers


class EpochLog:
    """The epochs of a run so far, and the sums of the current one.

    The host reads the losses of several steps at once (nn/train/losses.py), perhaps of several epochs. The
    clock, which is in the stream of the steps, tells how long each took.
    """

    def __init__(
        self,
        schedule: Schedule,
        validation: Evaluator | None,
        start: Progress,
        clock: EpochClock,
        workers: Workers | None = None,
    ) -> None:
        """With ``workers`` each adds the losses of its samples, and an epoch's sum is over all of them."""
        self._schedule, self._validation, self._workers = schedule, validation, workers
        self._clock = clock
        clock.start()
        self.step = start.step
        """So many steps have their losses here."""
        self._queued = start.step
        self._epochs, self._total = list(start.epochs), start.loss_sum
        if workers is not None:
            self._total = workers.kept(self._total)

    @property
    def progress(self) -> Progress:
        """After the last step that was added."""
        return Progress(self.step, list(self._epochs), self._total)

    def go_on(self) -> None:
        """Note that something else was done: it counts to no epoch where it was between two of them."""
        if self._queued % self._schedule.batches == 0 and self.step == self._queued:
            self._clock.start()

    def queued(self, stop: int) -> None:
        """Note that the steps before ``stop`` are queued: an epoch that ends there, unvalidated, is over."""
        self._queued = stop
        if stop % self._schedule.batches == 0 and self._validation is None:
            self._clock.mark()

    def add(self, step: int, loss: float) -> Epoch | None:
        """Add the loss of the next step. Returns its epoch where it is the last one of it, validated."""
        self.step = step + 1
        samples = self._schedule.size(step)
        self._total += (loss if self._workers is None else self._workers.part(step, loss)) * samples
        ends = self.step % self._schedule.batches == 0
        return self._end(self._schedule.epoch(step) + 1) if ends else None

    def collect(self) -> None:
        """Add up the workers' sums of the current epoch, where all have met. Collective with workers."""
        if self._workers is not None:
            self._total = self._workers.kept(self._workers.total(self._total))

    def _end(self, number: int) -> Epoch:
        total, self._total = self._total, 0.0
        if self._workers is not None:
            total = self._workers.total(total)
        loss = total / self._schedule.samples
        precision = held_out = None
        if self._validation is not None:
            scores = self._validation.scores()
            precision, held_out = scores.precision, scores.loss
            self._clock.mark()
        if held_out is not None and not math.isfinite(held_out):
            held_out = None  # the next step's loss will say so, or the parameters
        self._epochs.append(Epoch(number, loss, precision, held_out, self._clock.seconds()))
        return self._epochs[-1]
