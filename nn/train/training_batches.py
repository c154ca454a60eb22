"""Opens the batches of a training: gathered on the device, or by threads on the host and copied up."""

from __future__ import annotations

import numpy as np

from nn.input.resident import Resident
from nn.input.schedule import Schedule
from nn.input.source import Batches
from nn.input.streamed import Streamed, steps_in_chunk
from nn.input.upload_queue import UploadQueue
from nn.parallel.shard import Shard
from nn.problem.problem import Problem
from nn.train.rank_resources import RankResources
from pyrt.workers import Deferred, Helper, Worker

_GATHERING = 14
"""Threads that gather rows, a chunk each: 3000 rows take one 0.2 to 0.6 ms, their step a fast GPU 0.06."""

_DRAWING = 8
"""Threads that draw an epoch's order each: 60,000 rows take one 0.7 ms, and four fast GPUs need 0.3 ms for 5
batches of 12,000. With 3 threads their steps would take 60 us, with 6 or more 57 (H100)."""


def open_batches(problem: Problem, shard: Shard, resources: RankResources, placement: str) -> Batches:
    """Make this rank's part of the batches; ``placement`` is ``resident`` or ``stream``."""
    make = _resident if placement == "resident" else _streamed
    return make(problem, shard, resources)


def _most_rows(shard: Shard, schedule: Schedule) -> int:
    """Return the samples of a full batch that the first rank gets: no rank gets more."""
    start, stop = Shard(shard.plan, shard.network, 0).own_samples(schedule.batch)
    return stop - start


def _streamed(problem: Problem, shard: Shard, resources: RankResources) -> Batches:
    schedule, dataset, rows = problem.schedule, problem.dataset, _most_rows(shard, problem.schedule)
    steps = 1  # without threads there is nothing to hand over, and less stays in the caches
    if resources.driver.has_kernels:
        row = dataset.images.shape[1] * dataset.images.dtype.itemsize
        steps = steps_in_chunk(rows * row, schedule.batches)
    samples = [dataset.images, dataset.labels]
    if problem.augmenter is not None:
        samples.append(np.arange(schedule.used, dtype=np.int32))
    feed = UploadQueue(
        resources.driver,
        resources.streams,
        resources.phases.phase("copying images host -> device", resources.streams.upload),
        samples,
        steps * rows,
        _helpers(resources, min(_GATHERING, -(-schedule.steps // steps))),
    )
    return Streamed(feed, schedule, shard, rows, _helpers(resources, _DRAWING))


def _resident(problem: Problem, shard: Shard, resources: RankResources) -> Batches:
    schedule, dataset = problem.schedule, problem.dataset
    return Resident(
        resources.driver,
        resources.streams,
        resources.phases.phase,
        (dataset.images, dataset.labels),
        schedule,
        _most_rows(shard, schedule),
        _helpers(resources, _DRAWING),
    )


def _helpers(resources: RankResources, most: int) -> list[Helper]:
    """Start a thread for each core but the one that queues work, 1 to ``most``; none without kernels."""
    if not resources.driver.has_kernels:
        return [Deferred()]
    return [Worker() for _ in range(max(1, min(most, resources.job.threads - 1)))]
