"""The exchange over several nodes, of which consecutive ranks play the parts."""

from __future__ import annotations

import numpy as np
import pytest

from pyrt.driver import Driver
from pyrt.errors import UserError
from pyrt.exchange import Bucket
from pyrt.exchange.peer import Peers, shares
from pyrt.job import Job
from tests import few, spread
from tests.pyrt.exchange.trainer import BUCKETS, SIZE, Trainer, check

MIXES = {3: ["001", "011"], 4: ["0001", "0112"], 5: ["00001", "00112"], 6: ["001111", "000112"]}
"""By the number of ranks: the node of each."""


@pytest.mark.parametrize("buckets", BUCKETS.values(), ids=list(BUCKETS))
def test_the_shards_of_all_ranks_are_the_buckets(buckets: list[Bucket]) -> None:
    for ranks in (2, 3, 5):
        owned = np.zeros(SIZE, int)
        for rank in range(ranks):
            peers = Peers(None, rank, ranks, shares(buckets, ranks), "peer", [], None, 0, 32)
            for start, stop in peers.own:
                assert start < stop
                owned[start:stop] += 1
        expected = np.zeros(SIZE, int)
        for start, stop in buckets:
            expected[start:stop] = 1
        assert np.array_equal(owned, expected)


@pytest.mark.parallel(few([4], of=[2, 4]))
def test_sums_and_updates(driver: Driver, job: Job) -> None:
    """On one node of two ranks, and on two."""
    node = job.comm.Split(job.rank // 2, job.rank)
    for (case, buckets), dtype in spread(list(BUCKETS.items()), ("float32", "float64"), by=2):
        print(case, dtype)
        check(driver, job, "hierarchical", buckets, np.dtype(dtype), node)
    node.Free()


@pytest.mark.parallel(few([4], of=[3, 4, 5, 6]))
def test_nodes_of_unequal_sizes(driver: Driver, job: Job) -> None:
    """The ranks beyond those of the smallest node own no shard."""
    for nodes in few(MIXES[job.size][1:], of=MIXES[job.size]):
        node = job.comm.Split(int(nodes[job.rank]), job.rank)
        for case in ("one element", "ragged", "with a loss"):
            print(nodes, case)
            check(driver, job, "hierarchical", BUCKETS[case], np.dtype("f4"), node)
        node.Free()


@pytest.mark.parallel([2])
def test_nodes_of_one_rank_each_are_refused_on_all(driver: Driver, job: Job) -> None:
    node = job.comm.Split(job.rank)
    with pytest.raises(UserError, match="for 2 to 8 ranks a node, not 1: use host"):
        Trainer("hierarchical", driver, job, BUCKETS["ragged"], np.dtype("f4"), node)
