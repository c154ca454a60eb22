"""nn/feed.py and nn/resident.py: a batch's rows arrive where its step finds them, and not before."""

from dataclasses import dataclass

import numpy as np
import pytest

from nn import operations
from nn.ahead import Deferred, Worker
from nn.batches import Schedule
from nn.feed import Feed, Streamed
from nn.operations import Operation
from nn.plan import share
from nn.resident import Resident
from nn.step import bind
from pyrt.driver.cpu import CpuDriver
from pyrt.kernels import KernelLibrary
from pyrt.memory import DeviceArray
from pyrt.phases import Phases
from pyrt.streams import Streams

IMAGES = np.arange(60, dtype=np.uint8).reshape(20, 3)
LABELS = np.arange(20, dtype=np.int32)[::-1].copy()


@pytest.fixture(params=["cpu", pytest.param("kernels", marks=pytest.mark.kernels)])
def feed(request):
    driver = CpuDriver() if request.param == "cpu" else request.getfixturevalue("driver")
    return Feed(driver, Streams(driver), Phases(0.0).phase("copying"), IMAGES, LABELS, rows=4)


def arrived(feed, batch, rows):
    feed.begin(batch)
    slot = feed.slot(batch)
    return slot.images.rows(0, rows).to_host().tolist(), slot.labels.rows(0, rows).to_host().tolist()


def expected(rows):
    return IMAGES[rows].tolist(), LABELS[rows].tolist()


def test_rows_arrive_while_the_batch_before_is_still_there(feed):
    rows = [np.array([3, 3, 19, 0]), np.array([7, 1]), np.array([5, 6, 2])]
    feed.stage(0, rows[0])
    for batch in range(3):
        assert arrived(feed, batch, len(rows[batch])) == expected(rows[batch])
        if batch < 2:
            feed.stage(batch + 1, rows[batch + 1])
            assert arrived(feed, batch, len(rows[batch])) == expected(rows[batch])
        feed.end(batch)


def test_a_rank_without_samples_stages_nothing(feed):
    feed.stage(0, np.array([4, 5]))
    feed.stage(1, np.array([], int))
    feed.begin(1)
    feed.end(1)
    assert arrived(feed, 0, 2) == expected([4, 5])


@pytest.mark.parametrize("helpers", [1, 2, 5])
def test_helpers_take_turns(helpers):
    driver = CpuDriver()
    copying = Phases(0.0).phase("copying")
    feed = Feed(driver, Streams(driver), copying, IMAGES, LABELS, 6, [Worker() for _ in range(helpers)])
    for batch, rows in enumerate([[3, 9, 0, 19, 7, 3], [4], [], [8, 1, 2, 5]]):
        feed.stage(batch, np.array(rows, int))
        assert arrived(feed, batch, len(rows)) == expected(rows)
        feed.end(batch)
    feed.close()


@dataclass
class FakeJob:
    size: int
    rank: int


class Place:
    """A device on which batches are asked for; ``kernels`` is None where NumPy computes."""

    def __init__(self, driver, kernels):
        self.driver, self.kernels, self.streams = driver, kernels, Streams(driver)

    def helper(self):
        return Deferred() if self.kernels is None else Worker()

    def run(self, operation: Operation):
        bind(operation, self.streams, self.kernels)()


@pytest.fixture(params=["cpu", pytest.param("kernels", marks=pytest.mark.kernels)])
def place(request):
    if request.param == "cpu":
        return Place(CpuDriver(), None)
    return Place(request.getfixturevalue("driver"), request.getfixturevalue("kernels"))


def batches_of(kind, place, schedule, job, state, rows):
    phases = Phases(0.0)
    if kind == "resident":
        used = (IMAGES[: schedule.used], LABELS[: schedule.used])
        arguments = (*used, schedule, state, rows, place.helper())
        return Resident(place.driver, place.streams, phases.phase, *arguments)
    helpers = [place.helper() for _ in range(3)]
    feed = Feed(place.driver, place.streams, phases.phase("copying"), IMAGES, LABELS, rows, helpers)
    return Streamed(feed, schedule, job, place.helper())


@pytest.mark.parametrize("kind", ["resident", "stream"])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("samples", "batch"), [(20, 7), (20, 20), (33, 10), (6, 4), (1, 1)])
@pytest.mark.parametrize(("ranks", "rank"), [(1, 0), (3, 1)])
def test_every_step_gets_the_rows_of_the_schedule(place, dtype, kind, shuffle, samples, batch, ranks, rank):
    """Over several epochs; a rank its own part, which may be empty."""
    schedule = Schedule(17, samples, batch, 4, shuffle, 5)
    rows = -(-batch // ranks)
    state = DeviceArray.from_host(place.driver, np.zeros(1, np.int32))
    batches = batches_of(kind, place, schedule, FakeJob(ranks, rank), state, rows)
    X = DeviceArray.empty(place.driver, (rows, 3), dtype)
    batches.start()
    for step in range(schedule.steps):
        expected_rows = schedule.rows(step)
        start, stop = share(len(expected_rows), ranks, rank)
        source = batches.source(step, start)
        batches.begin(step)
        if stop > start:
            place.run(source.scaled(X.rows(0, stop - start), 1.0))
        batches.end(step)
        batches.ahead(step)
        seen = X.rows(0, stop - start).to_host().astype(int).tolist()
        assert (seen, source.labels.rows(0, stop - start).to_host().tolist()) == expected(
            expected_rows[start:stop]
        )
        follows = (schedule.first(step) + len(expected_rows)) + schedule.epoch(step) % 2 * samples
        state.set(np.array([follows % (2 * samples)], np.int32))
    batches.close()


LATE = """
extern "C" __global__ void late(int nanoseconds, int *x)
{
    for (const long long start = clock64(); clock64() - start < nanoseconds;)
        ;
    x[0] += 1;
}
"""


@pytest.mark.parametrize("kind", ["resident", "stream"])
@pytest.mark.parametrize("behind", ["compute", "upload"])
def test_streams_wait_for_each_other(driver, library, tmp_path, kind, behind):
    """One of them is far behind: nothing arrives before the steps that use its place are over, and no step
    begins before its batch is there."""
    from nn.launches import Kernels

    place, schedule = Place(driver, Kernels(library, np.float32)), Schedule(17, 20, 7, 6, True, 5)
    (tmp_path / "late.cu").write_text(LATE)
    state = DeviceArray.from_host(driver, np.zeros(2, np.int32))
    loss, ring = (DeviceArray.from_host(driver, np.zeros(1, np.float32)) for _ in range(2))
    batches = batches_of(kind, place, schedule, FakeJob(1, 0), state.rows(0, 1), 7)
    X = [DeviceArray.empty(driver, (schedule.size(step), 3), np.float32) for step in range(schedule.steps)]
    late = KernelLibrary(driver, [tmp_path], str(tmp_path / "cache")).kernel("late", "late")
    count = DeviceArray.from_host(driver, np.zeros(1, np.int32))
    late = late.bind((1,), (1,), 3_000_000, count)
    late_stream = getattr(place.streams, behind)
    late(late_stream)
    batches.start()
    for step in range(schedule.steps):
        batches.begin(step)
        late(late_stream)
        place.run(batches.source(step, 0).scaled(X[step], 1.0))
        place.run(operations.next_batch(loss, ring, state, schedule.size(step), 40))
        batches.end(step)
        batches.ahead(step)
    batches.close()
    for step in range(schedule.steps):
        assert X[step].to_host().astype(int).tolist() == IMAGES[schedule.rows(step)].tolist(), step
