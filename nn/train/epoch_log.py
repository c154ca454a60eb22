"""Adds up the losses of each epoch, validates it, and notes its time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import partial

from nn.input.schedule import Schedule
from nn.problem.progress import Epoch, Progress
from nn.train.epoch_clock import EpochClock
from nn.train.evaluation import Evaluator
from nn.train.workers import Workers


class EpochLog:
    """The epochs of a run so far, and the sums of the current one.

    The host reads the losses of several steps at once (nn/train/losses.py), perhaps of several epochs. The
    clock, which is in the stream of the steps, tells how long each took; in legs the host's own does.
    """

    def __init__(
        self,
        schedule: Schedule,
        validation: Evaluator | None,
        start: Progress,
        clock: EpochClock,
        workers: Workers | None = None,
        meets: bool = True,
    ) -> None:
        """With ``workers`` each adds the losses of its samples, and an epoch's sum is over all of them.

        It is known at the epoch's end if they meet there, else where they next meet: see `collect`.
        """
        self._schedule, self._validation, self._workers = schedule, validation, workers
        self._clock = clock
        clock.start()
        self.step = start.step
        """So many steps have their losses here."""
        self._queued = start.step
        self._epochs, self._total = list(start.epochs), start.loss_sum
        if workers is not None:
            self._total = workers.kept(self._total)
        self._meets = meets
        self.validates_at_ends = validation is not None and meets
        """The clock is marked after an epoch's validation, not when its last step is queued."""
        self._unknown: list[tuple[float, float]] = []
        """This worker's sum of losses, and the seconds, of each epoch since workers last met."""
        self._in_legs, self._lapped = 0.0, time.perf_counter()

    @property
    def progress(self) -> Progress:
        """After the last step that was added."""
        return Progress(self.step, list(self._epochs), self._total)

    def go_on(self) -> None:
        """Note that something else was done: it counts to no epoch where it was between two of them."""
        if self._queued % self._schedule.batches == 0 and self.step == self._queued:
            self._clock.start()
            self._lap()

    def queued(self, stop: int) -> None:
        """Note that the steps before ``stop`` are queued: an epoch that ends there, unvalidated, is over."""
        self._queued = stop
        if stop % self._schedule.batches == 0 and not self.validates_at_ends:
            self._clock.mark()

    def add(self, step: int, loss: float) -> Epoch | None:
        """Add the loss of the next step. Returns its epoch where it is the last one of it, validated."""
        self.step = step + 1
        samples = self._schedule.size(step)
        self._total += (loss if self._workers is None else self._workers.part(step, loss)) * samples
        if self.step % self._schedule.batches:
            return None
        if self._meets:
            return self._end(self._schedule.epoch(step) + 1, self._clocked)
        self._unknown.append((self._total, self._clocked()))
        self._total = 0.0
        return None

    def add_leg(self, stop: int, sums: Mapping[int, tuple[float, int]]) -> list[Epoch]:
        """Add all steps up to this one, where all ranks have met; return the epochs that have ended.

        ``sums`` has for epochs, from 0, the sum of their samples' losses, and how many samples there were:
        perhaps others than the steps would have in turn, which the mean stands for. Epochs share the leg's
        time by their samples. An epoch is validated if it ends here.
        """
        first, self.step, self._queued = self.step, stop, stop
        schedule, ended = self._schedule, []
        a_sample = self._lap() / max(1, schedule.samples_between(first, stop))
        for epoch in range(schedule.epoch(first), schedule.epoch(stop - 1) + 1):
            begin, end = max(first, epoch * schedule.batches), min(stop, (epoch + 1) * schedule.batches)
            samples, (total, counted) = schedule.samples_between(begin, end), sums.get(epoch, (0.0, 0))
            self._total += total if counted == samples else total / max(1, counted) * samples
            self._in_legs += a_sample * samples
            if end % schedule.batches == 0:
                ended.append(self._end(epoch + 1, self._lapped_in_legs, validates=end == stop))
        return ended

    def collect(self) -> list[Epoch]:
        """Add up the workers' sums where all have met; return the epochs that have ended since they last did.

        Collective with workers.
        """
        if self._workers is None:
            return []
        unknown, self._unknown = self._unknown, []
        current, ended = self._total, []
        for left, (self._total, seconds) in enumerate(unknown, 1 - len(unknown)):
            validates = left == 0 and self.step % self._schedule.batches == 0
            ended.append(self._end(len(self._epochs) + 1, partial(float, seconds), validates))
        self._total = self._workers.kept(self._workers.total(current))
        return ended

    def _clocked(self) -> float:
        """Return the seconds of the next epoch by the stream's clock, validation included where it waits."""
        if self.validates_at_ends:
            self._clock.mark()
        return self._clock.seconds()

    def _lapped_in_legs(self) -> float:
        """Return the seconds of the current epoch by the host's clock, up to now."""
        seconds, self._in_legs = self._in_legs + self._lap(), 0.0
        return seconds

    def _lap(self) -> float:
        """Return the seconds since the last call."""
        before, self._lapped = self._lapped, time.perf_counter()
        return self._lapped - before

    def _end(self, number: int, seconds: Callable[[], float], validates: bool = True) -> Epoch:
        """End the current epoch; its ``seconds`` are asked for when it is validated."""
        total, self._total = self._total, 0.0
        if self._workers is not None:
            total = self._workers.total(total)
        loss = total / self._schedule.samples
        precision = held_out = None
        if self._validation is not None and validates:
            scores = self._validation.scores()
            precision, held_out = scores.precision, scores.loss
        if held_out is not None and not math.isfinite(held_out):
            held_out = None  # the next step's loss will say so, or the parameters
        self._epochs.append(Epoch(number, loss, precision, held_out, seconds()))
        return self._epochs[-1]
