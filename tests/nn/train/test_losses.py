"""nn/train/losses.py: each loss is read once, in order, that of the step just queued when it must be."""

import itertools

import numpy as np
import pytest

from nn.program.step import bind
from nn.train.losses import RING, LossLog
from pyrt.arrays import DeviceArray
from pyrt.driver.cpu import CpuDriver
from pyrt.phases import Phases
from pyrt.streams import Streams
from tests import few
from tests.nn.ending import keep_loss


class Steps:
    """A log and a loss on a device; step k has the loss k + 0.5."""

    def __init__(self, driver, kernels, every, first):
        self.streams = Streams(driver)
        self.loss = DeviceArray.from_host(driver, np.zeros(1, np.float32))
        self.log = LossLog(driver, self.streams, Phases(0.0).phase("reading"), self.loss, every)
        self.keep_loss = bind(keep_loss(self.log.ring), self.streams, kernels)
        self.queued = first
        if first:
            self.log.start(first)

    def queue(self, count):
        for _ in range(count):
            self.loss.set(np.array([self.queued + 0.5], np.float32))
            self.keep_loss()
            self.loss.driver.synchronize()  # the next loss is set in no order with it
            self.queued += 1

    def read(self, now):
        return self.log.read(self.queued, now)


@pytest.fixture(params=["cpu", pytest.param("kernels", marks=pytest.mark.kernels)])
def steps(request):
    """Makes Steps that read after so many steps, perhaps not from the first one on."""

    def make(every, first=0):
        if request.param == "cpu":
            return Steps(CpuDriver(), None, every, first)
        from nn.launch.kernels import Kernels

        driver, library = request.getfixturevalue("driver"), request.getfixturevalue("library")
        return Steps(driver, Kernels(library, np.float32), every, first)

    return make


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("counts", few([[8, 1, 2]], of=[[1], [8], [8, 1, 2], [3, 1]]))
def test_each_loss_is_read_once_and_in_order(steps, every, counts):
    """Through the ring several times, and at all times the last ones queued are not waited for."""
    steps, seen = steps(every), []
    for run, count in enumerate(itertools.islice(itertools.cycle(counts), 3 * RING)):
        steps.queue(count)
        now = run % 17 == 16
        read = steps.read(now)
        seen += read
        if now:
            assert len(seen) == steps.queued
        else:
            assert len(seen) <= steps.queued - count
            assert len(seen) >= steps.queued - 2 * (every - 1 + max(counts))
    seen += steps.read(now=True)
    assert seen == [(step, step + 0.5) for step in range(steps.queued)]
    assert steps.read(now=True) == []


FIRST = [1, RING - 1, RING, 5 * RING + 7]


@pytest.mark.parametrize("first", few(FIRST[1::2], of=FIRST))
def test_a_run_may_begin_with_any_step(steps, first):
    steps, seen = steps(4, first), []
    for _ in range(3 * RING):
        steps.queue(1)
        seen += steps.read(now=False)
    seen += steps.read(now=True)
    assert seen == [(step, step + 0.5) for step in range(first, first + 3 * RING)]
