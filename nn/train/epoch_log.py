"""Adds up the losses and the time of each epoch."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

from nn.input.schedule import Schedule
from nn.problem.progress import Epoch, Progress
from nn.train.evaluation import Evaluator
from nn.train.workers import Workers


class EpochLog:
    """The epochs of a run so far, and the sums of the current one.

    The host reads the losses of several steps at once (nn/train/losses.py), perhaps of several epochs. Steps
    read together share the time since the previous read, so the epochs add up to the time of training.
    """

    def __init__(
        self,
        schedule: Schedule,
        validation: Evaluator | None,
        start: Progress,
        workers: Workers | None = None,
        meets: bool = True,
    ) -> None:
        """With ``workers`` each adds the losses of its samples, and an epoch's sum is over all of them.

        It is known at the epoch's end if they meet there, else where they next meet: see `collect`.
        """
        self._schedule, self._validation, self._workers = schedule, validation, workers
        self.step = start.step
        """So many steps have their losses here."""
        self._epochs, self._total = list(start.epochs), start.loss_sum
        if workers is not None:
            self._total = workers.kept(self._total)
        self._seconds = self._seconds_per_sample = 0.0
        self._meets = meets
        self._unknown: list[tuple[float, float]] = []
        """Of epochs that ended where workers did not meet: this one's sum of losses, and seconds."""
        self._shared_until = time.perf_counter()

    @property
    def progress(self) -> Progress:
        """After the last step that was added."""
        return Progress(self.step, list(self._epochs), self._total)

    def share_time(self, steps: Sequence[int]) -> None:
        """Share the time since the last call over these steps, in proportion to their samples.

        To be called before they are added; without any steps the next call shares the time.
        """
        samples = sum(map(self._schedule.size, steps))
        if samples:
            self._seconds_per_sample = self._lap() / samples

    def add(self, step: int, loss: float) -> Epoch | None:
        """Add the loss of the next step. Returns its epoch where it is the last one of it, validated."""
        self.step = step + 1
        samples = self._schedule.size(step)
        self._total += (loss if self._workers is None else self._workers.part(step, loss)) * samples
        self._seconds += self._seconds_per_sample * samples
        if self.step % self._schedule.batches:
            return None
        if self._meets:
            return self._end(self._schedule.epoch(step) + 1)
        self._unknown.append((self._total, self._seconds))
        self._total = self._seconds = 0.0
        return None

    def add_leg(self, stop: int, sums: Mapping[int, tuple[float, int]]) -> list[Epoch]:
        """Add all steps up to this one, where all ranks have met; return the epochs that have ended.

        ``sums`` has for epochs, from 0, the sum of their samples' losses, and how many samples there were:
        perhaps others than the steps would have in turn, which the mean stands for. An epoch is validated if
        it ends here.
        """
        first, self.step = self.step, stop
        schedule, ended = self._schedule, []
        rest = max(1, schedule.samples_between(first, stop))
        seconds = self._lap() / rest
        for epoch in range(schedule.epoch(first), schedule.epoch(stop - 1) + 1):
            begin, end = max(first, epoch * schedule.batches), min(stop, (epoch + 1) * schedule.batches)
            samples, (total, counted) = schedule.samples_between(begin, end), sums.get(epoch, (0.0, 0))
            self._total += total if counted == samples else total / max(1, counted) * samples
            self._seconds += seconds * samples
            if end % schedule.batches == 0:
                ended.append(self._end(epoch + 1, validates=end == stop))
        return ended

    def collect(self) -> list[Epoch]:
        """Add up the workers' sums where all have met; return the epochs that have ended since they last did.

        Collective with workers.
        """
        if self._workers is None:
            return []
        unknown, self._unknown = self._unknown, []
        current, ended = (self._total, self._seconds), []
        for left, (self._total, self._seconds) in enumerate(unknown, 1 - len(unknown)):
            validates = left == 0 and self.step % self._schedule.batches == 0
            ended.append(self._end(len(self._epochs) + 1, validates))
        self._total, self._seconds = current
        self._total = self._workers.kept(self._workers.total(self._total))
        return ended

    def _lap(self) -> float:
        """Seconds since the last call."""
        before, self._shared_until = self._shared_until, time.perf_counter()
        return self._shared_until - before

    def _end(self, number: int, validates: bool = True) -> Epoch:
        total, self._total = self._total, 0.0
        if self._workers is not None:
            total = self._workers.total(total)
        loss = total / self._schedule.samples
        precision = held_out = None
        if (
            self._validation is not None and validates
        ):  # then all steps that were read together are of this epoch
            scores = self._validation.scores()
            precision, held_out = scores.precision, scores.loss
            self._seconds += self._lap()
        if held_out is not None and not math.isfinite(held_out):
            held_out = None  # the next step's loss will say so, or the parameters
        seconds, self._seconds = self._seconds, 0.0
        self._epochs.append(Epoch(number, loss, precision, held_out, seconds))
        return self._epochs[-1]
