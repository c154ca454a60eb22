"""The exchange over peer memory with flags: what it has not in common with the other one (test_peer.py)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from pyrt.driver import Driver
from pyrt.exchange import Bucket, peer
from pyrt.exchange.peer_flags import PeerFlagsExchange
from pyrt.exchange.registry import choices
from pyrt.job import Job
from tests import few
from tests.pyrt.exchange.trainer import (
    BUCKETS,
    PARAMETERS,
    RATE,
    Trainer,
    first_parameters,
    made_gradients,
)


def has_the_bits_of_numpy(
    kind: str, driver: Driver, job: Job, buckets: Sequence[Bucket], dtype: np.dtype, steps: int
) -> None:
    """Collective. Gradients are added up in the order of the ranks; a product with RATE is exact."""
    trainer = Trainer(kind, driver, job, buckets, dtype)
    covered = np.concatenate([np.arange(*bucket) for bucket in buckets])
    inside, behind = covered[covered < PARAMETERS], covered[covered >= PARAMETERS]
    expected = first_parameters(dtype)
    for step in range(steps):
        gradients = made_gradients(step, job.size, dtype)
        total = gradients[0].copy()
        for others in gradients[1:]:
            total += others
        expected[inside] -= dtype.type(RATE) * total[inside]
        assert trainer.step(gradients[job.rank]).tobytes() == expected.tobytes(), step
        assert trainer.gradients.to_host()[behind].tobytes() == total[behind].tobytes(), step
    trainer.exchange.close()
    driver.free(trainer.gradients.pointer)


@pytest.mark.parallel(few([3], of=[2, 3, 5]))
def test_sums_have_the_order_of_the_ranks(driver: Driver, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads take several fours each, in blocks of which each rank has as many, though devices differ."""
    monkeypatch.setattr(peer, "_most_threads", lambda ranks, dtype: 32)
    monkeypatch.setattr(driver, "multiprocessors", 2 + job.rank)
    for buckets, dtype in itertools.product(BUCKETS.values(), ("f4", "f8")):
        has_the_bits_of_numpy("peer flags", driver, job, buckets, np.dtype(dtype), steps=4)


@pytest.mark.parallel([3])
def test_a_rank_may_be_a_step_ahead(driver: Driver, job: Job) -> None:
    """Steps are queued without a word from the host in between: nobody's numbers are overwritten too soon."""
    steps, dtype, (bucket,) = 60, np.dtype("f4"), BUCKETS["with more than a piece behind"]
    trainer = Trainer("peer flags", driver, job, [bucket], dtype)
    gradients = [made_gradients(step, job.size, dtype) for step in range(steps)]
    mine = [of_all[job.rank].copy() for of_all in gradients]
    sums, seen = np.full((steps, bucket.stop), np.nan, dtype), np.full(PARAMETERS, np.nan, dtype)
    for step in range(steps):
        trainer.gradients.queue_upload(mine[step], trainer.streams.compute)
        trainer.exchange.ready(0)
        trainer.exchange.finish()
        trainer.gradients.queue_download(sums[step], trainer.streams.compute)
    trainer.parameters.queue_download(seen, trainer.streams.compute)
    driver.synchronize_stream(trainer.streams.compute)
    expected = first_parameters(dtype)
    for step in range(steps):
        total = gradients[step][0] + gradients[step][1] + gradients[step][2]
        assert sums[step, PARAMETERS:].tobytes() == total[PARAMETERS:].tobytes(), step
        expected -= dtype.type(RATE) * total[:PARAMETERS]
    assert seen.tobytes() == expected.tobytes()
    trainer.exchange.close()


def test_it_is_no_choice_of_a_user() -> None:
    assert PeerFlagsExchange.name not in choices()
