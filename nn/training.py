"""The loop: batches in, steps, sums over ranks, losses out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing

import numpy as np

from nn.ahead import Deferred, Helper, Worker
from nn.checkpoints.keeper import Keeper
from nn.console import Console
from nn.data import Dataset
from nn.epoch_log import EpochLog
from nn.evaluation import Evaluator
from nn.feed import Feed
from nn.fuse import fuse
from nn.gather import gather_updated
from nn.losses import LossLog
from nn.machine import Machine
from nn.model import Model
from nn.operations import Item, Operation
from nn.panels import gradient_layout, panels
from nn.plan import RankPart
from nn.problem import Problem
from nn.progress import Progress
from nn.replay import MOST, Gate, GatedLinks, Launched, Replayed, Run, Steps, runs
from nn.resident import Resident
from nn.source import Batches
from nn.step import EmptyStep, Pass, TrainingStep, bind
from nn.streamed import Streamed, steps_in_chunk
from nn.update import SgdUpdate
from pyrt import exchange
from pyrt.exchange import Exchange
from pyrt.exchange.choose import Choice
from pyrt.exchange.in_turn import InTurn
from pyrt.graphs import Recorder
from pyrt.job import AgreedError, agreed_by_some
from pyrt.memory import Arena
from pyrt.moves import Links

READ_EVERY = 4
"""Steps between two copies of their losses to the host, where the device computes beside it."""

_GATHERING = 14
"""Threads that gather rows, a chunk each: 3000 rows take one 0.2 to 0.6 ms, their step a fast GPU 0.06."""

_DRAWING = 8
"""Threads that draw an epoch's order each: 60,000 rows take one 0.7 ms, and four fast GPUs need 0.3 ms for 5
batches of 12,000. With 3 threads their steps would take 60 us, with 6 or more 57 (H100)."""


class Diverged(AgreedError):
    """The loss is not finite. All ranks see it at the same step."""

    code = 1


class Training:
    """A run's steps, built before the first one."""

    def __init__(
        self,
        problem: Problem,
        model: Model,
        machine: Machine,
        placement: str,
        graphs: bool,
    ) -> None:
        """``placement`` is where the training set lies, ``graphs`` whether steps are replayed from graphs.

        Collective. Raises UserError, on all ranks, where one has no memory left, or an exchange cannot work.
        """
        self._options, self._schedule = problem.options, problem.schedule
        self._model, self._machine = model, machine
        self.printed: list[tuple[int, float]] = []
        self._graphs = graphs
        with ExitStack() as opened:
            with machine.job.together():  # memory may end on one of them, and exchanges wait for all
                self._allocate()
                make = self._resident if placement == "resident" else self._streamed
                with machine.driver.ledger.of("batches"):
                    self._batches = opened.enter_context(closing(make(problem.dataset)))
            self._exchange = self._make_exchange(opened)
            with machine.job.together():
                self._steps = self._make_all_steps()
            self._opened = opened.pop_all()
        ends = [self._batches.together, problem.options.print_every, self._steps_between_checkpoints()]
        self._ends = [end for end in ends if end is not None]

    def close(self) -> None:
        """Let go of what is not this process's own, and of threads. Safe to call twice."""
        self._opened.close()

    def _steps_between_checkpoints(self) -> int | None:
        if self._options.checkpoint is None:
            return None
        return self._options.steps_between_checkpoints(self._schedule.batches)

    def _allocate(self) -> None:
        options, model, machine = self._options, self._model, self._machine
        driver, streams, phases = machine.driver, machine.streams, machine.phases
        with driver.ledger.of("gradients"):
            self._gradients = Arena(driver, gradient_layout(model.part, options.dtype))
        with driver.ledger.of("momentum"):
            self._velocity = Arena(driver, model.parameters.layout) if options.momentum else None
        exchanges = machine.ways.all.name, machine.ways.shard.name
        self._panels = panels(model.part, self._gradients.layout, *exchanges)
        self._iteration = phases.phase("batch iteration", streams.compute)
        reading = phases.phase("losses device -> host")
        with driver.ledger.of("losses"):
            self._log = LossLog(driver, streams, reading, self._gradients["loss"], READ_EVERY)
        start, stop = RankPart(model.part.plan, model.network, 0).own_samples(self._schedule.batch)
        self._most_rows = stop - start

    def _streamed(self, dataset: Dataset) -> Batches:
        machine, schedule, rows = self._machine, self._schedule, self._most_rows
        steps = 1  # without threads there is nothing to hand over, and less stays in the caches
        if machine.driver.has_kernels:
            steps = steps_in_chunk(rows * dataset.images[:1].nbytes, schedule.batches)
        feed = Feed(
            machine.driver,
            machine.streams,
            machine.phases.phase("copying images host -> device", machine.streams.upload),
            dataset.images,
            dataset.labels,
            steps * rows,
            self._helpers(min(_GATHERING, -(-schedule.steps // steps))),
        )
        return Streamed(feed, schedule, self._model.part, rows, self._helpers(_DRAWING))

    def _resident(self, dataset: Dataset) -> Batches:
        machine, schedule = self._machine, self._schedule
        return Resident(
            machine.driver,
            machine.streams,
            machine.phases.phase,
            dataset.images[: schedule.used],
            dataset.labels[: schedule.used],
            schedule,
            self._most_rows,
            self._helpers(_DRAWING),
        )

    def _helpers(self, most: int) -> list[Helper]:
        """As many threads as there are cores beside that of the thread which queues work; at least one."""
        if not self._machine.driver.has_kernels:
            return [Deferred()]
        return [Worker() for _ in range(max(1, min(most, self._machine.job.threads - 1)))]

    def _make_update(self, ends_steps: bool = True) -> SgdUpdate:
        options, model, machine = self._options, self._model, self._machine
        return SgdUpdate(
            model.network,
            model.parameters,
            self._gradients,
            self._velocity,
            options.lr,
            options.momentum,
            options.reg,
            machine.kernels,
            self._log.ring if ends_steps else None,
            model.terms,
        )

    def _make_exchange(self, opened: ExitStack) -> Exchange:
        """Of buckets that all ranks sum, and of those that ranks of one shard do; the loss is in the last.

        Collective. What it is made of is closed with what is ``opened``.
        """
        loss_over_all = self._model.part.plan.loss_over_all
        makers = {True: self._machine.ways.all, False: self._machine.ways.shard}
        parts = []
        for over_all in (not loss_over_all, loss_over_all):
            buckets = [index for index, panel in enumerate(self._panels) if panel.over_all == over_all]
            if buckets:
                update = self._make_update(ends_steps=over_all == loss_over_all)
                made = self._exchange_of(makers[over_all], buckets, update)
                parts.append((buckets, opened.enter_context(closing(made))))
        return parts[0][1] if len(parts) == 1 else InTurn(parts)

    def _exchange_of(self, choice: Choice, buckets: Sequence[int], update: SgdUpdate) -> Exchange:
        machine = self._machine
        setting = exchange.Setting(
            machine.driver,
            machine.streams,
            choice.job,
            choice.node,
            machine.phases,
            self._model.parameters.flat,
            self._gradients.flat,
            [self._panels[index].bucket for index in buckets],
            update,
        )
        with machine.job.together(), agreed_by_some(), machine.driver.ledger.of("exchange"):
            return exchange.create(choice.name, setting)

    def _steps_at_once(self) -> int:
        """Up to how many steps one graph holds; more than one where nothing in a step needs the host."""
        schedule, every = self._schedule, self._options.print_every
        if not (self._exchange.on_device and self._machine.links.on_device):
            return 1
        return min(MOST, schedule.samples // schedule.batch, self._batches.together, every or MOST)

    def _make_all_steps(self) -> dict[int, Steps]:
        """By the sizes of batches."""
        machine = self._machine
        self._most = self._steps_at_once() if self._graphs else 1
        recorder = Recorder(machine.driver, machine.streams.compute, machine.phases) if self._graphs else None
        return {size: self._make_steps(size, recorder) for size in self._schedule.sizes}

    def _make_steps(self, batch: int, recorder: Recorder | None) -> Steps:
        """The steps with batches of this size."""
        links = self._machine.links
        if recorder is None:
            return Launched(self._make_step(batch, self._exchange, links), self._exchange)
        gate = Gate(self._exchange, recorder, len(self._panels))
        step = self._make_step(batch, gate, GatedLinks(links, recorder, gate))
        most = self._most if batch == self._schedule.batch else 1
        return Replayed(step, self._exchange, recorder, most)

    def _make_step(self, batch: int, exchange: Exchange, links: Links) -> TrainingStep | EmptyStep:
        """This rank's part of such a step; an empty one where its group gets no sample."""
        machine = self._machine
        start, stop = self._model.part.group_samples(batch)
        if start == stop:
            skip = bind(self._batches.skip(), machine.streams, machine.kernels)
            return EmptyStep(
                self._gradients, len(self._panels), machine.streams, machine.phases, exchange, skip
            )
        items = self._items(batch)
        return TrainingStep(items, machine.streams, machine.phases, machine.kernels, exchange, links)

    def _items(self, batch: int) -> list[Item]:
        """From its images to this rank's gradients."""
        model, machine = self._model, self._machine
        start, stop = model.part.group_samples(batch)
        source = self._batches.source(model.part.own_samples(batch)[0])
        work = Pass(model.part, model.parameters, model.activations, source, self._options.pixel_scale)
        items = work.gradients(self._gradients, self._panels, stop - start, batch)
        # Under --profile each operation is seen by itself.
        return items if self._options.profile else fuse(items, machine.kernels, model.pool, model.known)

    def set_velocity(self, whole: Mapping[str, np.ndarray]) -> None:
        """Of all parameters: this rank takes its part. Without any they stay as they are: zeros."""
        if self._velocity is not None and whole:
            self._velocity.set(self._model.part.cut(dict(whole)))

    def whole_velocity(self) -> dict[str, np.ndarray]:
        """Gather all momentum on rank 0; empty on others, and where there is none. Collective."""
        if self._velocity is None:
            return {}
        part, job = self._model.part, self._machine.job
        return gather_updated(part, self._velocity.flat, self._exchange.updates, job)

    def operations(self) -> list[Operation]:
        """What this rank's part of a whole batch's step is made of, in order; its update in one."""
        return [
            *(item for item in self._items(self._schedule.batch) if isinstance(item, Operation)),
            self._make_update().operation(*(panel.bucket for panel in self._panels), ends_step=True),
        ]

    def run(
        self, validation: Evaluator | None, console: Console, start: Progress, keeper: Keeper | None
    ) -> Progress:
        """Train all steps behind ``start``; the ``keeper`` may keep checkpoints of them, and stop before the
        last one. How far it came. Raises Diverged, on all ranks, when a loss is not finite.

        Without validation the steps of an epoch are queued before the last losses of the one before are
        read: the device never waits for the host in between.
        """
        log = EpochLog(self._schedule, validation, console, start)
        with closing(self), console.bar(self._schedule.steps) as bar:
            bar.update(start.step)
            if start.step < self._schedule.steps:
                self._log.start(start.step)
                self._batches.start(start.step)
            for run in runs(self._schedule, start.step, self._most, self._ends, self._graphs):
                self._queue(run)
                due = keeper is not None and keeper.is_due(run.stop, log.step)
                losses = self._log.read(run.stop, now=due or self._waits(run.stop, validation))
                log.share_time([step for step, _ in losses])
                for step, loss in losses:
                    self._check(step, loss, console)
                    log.add(step, loss)
                bar.update(run.steps)
                if due and keeper is not None:
                    keeper.keep(log.progress)
                    if keeper.is_preempted:
                        break
        return log.progress

    def _waits(self, stop: int, validation: Evaluator | None) -> bool:
        """Whether the losses of all steps before this one are read before others are queued.

        NumPy has done these steps: reading their losses waits for nothing, and tells when each of them ended.
        """
        is_done = not self._machine.driver.has_kernels
        ends_epoch = stop % self._schedule.batches == 0
        is_validated = ends_epoch and validation is not None
        return is_done or is_validated or self._prints(stop - 1) or stop == self._schedule.steps

    def _queue(self, run: Run) -> None:
        batches, last = self._batches, run.stop - 1
        steps = self._steps[self._schedule.size(run.first)]
        self._iteration.weight = run.steps
        self._machine.phases.barrier()
        with self._iteration:
            batches.begin(run.first)
            steps.start(run.steps, run.timed)
            batches.end(last)
            batches.ahead(last)
            steps.finish()

    def _prints(self, step: int) -> bool:
        every = self._options.print_every
        return every is not None and (step + 1) % every == 0

    def _check(self, step: int, loss: float, console: Console) -> None:
        """Diverged if the loss of a step is not finite; print it if it is to be."""
        epoch, batch = self._schedule.epoch(step) + 1, step % self._schedule.batches + 1
        if not math.isfinite(loss):
            raise Diverged(
                f"the loss is {loss} at epoch {epoch}, step {batch}: no result was written; "
                "try a smaller --lr"
            )
        if self._prints(step):
            self.printed.append((step + 1, loss))
            console.say(f"step {step + 1:6d}  epoch {epoch}  loss {loss:.6f}")
