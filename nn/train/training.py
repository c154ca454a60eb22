"""The loop: batches in, steps, sums over ranks, losses out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace

import numpy as np

from nn.checkpoints.checkpointer import Checkpointer
from nn.input.schedule import Schedule
from nn.input.source import Batches
from nn.parallel.gather import gather_updated
from nn.problem.problem import Problem
from nn.problem.progress import Epoch, Progress
from nn.program.operations import Operation
from nn.program.rank_model import RankModel, TrainingArrays
from nn.train.check_each import TOLERANCES, CheckedOperation
from nn.train.epoch_clock import EpochClock
from nn.train.epoch_log import EpochLog
from nn.train.evaluation import Evaluator
from nn.train.legs import Legs
from nn.train.losses import RING, LossLog
from nn.train.rank_resources import RankResources
from nn.train.recorded_steps import RecordedSteps
from nn.train.replay import MOST
from nn.train.step_queue import StepQueue
from nn.train.training_batches import open_batches
from nn.train.training_exchange import ExchangeOpener
from nn.train.training_steps import StepMaker
from nn.train.workers import AsynchronousReport, LostRank, Workers, own_schedule, role_of
from pyrt.exchange import QueueWork
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

    def lost(self, rank: LostRank) -> None:
        """Note that a rank has died, and training goes on."""


class ToldOfLegs:
    """Passes the progress of legs on to a watcher, and keeps printed losses and lost ranks."""

    def __init__(self, watcher: Watcher, schedule: Schedule, every: int | None) -> None:
        """The losses of each ``every``-th step are wanted."""
        self._watcher, self._schedule, self._every = watcher, schedule, every
        self.printed: list[tuple[int, float]] = []
        self.lost_ranks: list[LostRank] = []

    def step(self, step: int, loss: float) -> None:
        """See `nn.train.legs.Told`."""
        self._watcher.queued(1)
        if self._every is not None and (step + 1) % self._every == 0:
            self.printed.append((step + 1, loss))
            self._watcher.loss(step + 1, self._schedule.epoch(step) + 1, loss)

    def lost(self, rank: LostRank) -> None:
        """See `nn.train.legs.Told`."""
        self.lost_ranks.append(rank)
        self._watcher.lost(rank)


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
        self._own_schedule = own_schedule(problem, resources.groups.all.name, model.shard)
        with ExitStack() as opened:
            with resources.job.agree():  # memory may end on one of them, and exchanges wait for all
                self._allocate(problem)
                batches = self._open_batches(problem, placement, opened)
            opener = ExchangeOpener(
                model, self._arrays, resources, self._log.ring, self._wrapped, self._settings.asynchrony
            )
            self._exchange = opener.open(opened)
            self._workers = Workers.of(self._exchange, resources, model.shard, self._schedule)
            self._legs = Legs.of(self._exchange, resources, model.shard, self._schedule, self._settings)
            with resources.job.agree():
                self._queue = self._make_queue(batches, graphs) if batches is not None else None
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Free what is shared with other processes, and end threads. Safe to call twice."""
        self._opened.close()

    def _open_batches(self, problem: Problem, placement: str, opened: ExitStack) -> Batches | None:
        """Open the batches of this rank; a parameter server has none."""
        resources, shard = self._resources, self._model.shard
        if not shard.works:
            return None
        own = replace(problem, schedule=self._own_schedule)
        with resources.driver.ledger.of("batches"):
            made = open_batches(own, shard, resources, placement)
        return opened.enter_context(closing(made))

    def _make_queue(self, batches: Batches, graphs: bool) -> StepQueue:
        maker = StepMaker(self._model, self._arrays, self._resources, batches, self._exchange, self._wrapped)
        self._maker = maker
        return StepQueue(maker, self._own_schedule, self._settings, graphs)

    def _allocate(self, problem: Problem) -> None:
        model, resources = self._model, self._resources
        driver, streams, phases = resources.driver, resources.streams, resources.phases
        exchanges = resources.groups.all.name, resources.groups.same_shard.name
        role = role_of(problem, exchanges[0], model.shard)
        self._arrays = TrainingArrays(
            model, self._optimiser, exchanges, self._augmenter, self._constraint, role
        )
        self._panels = self._arrays.panels
        self._clock = EpochClock(driver, streams.compute, most=RING)
        reading = phases.phase("losses device -> host")
        with driver.ledger.of("losses"):
            self._log = LossLog(driver, streams, reading, self._arrays.gradients["loss"], READ_EVERY)

    def _wrapped(self, operation: Operation, queue: QueueWork) -> QueueWork:
        """Wrap the operation as the settings ask: forked to other ranks, checked."""
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
        self._arrays.set_state(whole, step, self._legs.updates(step) if self._legs is not None else step)

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
        self._log_of_epochs = EpochLog(
            self._schedule,
            validation,
            start,
            self._clock,
            self._workers,
            self._settings.epoch_barrier,
        )
        if self._workers is not None:
            self._workers.begin()
        if self._legs is not None:
            self._legs.begin(start.step)
        self._validation, self._watcher, self._recorded = validation, watcher or Watcher(), recorded
        self._told = ToldOfLegs(self._watcher, self._schedule, self._settings.print_every)
        self.printed = self._told.printed
        self.step = start.step
        self._log.start(start.step)
        if self._queue is not None:
            self._queue.start(start.step, recorded)

    def advance(self, stop: int, most: int, reads: Callable[[int], bool]) -> list[Epoch]:
        """Queue up to ``most`` steps, not past ``stop``; return the epochs whose last losses have been read.

        Reads all pending losses when ``reads(step)`` is true. Raises Diverged, on all ranks, when a loss is
        not finite.

        Without validation the steps of an epoch are queued before the last losses of the one before are
        read: the device never waits for the host in between.
        """
        assert self._queue is not None  # parameter servers train in legs
        run = self._queue.next_run(self.step, stop, most)
        self._queue.queue(run)
        self.step = run.stop
        log, ended = self._log_of_epochs, []
        log.queued(run.stop)
        is_read = reads(run.stop)
        losses = self._log.read(run.stop, now=is_read or self._waits(run.stop))
        if self._workers is not None and (is_read or self._meets(run.stop)):
            self._workers.meet()
        for step, loss in losses:
            self._check(step, loss)
            self.loss = loss
            epoch = log.add(step, loss)
            if epoch is not None:
                self._require_finite(epoch)
                ended.append(epoch)
        if is_read:
            known_now = log.collect()
            for epoch in known_now:
                self._require_finite(epoch)
            ended += known_now
        self._watcher.queued(run.steps)
        if self._recorded is not None:
            self._recorded.end(run.first)
        return ended

    def epochs(self, last: int, checkpointer: Checkpointer | None = None) -> Iterator[Epoch]:
        """Train up to the step ``last``; yield each epoch when its last loss is known.

        The ``checkpointer`` may keep checkpoints, and stop before the last step: see `progress`.
        """
        self._log_of_epochs.go_on()
        if self._legs is not None:
            yield from self._epochs_in_legs(self._legs, last, checkpointer)
            return
        due = False

        def reads(step: int) -> bool:
            nonlocal due
            due = checkpointer is not None and checkpointer.is_due(step, self._log_of_epochs.step)
            return due or step == last

        while self.step < last:
            yield from self.advance(last, MOST, reads)
            if due and checkpointer is not None:
                checkpointer.keep(self.progress)
                self._log_of_epochs.go_on()
                if checkpointer.is_preempted:
                    break

    def _epochs_in_legs(self, legs: Legs, last: int, checkpointer: Checkpointer | None) -> Iterator[Epoch]:
        """Do the same with parameter servers, which grant the steps."""
        while self.step < last:
            self.step, sums = legs.run(
                self.step, last, checkpointer is not None, self._make_own_step, self._told
            )
            ended = self._log_of_epochs.add_leg(self.step, sums)
            self.loss = sum(total for total, _ in sums.values()) / max(1, sum(n for _, n in sums.values()))
            for epoch in ended:
                self._require_finite(epoch)
            due = checkpointer is not None and checkpointer.is_due_where_all_meet(self.step)
            yield from ended
            if due and checkpointer is not None:
                checkpointer.keep(self.progress)
                self._log_of_epochs.go_on()
                if checkpointer.is_preempted:
                    break

    def _make_own_step(self, step: int) -> None:
        """Make a step of this worker, whose number is its own."""
        assert self._queue is not None
        self._queue.queue(self._queue.next_run(step, step + 1, 1))

    def asynchronous_report(self) -> AsynchronousReport | None:
        """Tell of workers that do not wait for each other, where all have met; None where they do.

        Collective.
        """
        if self._legs is not None:
            return self._legs.report(self._told.lost_ranks)
        return self._workers.report(self.step) if self._workers is not None else None

    @property
    def progress(self) -> Progress:
        """How far the training has come: after the last step whose loss was read."""
        return self._log_of_epochs.progress

    def _waits(self, stop: int) -> bool:
        """Return whether to wait for the losses of all steps before ``stop`` before queueing more steps.

        NumPy has done these steps: reading their losses waits for nothing.
        """
        is_done = not self._resources.driver.has_kernels
        validates = self._validation is not None and self._settings.epoch_barrier
        return (
            is_done
            or self._meets(stop)
            or (self._ends_epoch(stop) and validates)
            or self._prints(stop - 1)
            or stop == self._schedule.steps
        )

    def _meets(self, stop: int) -> bool:
        """Return whether workers wait for each other behind these steps, whatever else there is to do."""
        return self._workers is not None and self._settings.epoch_barrier and self._ends_epoch(stop)

    def _ends_epoch(self, stop: int) -> bool:
        return stop % self._schedule.batches == 0

    def _prints(self, step: int) -> bool:
        every = self._settings.print_every
        return every is not None and (step + 1) % every == 0

    def _check(self, step: int, loss: float) -> None:
        """Raise Diverged if the loss of a step is not finite; tell it if it is to be.

        A worker's own loss is not known to the others: they see that of the epoch.
        """
        epoch, batch = self._schedule.epoch(step) + 1, step % self._schedule.batches + 1
        if not math.isfinite(loss) and self._workers is None:
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
