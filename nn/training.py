"""The loop: batches in, steps, sums over ranks, losses out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from nn.batches import Schedule
from nn.console import Console
from nn.data import Dataset
from nn.evaluation import Evaluator
from nn.feed import Feed, Slot
from nn.machine import Machine
from nn.model import Model
from nn.options import Options
from nn.plan import gradient_layout, panels, share
from nn.step import EmptyStep, TrainingStep, training_items
from nn.update import SgdUpdate
from pyrt import exchange
from pyrt.driver import Driver
from pyrt.exchange import Exchange
from pyrt.job import AgreedError
from pyrt.memory import Arena, DeviceArray, pinned
from pyrt.streams import Streams


class Diverged(AgreedError):
    """The loss is not finite. All ranks see it at the same step."""

    code = 1


@dataclass(frozen=True)
class Epoch:
    """Mean loss over an epoch's samples while it trained, precision after it, seconds it took."""

    epoch: int
    loss: float
    validation_precision: float | None
    seconds: float


class LossLog:
    """The loss of each step, summed over ranks with the gradients, read back a few steps later.

    Every rank reads the loss of a given step at the same place in the loop, so that all stop together.
    """

    DELAY = 2
    """Steps after which a loss is read: long done by then, so reading it waits for nothing."""

    def __init__(self, driver: Driver, streams: Streams, loss: DeviceArray) -> None:
        self._driver, self._stream, self._loss = driver, streams.compute, loss
        slots = range(self.DELAY + 1)
        self._host = [pinned(driver, (1,), loss.dtype) for _ in slots]
        self._copied = [driver.create_event(timing=False) for _ in slots]

    def record(self, step: int) -> None:
        """Queue the copy of the loss of this step."""
        slot = step % len(self._host)
        self._driver.copy_to_host(self._host[slot], self._loss.pointer, self._stream)
        self._driver.record(self._copied[slot], self._stream)

    def read(self, step: int) -> float:
        """The loss of one of the last ``DELAY + 1`` steps."""
        slot = step % len(self._host)
        self._driver.synchronize_event(self._copied[slot])
        return float(self._host[slot][0])


class Training:
    """A run's steps, built before the first one."""

    def __init__(
        self, options: Options, model: Model, machine: Machine, dataset: Dataset, schedule: Schedule
    ) -> None:
        self._options, self._model, self._machine, self._schedule = options, model, machine, schedule
        driver, streams, phases = machine.driver, machine.streams, machine.phases
        self._gradients = Arena(driver, gradient_layout(model.network, options.dtype))
        self._panels = panels(model.network, self._gradients.layout)
        self._exchange = self._make_exchange()
        self._iteration = phases.phase("batch iteration", streams.compute)
        copying = phases.phase("copying images host -> device", streams.upload)
        self._feed = Feed(driver, streams, copying, dataset.images, dataset.labels, model.activations.rows)
        self.printed: list[tuple[int, float]] = []
        self._log = LossLog(driver, streams, self._gradients["loss"])
        self._steps = [
            {size: self._make_step(slot, size) for size in schedule.sizes} for slot in self._feed.slots
        ]

    def _make_exchange(self) -> Exchange:
        options, model, machine = self._options, self._model, self._machine
        update = SgdUpdate(
            model.network,
            model.parameters,
            self._gradients,
            Arena(machine.driver, model.parameters.layout) if options.momentum else None,
            options.lr,
            options.momentum,
            options.reg,
            machine.kernels,
        )
        setting = exchange.Setting(
            machine.driver,
            machine.streams,
            machine.job,
            machine.phases,
            self._gradients.flat,
            [panel.bucket for panel in self._panels],
            update,
        )
        return exchange.create(options.exchange, setting)

    def _make_step(self, slot: Slot, batch: int) -> TrainingStep | EmptyStep:
        """The step of this rank's part of a batch that comes through this slot."""
        model, machine = self._model, self._machine
        start, stop = share(batch, machine.job.size, machine.job.rank)
        if start == stop:
            buckets = len(self._panels)
            return EmptyStep(self._gradients, buckets, machine.streams, machine.phases, self._exchange)
        items = training_items(
            model.network,
            model.parameters,
            self._gradients,
            model.activations,
            self._panels,
            slot,
            stop - start,
            batch,
            self._options.pixel_scale,
        )
        return TrainingStep(items, machine.streams, machine.phases, machine.kernels, self._exchange)

    def run(self, validation: Evaluator | None, console: Console) -> list[Epoch]:
        """Train all epochs. Raises Diverged, on all ranks, when a loss is not finite."""
        epochs: list[Epoch] = []
        with console.bar(self._schedule.steps) as bar:
            if self._schedule.steps:
                self._stage(0)
            for number in range(self._schedule.epochs):
                started = time.perf_counter()
                loss = self._epoch(number, bar.update, console)
                precision = validation.scores().precision if validation is not None else None
                epochs.append(Epoch(number + 1, loss, precision, time.perf_counter() - started))
                console.say(_epoch_line(epochs[-1], self._schedule.epochs))
        return epochs

    def _epoch(self, epoch: int, advance: Callable[[], object], console: Console) -> float:
        first, stop = epoch * self._schedule.batches, (epoch + 1) * self._schedule.batches
        total = 0.0
        unread = first
        for step in range(first, stop):
            self._step(step)
            due = step if self._prints(step) else step - self._log.DELAY
            while unread <= due or (step == stop - 1 and unread < stop):
                total += self._read(unread, console)
                unread += 1
            advance()
        return total / self._schedule.samples

    def _step(self, step: int) -> None:
        feed, batch = self._feed, self._schedule.size(step)
        self._machine.phases.barrier()
        with self._iteration:
            feed.begin(step)
            self._steps[step % len(feed.slots)][batch].run()
            feed.end(step)
            if step + 1 < self._schedule.steps:
                self._stage(step + 1)
            self._exchange.finish()
            self._log.record(step)

    def _stage(self, step: int) -> None:
        """Send this rank's part of a batch on its way."""
        job = self._machine.job
        rows = self._schedule.rows(step)
        start, stop = share(len(rows), job.size, job.rank)
        self._feed.stage(step, rows[start:stop])

    def _prints(self, step: int) -> bool:
        every = self._options.print_every
        return every is not None and (step + 1) % every == 0

    def _read(self, step: int, console: Console) -> float:
        """The loss of a step times its samples; Diverged if it is not finite."""
        loss = self._log.read(step)
        epoch, batch = self._schedule.epoch(step) + 1, step % self._schedule.batches + 1
        if not math.isfinite(loss):
            raise Diverged(
                f"the loss is {loss} at epoch {epoch}, step {batch}: nothing was written; try a smaller --lr"
            )
        if self._prints(step):
            self.printed.append((step + 1, loss))
            console.say(f"step {step + 1:6d}  epoch {epoch}  loss {loss:.6f}")
        return loss * self._schedule.size(step)


def _epoch_line(epoch: Epoch, epochs: int) -> str:
    line = f"epoch {epoch.epoch:{len(str(epochs))}d}/{epochs}  loss {epoch.loss:.6f}"
    if epoch.validation_precision is not None:
        line += f"  validation precision {epoch.validation_precision:.4f}"
    return f"{line}  {epoch.seconds:.3f} s"
