"""nn/train/epoch_log.py: each epoch has its own time, and all epochs add up to the time of training."""

from types import SimpleNamespace

import pytest

from nn.app.options import Options
from nn.input.schedule import Schedule
from nn.problem.progress import Epoch, Progress
from nn.train import epoch_log
from nn.train.epoch_log import EpochLog
from nn.train.step_queue import StepQueue
from train import train


class Clock:
    """What stands for the time module: it goes on when it is told to."""

    now = 100.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(epoch_log, "time", clock := Clock())
    return clock


class Validation:
    """Takes 3 seconds."""

    def __init__(self, clock):
        self.clock = clock

    def scores(self):
        self.clock.now += 3
        return SimpleNamespace(precision=0.5, loss=2.0)


SCHEDULE = Schedule(rows=40, samples=40, batch=30, epochs=6, shuffle=False, seed=0)
"""Epochs of a step of 30 samples and one of 10."""


def add(log, steps):
    log.share_time(steps)
    for step in steps:
        log.add(step, float(step))


def test_steps_that_are_read_together_share_the_time_by_their_samples(clock):
    log = EpochLog(SCHEDULE, None, Progress())
    for seconds, steps in ((3, [0]), (1, []), (10, [1, 2, 3, 4, 5, 6]), (2, [7, 8, 9]), (4, [10, 11])):
        clock.now += seconds
        add(log, steps)
    # 11 s for 10 + 30 + 10 + 30 + 10 + 30 samples, 2 s for 10 + 30 + 10
    seconds = [epoch.seconds for epoch in log.progress.epochs]
    assert seconds == pytest.approx([3 + 11 / 12, 11 / 3, 11 / 3, 11 / 4 + 0.4, 1.6, 4])
    assert sum(seconds) == pytest.approx(clock.now - 100)


def test_an_epoch_has_its_loss_its_validation_and_the_time_of_both(clock):
    log = EpochLog(SCHEDULE, Validation(clock), Progress(2, [Epoch(1, 9.0, 0.25, 3.0, 8.0)]))
    for steps in ([2], [3], [4, 5]):
        clock.now += 1
        add(log, steps)
    assert log.progress.epochs[1:] == [Epoch(2, 2.25, 0.5, 2.0, 5.0), Epoch(3, 4.25, 0.5, 2.0, 4.0)]
    said = log.progress.epochs[-1].line(SCHEDULE.epochs)
    assert said == "epoch 3/6  loss 4.250000  validation precision 0.5000  4.000 s"


def seconds_of_epochs(device, taken, clock, monkeypatch):
    """Those that a run prints whose epochs, of one step, take so long."""
    queue = StepQueue.queue

    def queue_slowly(steps, run):
        queue(steps, run)
        clock.now += sum(taken[run.first : run.stop])

    monkeypatch.setattr(StepQueue, "queue", queue_slowly)
    report = train(
        Options(hidden=(5,), epochs=len(taken), batch=64, samples=64, val_fraction=0.0, device=device)
    )
    return [epoch.seconds for epoch in report.epochs]


def test_epochs_of_one_step_have_their_own_time_on_the_cpu(clock, monkeypatch):
    taken = [8.0, 1.0, 2.0, 4.0, 16.0]
    assert seconds_of_epochs("cpu", taken, clock, monkeypatch) == taken


@pytest.mark.kernels
def test_epochs_of_one_step_share_the_time_where_the_host_does_not_wait_for_each(clock, monkeypatch):
    assert seconds_of_epochs("emulated", [8.0, 1.0, 2.0, 4.0], clock, monkeypatch) == [3.75] * 4
