"""The loop: batches in, steps, sums over ranks, losses out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing

import numpy as np

from nn.checkpoints.checkpointer import Checkpointer
from nn.parallel.gather import gather_updated
from nn.problem.problem import Problem
from nn.problem.progress import Epoch, Progress
from nn.program.operations import Operation
from nn.program.rank_model import RankModel, TrainingArrays
from nn.train.check_each import TOLERANCES, CheckedOperation
from nn.train.epoch_log import EpochLog
from nn.train.evaluation import Evaluator
from nn.train.losses import LossLog
from nn.train.rank_resources import RankResources
from nn.train.recorded_steps import RecordedSteps
from nn.train.replay import MOST, Run, Steps, next_run
from nn.train.training_batches import open_batches
from nn.train.training_exchange import ExchangeOpener
from nn.train.training_steps import StepMaker
from nn.train.workers import Workers
from pyrt.exchange import QueueWork
from pyrt.graphs import Recorder
from pyrt.job import AgreedError

READ_EVERY = 4
"""Steps between two copies of their losses to the host, where the device computes beside it."""


class Diverged(AgreedError):
    """A loss or a parameter is not finite. All ranks see it at the same step."""

    code = 1


class Watcher:
    """Is told what goes on while a network trains; this one keeps it to itself."""

    def queued(self, steps: int) -> None:
        """Note that so many more steps are queued."""

    def loss(self, step: int, epoch: int, loss: float) -> None:
        """Note the loss of a step that ``print_every`` asks for; step and epoch count from 1."""


class Training:
    """A run's steps, built before the first one."""

    def __init__(
        self,
        problem: Problem,
        model: RankModel,
        resources: RankResources,
        placement: str,
        graphs: bool,
    ) -> None:
        """``placement`` is where the training set lies, ``graphs`` whether steps are replayed from graphs.

        Collective. Raises UserError, on all ranks, where one has no memory left, or an exchange cannot work.
        """
        self._settings, self._schedule = problem.settings, problem.schedule
        self._optimiser, self._augmenter = problem.optimiser, problem.augmenter
        self._constraint = problem.constraint
        self._model, self._resources = model, resources
        self.printed: list[tuple[int, float]] = []
        self.step = 0
        """So many steps are queued."""
        self.loss = math.nan
        """Of the last step whose loss was read."""
        self._graphs = graphs
        with ExitStack() as opened:
            with resources.job.agree():  # memory may end on one of them, and exchanges wait for all
                self._allocate()
                with resources.driver.ledger.of("batches"):
                    made = open_batches(problem, model.shard, resources, placement)
                self._batches = opened.enter_context(closing(made))
            opener = ExchangeOpener(
                model, self._arrays, resources, self._log.ring, self._wrapped, self._settings.atomic
            )
            self._exchange = opener.open(opened)
            self.workers = Workers.of(self._exchange, resources, model.shard, self._schedule)
            """Those that do not wait for each other, if it is so."""
            self._maker = StepMaker(
                model, self._arrays, resources, self._batches, self._exchange, self._wrapped
            )
            with resources.job.agree():
                self._steps = self._make_all_steps()
            self._opened = opened.pop_all()
        ends = [self._batches.steps_at_once, problem.settings.print_every, self._steps_between_checkpoints()]
        self._ends = [end for end in ends if end is not None]

    def close(self) -> None:
        """Free what is shared with other processes, and end threads. Safe to call twice."""
        self._opened.close()

    def _steps_between_checkpoints(self) -> int | None:
        if self._settings.checkpoint is None:
            return None
        return self._settings.steps_between_checkpoints(self._schedule.batches)

    def _allocate(self) -> None:
        model, resources = self._model, self._resources
        driver, streams, phases = resources.driver, resources.streams, resources.phases
        exchanges = resources.groups.all.name, resources.groups.same_shard.name
        self._arrays = TrainingArrays(model, self._optimiser, exchanges, self._augmenter, self._constraint)
        self._panels = self._arrays.panels
        self._iteration = phases.phase("batch iteration", streams.compute)
        reading = phases.phase("losses device -> host")
        with driver.ledger.of("losses"):
            self._log = LossLog(driver, streams, reading, self._arrays.gradients["loss"], READ_EVERY)

    def _steps_at_once(self) -> int:
        """Return the most steps that one graph holds: one, unless nothing in a step needs the host."""
        schedule, every = self._schedule, self._settings.print_every
        if not (self._exchange.on_device and self._resources.links.on_device):
            return 1
        return min(MOST, schedule.samples // schedule.batch, self._batches.steps_at_once, every or MOST)

    def _make_all_steps(self) -> dict[int, Steps]:
        """Make the steps of each size of batch."""
        self.most, sizes, full = 1, self._schedule.sizes, self._schedule.batch
        if not self._graphs:
            return {size: self._maker.launched(size) for size in sizes}
        self.most, resources = self._steps_at_once(), self._resources
        recorder = Recorder(resources.driver, resources.streams.compute, resources.phases)
        return {
            size: self._maker.replayed(size, recorder, self.most if size == full else 1) for size in sizes
        }

    def _wrapped(self, operation: Operation, queue: QueueWork) -> QueueWork:
        """Put around the operation what the settings ask for."""
        if self._resources.fork is not None:
            queue = self._resources.fork.wrap(operation, queue, self._resources.kernels)
        return self._checked(operation, queue)

    def _checked(self, operation: Operation, queue: QueueWork) -> QueueWork:
        """Wrap the operation in a check against NumPy, in the first steps, if --check-each asks for it."""
        steps, settings = self._settings.check_each, self._settings
        if not steps:
            return queue
        accuracy = settings.math if settings.dtype == "float32" else settings.dtype
        return CheckedOperation(operation, queue, steps, TOLERANCES[accuracy])

    def set_state(self, whole: Mapping[str, Mapping[str, np.ndarray]], step: int) -> None:
        """Take this rank's part of what the optimiser kept after so many steps; without any: zeros."""
        self._arrays.set_state(whole, step)

    def whole_state(self) -> dict[str, dict[str, np.ndarray]]:
        """Gather all that the optimiser keeps of parameters on rank 0; empty dicts on others. Collective."""
        shard, job = self._model.shard, self._resources.job
        return {
            name: gather_updated(shard, arena.flat, self._exchange.updates, job)
            for name, arena in self._arrays.state.arenas.items()
        }

    def operations(self) -> list[Operation]:
        """List the operations of this rank's step for a full batch, in order, with the update as one."""
        update = self._arrays.update(self._log.ring)
        return [
            *(item for item in self._maker.items(self._schedule.batch) if isinstance(item, Operation)),
            *update.operations(*(panel.bucket for panel in self._panels), ends_step=True),
        ]

    def begin(
        self,
        start: Progress,
        validation: Evaluator | None,
        watcher: Watcher | None = None,
        recorded: RecordedSteps | None = None,
    ) -> None:
        """Go on behind ``start``: to be called once, before `advance`. Epochs end with the validation."""
        self._log_of_epochs = EpochLog(self._schedule, validation, start, self.workers)
        if self.workers is not None:
            self.workers.begin()
        self._validation, self._watcher, self._recorded = validation, watcher or Watcher(), recorded
        self.step = start.step
        if start.step < self._schedule.steps:
            self._log.start(start.step)
            self._batches.start(start.step)

    def advance(self, stop: int, most: int, reads: Callable[[int], bool]) -> list[Epoch]:
        """Queue up to ``most`` steps, not past ``stop``; return the epochs whose last losses have been read.

        Reads all pending losses when ``reads(step)`` is true. Raises Diverged, on all ranks, when a loss is
        not finite.

        Without validation the steps of an epoch are queued before the last losses of the one before are
        read: the device never waits for the host in between.
        """
        run = self._next_run(stop, most)
        self._queue(run)
        self.step = run.stop
        is_read = reads(run.stop)
        losses = self._log.read(run.stop, now=is_read or self._waits(run.stop))
        if self.workers is not None and (is_read or self._ends_epoch(run.stop)):
            self.workers.meet()
        log, ended = self._log_of_epochs, []
        log.share_time([step for step, _ in losses])
        for step, loss in losses:
            self._check(step, loss)
            self.loss = loss
            epoch = log.add(step, loss)
            if epoch is not None:
                self._require_finite(epoch)
                ended.append(epoch)
        if is_read:
            log.collect()
        self._watcher.queued(run.steps)
        if self._recorded is not None:
            self._recorded.end(run.first)
        return ended

    def _next_run(self, stop: int, most: int) -> Run:
        """Choose the steps to queue next, up to ``most`` of them and not past ``stop``."""
        if not self._graphs:
            return Run(self.step, 1, False)
        if self._recorded is not None:
            stop = self._recorded.limit(self.step, stop)
        return next_run(self._schedule, self.step, stop, min(most, self.most), self._ends)

    def epochs(self, last: int, checkpointer: Checkpointer | None = None) -> Iterator[Epoch]:
        """Train up to the step ``last``; yield each epoch when its last loss is known.

        The ``checkpointer`` may keep checkpoints, and stop before the last step: see `progress`.
        """
        due = False

        def reads(step: int) -> bool:
            nonlocal due
            due = checkpointer is not None and checkpointer.is_due(step, self._log_of_epochs.step)
            return due or step == last

        while self.step < last:
            yield from self.advance(last, self.most, reads)
            if due and checkpointer is not None:
                checkpointer.keep(self.progress)
                if checkpointer.is_preempted:
                    break

    @property
    def progress(self) -> Progress:
        """How far the training has come: after the last step whose loss was read."""
        return self._log_of_epochs.progress

    def _waits(self, stop: int) -> bool:
        """Return whether to wait for the losses of all steps before ``stop`` before queueing more steps.

        NumPy has done these steps: reading their losses waits for nothing, and tells when each of them ended.
        """
        is_done = not self._resources.driver.has_kernels
        meets = self._validation is not None or self.workers is not None
        return (
            is_done
            or (self._ends_epoch(stop) and meets)
            or self._prints(stop - 1)
            or stop == self._schedule.steps
        )

    def _ends_epoch(self, stop: int) -> bool:
        return stop % self._schedule.batches == 0

    def _queue(self, run: Run) -> None:
        batches, last = self._batches, run.stop - 1
        steps = self._steps[self._schedule.size(run.first)]
        is_recorded = self._recorded is not None and self._recorded.begin(run.first)
        self._iteration.weight = run.steps
        self._resources.phases.barrier()
        with self._iteration:
            batches.begin(run.first)
            if is_recorded:
                steps.launch()
            else:
                steps.start(run.steps, run.timed)
            batches.end(last)
            batches.prefetch(last)
            steps.finish()

    def _prints(self, step: int) -> bool:
        every = self._settings.print_every
        return every is not None and (step + 1) % every == 0

    def _check(self, step: int, loss: float) -> None:
        """Raise Diverged if the loss of a step is not finite; tell it if it is to be.

        A worker's own loss is not known to the others: they see that of the epoch.
        """
        epoch, batch = self._schedule.epoch(step) + 1, step % self._schedule.batches + 1
        if not math.isfinite(loss) and self.workers is None:
            raise Diverged(
                f"the loss is {loss} at epoch {epoch}, step {batch}: no result was written; "
                "try a smaller --lr"
            )
        if self._prints(step):
            self.printed.append((step + 1, loss))
            self._watcher.loss(step + 1, epoch, loss)

    def _require_finite(self, epoch: Epoch) -> None:
        """Raise Diverged if the loss of an epoch is not finite."""
        if not math.isfinite(epoch.loss):
            raise Diverged(
                f"the loss of epoch {epoch.epoch} is {epoch.loss}: no result was written; try a smaller --lr"
            )
