"""A training on one rank: all that its steps need, made before the first one, and the loop over them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace

import numpy as np

from nn.checkpoints.checkpointer import Checkpointer
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
from nn.train.step_loop import StepLoop
from nn.train.step_queue import StepQueue
from nn.train.training_batches import open_batches
from nn.train.training_exchange import ExchangeOpener
from nn.train.training_steps import StepMaker
from nn.train.watcher import Announcer, Watcher
from nn.train.workers import AsynchronousReport, Workers, own_schedule, role_of
from pyrt.exchange import QueueWork

READ_EVERY = 4
"""Steps between two copies of their losses to the host, where the device computes beside it."""


class Training:
    """A rank's part of a training; close it in the end."""

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
        self._model, self._resources = model, resources
        self.printed: list[tuple[int, float]] = []
        """The steps whose losses ``print_every`` asks for, counted from 1, and these losses."""
        self._own_schedule = own_schedule(problem, resources.groups.all.name, model.shard)
        with ExitStack() as opened:
            with resources.job.agree():  # memory may end on one of them, and exchanges wait for all
                self._allocate(problem)
                batches = self._open_batches(problem, placement, opened)
            opener = ExchangeOpener(
                model, self._arrays, resources, self._losses.ring, self._wrapped, self._settings.asynchrony
            )
            self._exchange = opener.open(opened)
            self._workers = Workers.of(self._exchange, resources, model.shard, self._schedule)
            with resources.job.agree():
                self._queue = self._make_queue(batches, graphs) if batches is not None else None
            self._loop = self._make_loop(problem)
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

    def _make_loop(self, problem: Problem) -> StepLoop | Legs:
        resources, shard = self._resources, self._model.shard
        legs = Legs.of(self._exchange, resources, shard, problem, self._queue)
        if legs is not None:
            return legs
        assert self._queue is not None  # only parameter servers have none
        return StepLoop(self._queue, self._losses, self._workers, problem, resources.driver)

    def _allocate(self, problem: Problem) -> None:
        model, resources = self._model, self._resources
        driver, streams, phases = resources.driver, resources.streams, resources.phases
        exchanges = resources.groups.all.name, resources.groups.same_shard.name
        role = role_of(problem, exchanges[0], model.shard)
        self._arrays = TrainingArrays(
            model, problem.optimiser, exchanges, problem.augmenter, problem.constraint, role
        )
        self._clock = EpochClock(driver, streams.compute, most=RING)
        reading = phases.phase("losses device -> host")
        with driver.ledger.of("losses"):
            self._losses = LossLog(driver, streams, reading, self._arrays.gradients["loss"], READ_EVERY)

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
        self._arrays.set_state(whole, step, self._loop.updates(step))

    def whole_state(self) -> dict[str, dict[str, np.ndarray]]:
        """Gather all that the optimiser keeps of parameters on rank 0; empty dicts on others. Collective."""
        shard, job = self._model.shard, self._resources.job
        return {
            name: gather_updated(shard, arena.flat, self._exchange.updates, job)
            for name, arena in self._arrays.state.arenas.items()
        }

    def operations(self) -> list[Operation]:
        """List the operations of this rank's step for a full batch, in order, with the update as one."""
        update = self._arrays.update(self._losses.ring)
        return [
            *(item for item in self._maker.items(self._schedule.batch) if isinstance(item, Operation)),
            *update.operations(*(panel.bucket for panel in self._arrays.panels), ends_step=True),
        ]

    def begin(
        self,
        start: Progress,
        validation: Evaluator | None,
        watcher: Watcher | None = None,
        recorded: RecordedSteps | None = None,
    ) -> None:
        """Go on behind ``start``: to be called once, before `epochs`. Epochs end with the validation."""
        schedule, settings = self._schedule, self._settings
        self._log = EpochLog(schedule, validation, start, self._clock, self._workers, settings.epoch_barrier)
        announcer = Announcer(watcher or Watcher(), schedule, settings.print_every)
        self.printed = announcer.printed
        self._loop.begin(start.step, self._log, announcer)
        self._losses.start(start.step)
        if self._queue is not None:
            self._queue.start(start.step, recorded)

    def epochs(self, last: int, checkpointer: Checkpointer | None = None) -> Iterator[Epoch]:
        """Train up to the step ``last``; yield each epoch when its last loss is known.

        The ``checkpointer`` may keep checkpoints, and stop before the last step: see `progress`. Raises
        Diverged, on all ranks, when a loss is not finite.
        """
        self._log.go_on()
        while self._loop.step < last:
            ended, is_due = self._loop.advance(last, checkpointer)
            yield from ended
            if is_due and checkpointer is not None:
                checkpointer.keep(self.progress)
                self._log.go_on()
                if checkpointer.is_preempted:
                    break

    def asynchronous_report(self) -> AsynchronousReport | None:
        """Tell of workers that do not wait for each other, where all have met; None where they do.

        Collective.
        """
        return self._loop.report()

    @property
    def step(self) -> int:
        """Return how many steps are queued."""
        return self._loop.step

    @property
    def loss(self) -> float:
        """Return the loss of the last step whose loss was read; with parameter servers, of the last leg."""
        return self._loop.loss

    @property
    def progress(self) -> Progress:
        """Tell how far the training has come: after the last step whose loss was read."""
        return self._log.progress
