"""nn/train/epoch_log.py and nn/train/epoch_clock.py: each epoch has its own loss, validation and time."""

import time
from types import SimpleNamespace

import pytest

from nn.app.options import Options
from nn.input.schedule import Schedule
from nn.problem.progress import Epoch, Progress
from nn.train.epoch_clock import EpochClock
from nn.train.epoch_log import EpochLog
from nn.train.step_queue import StepQueue
from pyrt.driver.cpu import CpuDriver
from pyrt.driver.emulated import EmulatedDriver
from tests import few
from train import train


class Clock:
    """Stands for the events of a driver: one that is recorded gets the time that there is."""

    now = 100.0

    def __init__(self):
        self.waited = []

    def create_event(self, timing):
        assert timing
        return SimpleNamespace(time=None)

    def record(self, event, stream):
        event.time = self.now

    def synchronize_event(self, event):
        self.waited.append(event)

    def elapsed(self, start, stop):
        assert stop in self.waited
        return stop.time - start.time


class Validation:
    """Takes 3 seconds."""

    def __init__(self, clock):
        self.clock = clock

    def scores(self):
        self.clock.now += 3
        return SimpleNamespace(precision=0.5, loss=2.0)


SCHEDULE = Schedule(rows=40, samples=40, batch=30, epochs=6, shuffle=False, seed=0)
"""Epochs of a step of 30 samples and one of 10."""


def queue(log, clock, step, seconds):
    clock.now += seconds
    log.queued(step + 1)


def seconds_of(log):
    return [epoch.seconds for epoch in log.progress.epochs]


def test_epochs_whose_losses_are_read_together_have_their_own_time():
    log = EpochLog(SCHEDULE, None, Progress(), EpochClock(clock := Clock(), None, 4))
    for step, seconds in enumerate((3, 1, 10, 2, 4, 0.5)):
        queue(log, clock, step, seconds)
    for step in range(6):
        log.add(step, 1.0)
    queue(log, clock, 6, 7)
    queue(log, clock, 7, 1)
    for step in 6, 7:
        log.add(step, 1.0)
    assert seconds_of(log) == [4, 12, 4.5, 8]


def test_an_epoch_has_its_loss_its_validation_and_the_time_of_both():
    clock = Clock()
    start = Progress(2, [Epoch(1, 9.0, 0.25, 3.0, 8.0)])
    log = EpochLog(SCHEDULE, Validation(clock), start, EpochClock(clock, None, 4))
    for step in range(2, 6):
        queue(log, clock, step, step)
        log.add(step, float(step))
    assert log.progress.epochs[1:] == [Epoch(2, 2.25, 0.5, 2.0, 8.0), Epoch(3, 4.25, 0.5, 2.0, 12.0)]
    said = log.progress.epochs[-1].line(SCHEDULE.epochs)
    assert said == "epoch 3/6  loss 4.250000  validation precision 0.5000  12.000 s"


def test_what_is_done_between_two_epochs_counts_to_none():
    log = EpochLog(SCHEDULE, None, Progress(), EpochClock(clock := Clock(), None, 4))
    for step in range(4):
        clock.now += 50  # within an epoch it cannot be told from work
        log.go_on()
        queue(log, clock, step, 1)
        log.add(step, 1.0)
    assert seconds_of(log) == [52, 52]


def test_work_that_is_not_read_yet_is_not_forgotten():
    """A caller that goes on before the last losses are read takes no time away."""
    log = EpochLog(SCHEDULE, None, Progress(), EpochClock(clock := Clock(), None, 4))
    for step in range(4):
        queue(log, clock, step, 1)
    log.go_on()
    for step in range(4):
        log.add(step, 1.0)
    assert seconds_of(log) == [2, 2]


def seconds_of_epochs(device, driver, taken, monkeypatch, **options):
    """Return the seconds that a run tells if its epochs, of one step, take so long by the test's clock."""
    queue, clock = StepQueue.queue, Clock()

    def queue_slowly(steps, run):
        queue(steps, run)
        clock.now += sum(taken[run.first : run.stop])

    def record(_, event, stream):
        times[event] = clock.now
        recorded(_, event, stream)

    times, recorded = {}, driver.record
    monkeypatch.setattr(StepQueue, "queue", queue_slowly)
    monkeypatch.setattr(driver, "record", record)
    # Events within graphs are recorded by replays: they time phases.
    monkeypatch.setattr(driver, "elapsed", lambda _, *ends: times.get(ends[1], 0) - times.get(ends[0], 0))
    options = {"hidden": (5,), "batch": 64, "samples": 64, "val_fraction": 0.0, **options}
    report = train(Options(epochs=len(taken), device=device, **options))
    return [epoch.seconds for epoch in report.epochs]


TAKEN = [8.0, 1.0, 2.0, 4.0, 16.0, 0.5, 0.25]


def test_epochs_of_one_step_have_their_own_time_on_the_cpu(monkeypatch):
    assert seconds_of_epochs("cpu", CpuDriver, TAKEN, monkeypatch) == TAKEN


@pytest.mark.kernels
@pytest.mark.parametrize("graph", few([True], of=[False, True]))
def test_so_they_have_where_the_host_does_not_wait_for_each(graph, monkeypatch):
    assert seconds_of_epochs("emulated", EmulatedDriver, TAKEN, monkeypatch, graph=graph) == TAKEN


def test_the_times_of_epochs_add_up_to_no_more_than_the_run():
    begin = time.perf_counter()
    report = train(Options(epochs=5, hidden=(5,), batch=64, samples=64, device="cpu"))
    seconds = [epoch.seconds for epoch in report.epochs]
    assert all(second > 0 for second in seconds) and sum(seconds) < time.perf_counter() - begin
