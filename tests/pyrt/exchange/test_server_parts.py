"""The parts of the exchange with servers: shards, checksums, clocks, grants."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from pyrt.arrays import ALIGNMENT
from pyrt.driver.cpu import CpuDriver
from pyrt.exchange.server.clocks import Clocks, Grants
from pyrt.exchange.server.message import CHECKSUM, HEADER_BYTES, Message, Tags, pinned_bytes
from pyrt.exchange.server.roles import Roles, shards


def test_shards_cover_all_and_are_of_equal_bytes() -> None:
    rng = random.Random(0)
    for _ in range(200):
        itemsize, servers = rng.choice([4, 8]), rng.randint(1, 7)
        size = rng.randint(1, 90) * ALIGNMENT // itemsize
        found = shards(size, itemsize, servers)
        assert [place.start for place in found] == [0, *(place.stop for place in found[:-1])]
        assert found[-1].stop == size
        nbytes = [(stop - start) * itemsize for start, stop in found]
        assert max(nbytes) - min(nbytes) <= ALIGNMENT
        assert all(start * itemsize % ALIGNMENT == 0 for start, _ in found)


def test_no_two_messages_between_two_ranks_have_the_same_tag() -> None:
    for servers, workers in ((1, 1), (3, 2), (2, 5)):
        tags = Tags(servers, workers)
        found = [tag(shard) for tag in (tags.push, tags.pull, tags.end) for shard in range(servers)]
        pairs = [(shard, worker) for shard in range(servers) for worker in range(workers)]
        found += [tag(*pair) for tag in (tags.copy, tags.copied) for pair in pairs]
        assert sorted([*found, tags.meet]) == list(range(len(found) + 1))


def test_the_first_ranks_are_servers() -> None:
    roles = Roles(5, 2)
    assert [roles.is_server(rank) for rank in range(5)] == [True, True, False, False, False]
    assert [roles.rank_of(roles.worker(rank)) for rank in (2, 3, 4)] == [2, 3, 4]
    assert roles.workers == 3


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_damage_to_any_number_is_found(dtype: str) -> None:
    nbytes = HEADER_BYTES + 192 * np.dtype(dtype).itemsize
    message = Message(pinned_bytes(CpuDriver(), nbytes), np.dtype(dtype))
    message.numbers[:] = np.random.default_rng(0).standard_normal(192)
    message.seal()
    message.require_whole(3)
    for place in (0, 77, 191):
        before = message.numbers[place]
        message.numbers[place] = np.nextafter(before, np.inf, dtype=dtype)
        with pytest.raises(RuntimeError, match="came damaged from rank 3"):
            message.require_whole(3)
        message.numbers[place] = before
    message.header[CHECKSUM] += 1
    with pytest.raises(RuntimeError, match="came damaged"):
        message.require_whole(0)


@pytest.mark.parametrize("staleness", [0, 1, 3, math.inf])
def test_no_worker_is_let_further_ahead_than_the_bound(staleness: float) -> None:
    """Workers that push in any order, each as often as it is let; and the slowest is always let."""
    rng = random.Random(1)
    for workers in (1, 2, 5):
        clocks, steps, going = Clocks(workers, staleness), [0] * workers, [True] * workers
        for _ in range(300):
            worker = rng.choice([one for one in range(workers) if going[one]] or [0])
            if going[worker]:
                steps[worker] += 1
                clocks.count(worker)
                going[worker] = False
            for one in range(workers):
                lead = steps[one] - min(steps)
                assert clocks.may_go_on(one) == (lead <= staleness)
                if not going[one] and clocks.may_go_on(one) and rng.random() < 0.7:
                    going[one] = True
                    clocks.go_on(one)
            assert any(going) or any(map(clocks.may_go_on, range(workers)))
        assert clocks.furthest <= staleness
        assert workers == 1 or clocks.furthest == staleness or math.isinf(staleness)


def test_a_worker_that_has_met_holds_nobody_up() -> None:
    clocks = Clocks(3, 1)
    for _ in range(3):
        clocks.count(0)
    clocks.count(1)
    assert not clocks.may_go_on(0) and clocks.may_go_on(1)
    clocks.leave(2)
    assert not clocks.may_go_on(0)
    clocks.leave(1)
    assert clocks.may_go_on(0) and not clocks.have_all_met
    clocks.restart()
    assert clocks.steps(0) == 0 and not clocks.is_one_meeting


def test_a_leg_has_as_many_steps_as_all_workers_would_make() -> None:
    grants = Grants(3)
    grants.begin(4, 7, 3)  # steps 12 to 20, of which 12 to 14 are taken at once
    assert [grants.take() for _ in range(8)] == [15, 16, 17, 18, 19, 20, None, None]
    assert grants.are_over and grants.stop == 7


def test_a_worker_that_has_died_holds_nobody_up_and_its_step_is_granted_again() -> None:
    clocks, grants = Clocks(3, 0), Grants(3)
    clocks.lose(1)
    grants.begin(0, 2, len(clocks.living))
    assert clocks.living == [0, 2] and not clocks.is_one_meeting
    clocks.count(0)
    assert not clocks.may_go_on(0) and not clocks.are_even()
    clocks.lose(2)
    grants.give_back()
    assert clocks.may_go_on(0) and clocks.are_even()
    assert [grants.take() for _ in range(6)] == [1, 2, 3, 4, 5, None]
    clocks.restart()
    assert clocks.living == [0] and not clocks.have_all_met
    clocks.leave(0)
    assert clocks.have_all_met


def test_a_leg_ends_early_with_whole_steps() -> None:
    grants = Grants(3)
    grants.begin(0, 50, 3)
    assert grants.take() == 3
    grants.end_early()
    assert [grants.take() for _ in range(3)] == [4, 5, None]
    assert grants.stop == 2
    grants.begin(2, 50, 3)
    grants.end_early()
    assert grants.take() is None and grants.stop == 3
