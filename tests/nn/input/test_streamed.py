"""nn/input/streamed.py, nn/input/resident.py: each step finds the rows of its batch, once they are there."""

from dataclasses import dataclass

import numpy as np
import pytest

from nn.input import streamed
from nn.input.resident import Resident
from nn.input.schedule import Schedule
from nn.input.streamed import CHUNK_BYTES, Streamed, steps_in_chunk
from nn.input.upload_queue import UploadQueue
from nn.launch.update import LossRing
from nn.model.network import Network
from nn.parallel.plan import Plan
from nn.parallel.shard import Shard
from nn.program import operations
from nn.program.operations import Operation
from nn.program.step import bind
from pyrt.arrays import DeviceArray
from pyrt.driver.cpu import CpuDriver
from pyrt.kernels import KernelLibrary
from pyrt.phases import Phases
from pyrt.redistribute.regions import share
from pyrt.streams import Streams
from pyrt.workers import Deferred, Worker
from tests import few, spread
from tests.nn.ending import keep_loss

IMAGES = np.arange(60, dtype=np.uint8).reshape(20, 3)
LABELS = np.arange(20, dtype=np.int32)[::-1].copy()

WAYS = ["resident", "stream 1", "stream 2", "stream 4"]
"""With so many steps in a chunk."""


class TestStepsInChunk:
    @pytest.mark.parametrize(
        ("batch_bytes", "batches", "expected"),
        [
            (1, 1, 1),
            (1, 2, 2),
            (1, 3, 2),
            (1, 4, 4),
            (1, 1000, 512),
            (CHUNK_BYTES // 4, 100, 4),
            (CHUNK_BYTES // 4 + 1, 100, 2),
            (CHUNK_BYTES // 3, 100, 2),
            (CHUNK_BYTES, 100, 1),
            (CHUNK_BYTES + 1, 100, 1),
            (100 * CHUNK_BYTES, 100, 1),
        ],
    )
    def test_as_many_as_fit_and_an_epoch_has(self, batch_bytes, batches, expected):
        assert steps_in_chunk(batch_bytes, batches) == expected

    def test_never_more_than_its_bytes_but_for_one_batch(self):
        for batch_bytes in np.random.default_rng(0).integers(1, 2 * CHUNK_BYTES, 200).tolist():
            steps = steps_in_chunk(batch_bytes, 64)
            assert steps == 1 or steps * batch_bytes <= CHUNK_BYTES
            assert steps == 64 or 2 * steps * batch_bytes > CHUNK_BYTES


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


def batches_of(way, place, schedule, job, rows):
    phases = Phases(0.0)
    if way == "resident":
        arguments = ((IMAGES, LABELS), schedule, rows, [place.helper(), place.helper()])
        return Resident(place.driver, place.streams, phases.phase, *arguments)
    helpers = [place.helper() for _ in range(3)]
    chunk = rows * int(way.split()[1])
    feed = UploadQueue(place.driver, place.streams, phases.phase("copying"), (IMAGES, LABELS), chunk, helpers)
    shard = Shard(Plan.data(job.size, 1), Network.dense((IMAGES.shape[1], 1), "tanh", "softmax"), job.rank)
    return Streamed(feed, schedule, shard, rows, [place.helper(), place.helper()])


def check_rows(place, dtype, way, schedule, job, first=0):
    """Every step from the first one on gets the rank's part of the rows of the schedule."""
    rows = -(-schedule.batch // job.size)
    batches = batches_of(way, place, schedule, job, rows)
    X = DeviceArray.empty(place.driver, (rows, 3), dtype)
    batches.start(first)
    for step in range(first, schedule.steps):
        mine = schedule.rows(step)
        start, stop = share(len(mine), job.size, job.rank)
        source = batches.source(start)
        batches.begin(step)
        into = X.rows(0, stop - start)
        take, skip = operations.take_batch(source, into, 1.0), operations.skip_batch(batches.cursor)
        place.run(take if stop > start else skip)
        batches.end(step)
        batches.prefetch(step)
        seen = X.rows(0, stop - start).to_host().astype(int), source.labels.rows(0, stop - start).to_host()
        assert np.array_equal(seen[0], IMAGES[mine[start:stop]])
        assert np.array_equal(seen[1], LABELS[mine[start:stop]])
    batches.close()


SIZES = [(20, 7), (20, 20), (33, 10), (6, 4), (1, 1), (23, 3)]
"""Samples, and of a batch."""


@pytest.mark.parametrize(("way", "size", "shuffle"), spread(WAYS, SIZES, [True, False], by=4), ids=str)
@pytest.mark.parametrize(("ranks", "rank"), few([(3, 1)], of=[(1, 0), (3, 1), (4, 3)]))
@pytest.mark.parametrize("dtype", few(["float64"], of=["float32", "float64"]), indirect=True)
def test_every_step_gets_the_rows_of_the_schedule(place, dtype, way, shuffle, size, ranks, rank):
    """Over several epochs; a rank its own part, which may be empty."""
    check_rows(place, dtype, way, Schedule(17, *size, 4, shuffle, 5), FakeJob(ranks, rank))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("samples", "batch"), [(20, 7), (6, 4), (23, 3)])
@pytest.mark.parametrize("dtype", few(["float32"], of=["float32", "float64"]), indirect=True)
def test_a_run_may_begin_with_any_step(place, dtype, way, samples, batch):
    """In the middle of an epoch, and of a chunk, which may have begun in the epoch before."""
    schedule = Schedule(17, samples, batch, 4, True, 5)
    some = 1, schedule.batches + 1, schedule.steps - 1
    for first in few(some[1:2], of=(*some, schedule.batches, schedule.steps - 2)):
        check_rows(place, dtype, way, schedule, FakeJob(3, 1), first)


@pytest.mark.parametrize(("samples", "batch", "epochs"), [(24, 3, 2), (20, 3, 3), (9, 3, 5), (3, 3, 1)])
def test_helpers_are_given_chunks_and_not_batches(samples, batch, epochs):
    place, schedule = Place(CpuDriver(), None), Schedule(20, samples, batch, epochs, True, 5)
    batches = batches_of("stream 4", place, schedule, FakeJob(1, 0), 3)
    given = []
    for number, helper in enumerate(batches._queue.helpers):
        start = helper.start
        helper.start = lambda work, start=start, number=number: (given.append(number), start(work))
    batches.start(0)
    chunks = -(-schedule.steps // 4)
    assert len(given) == min(1 + 3, chunks)  # one is sent, and none of the three is idle
    for step in range(schedule.steps):
        batches.begin(step)
        batches.end(step)
        batches.prefetch(step)
    assert given == [chunk % 3 for chunk in range(chunks)]


def test_the_next_chunk_is_sent_with_the_first_step_of_one(monkeypatch):
    """So that its copy has all of the chunk's steps to hide behind."""
    sent = []
    monkeypatch.setattr(streamed.UploadQueue, "send", lambda feed, chunk: sent.append(chunk))
    place, schedule = Place(CpuDriver(), None), Schedule(20, 20, 2, 2, True, 5)
    batches = batches_of("stream 4", place, schedule, FakeJob(1, 0), 2)
    batches.start(0)
    after = []
    for step in range(schedule.steps):
        batches.prefetch(step)
        after.append(sent[-1])
    assert after == [1] * 4 + [2] * 4 + [3] * 4 + [4] * 8
    assert sent == [0, 1, 2, 3, 4]


LATE = """
extern "C" __global__ void late(int nanoseconds, int *x)
{
    for (const long long start = clock64(); clock64() - start < nanoseconds;)
        ;
    x[0] += 1;
}
"""


@pytest.mark.parametrize(("way", "behind"), spread(WAYS, ["compute", "upload"], by=2))
def test_streams_wait_for_each_other(driver, library, tmp_path, way, behind):
    """One of them is far behind: nothing arrives before the steps that use its place are over, and no step
    begins before its batch is there."""
    from nn.launch.kernels import Kernels

    place, schedule = Place(driver, Kernels(library, np.float32)), Schedule(17, 20, 7, 6, True, 5)
    (tmp_path / "late.cu").write_text(LATE)
    batches = batches_of(way, place, schedule, FakeJob(1, 0), 7)
    X = [DeviceArray.empty(driver, (schedule.size(step), 3), np.float32) for step in range(schedule.steps)]
    late = KernelLibrary(driver, [tmp_path], str(tmp_path / "cache")).kernel("late", "late")
    count = DeviceArray.from_host(driver, np.zeros(1, np.int32))
    late = late.bind((1,), (1,), 3_000_000, count)
    late_stream = getattr(place.streams, behind)
    loss, ring = (DeviceArray.from_host(driver, np.zeros(1, np.float32)) for _ in range(2))
    end = keep_loss(LossRing(loss, ring, DeviceArray.from_host(driver, np.zeros(1, np.int32))))
    late(late_stream)
    batches.start(0)
    for step in range(schedule.steps):
        batches.begin(step)
        late(late_stream)
        place.run(operations.take_batch(batches.source(0), X[step], 1.0))
        place.run(end)
        batches.end(step)
        batches.prefetch(step)
    batches.close()
    for step in range(schedule.steps):
        assert X[step].to_host().astype(int).tolist() == IMAGES[schedule.rows(step)].tolist(), step
