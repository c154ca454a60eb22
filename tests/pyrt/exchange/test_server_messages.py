"""Messages with servers: which ranks share their memory, and how a tail learns that its leg has ended."""

from __future__ import annotations

import time

import pytest

from pyrt.arrays import DeviceArray
from pyrt.driver import sharing
from pyrt.driver.cpu import CpuDriver
from pyrt.errors import UserError
from pyrt.exchange import Asynchrony, Bucket, ExchangeContext, NoUpdate
from pyrt.exchange.server.chain_end import ChainEnd
from pyrt.exchange.server.message_memory import MessageMemory
from pyrt.exchange.server.requests import Requests
from pyrt.exchange.server.roles import Roles
from pyrt.job import Job
from pyrt.phases import Phases
from pyrt.streams import Streams

RANGES = [Bucket(0, 64), Bucket(64, 100)]


def memory_of(cpu: CpuDriver, job: Job, color: int = 0, kept: int = 1) -> MessageMemory:
    """Make the memory of ranks of which those with the same ``color`` are a node; two are servers."""
    array = DeviceArray.empty(cpu, (100,), "f4")
    node = job.comm.Split(color, job.rank)
    context = ExchangeContext(
        cpu,
        Streams(cpu),
        job,
        node,
        Phases(time.perf_counter()),
        array,
        array,
        [Bucket(0, 100)],
        NoUpdate(),
        Asynchrony(servers=2, kept=kept),
    )
    return MessageMemory(context, Roles(job.size, 2), RANGES)


@pytest.mark.parallel([4])
def test_ranks_of_a_node_have_the_same_buffers(cpu: CpuDriver, job: Job) -> None:
    """Each of two workers with the server of each shard; none with those of the other worker."""
    memory, mine = memory_of(cpu, job), job.rank
    if mine >= 2:
        for shard in (0, 1):
            push, _ = memory.messages(mine, shard)
            push.numbers[:] = 10 * mine + shard
            push.header[2] = mine
    job.wait_for_all()
    if mine < 2:
        for worker in (2, 3):
            push, pull = memory.messages(worker, mine)
            assert push.is_shared and push.sent.size == 0
            assert (push.numbers == 10 * worker + mine).all() and push.header[2] == worker
            pull.numbers[:] = -worker
    job.wait_for_all()
    if mine >= 2:
        assert all((memory.messages(mine, shard)[1].numbers == -mine).all() for shard in (0, 1))
    assert cpu.ledger.pinned.total() == (0 if mine < 2 else 2 * (512 + 512))


@pytest.mark.parallel([4])
@pytest.mark.parametrize("kept", [1, 2])
def test_ranks_of_two_nodes_share_nothing(cpu: CpuDriver, job: Job, kept: int) -> None:
    """Worker 2 is on the node of server 0: they share, unless server 1 has the shard too."""
    memory = memory_of(cpu, job, color=job.rank % 2, kept=kept)
    for worker, shard in ((2, 0), (2, 1), (3, 0), (3, 1)):
        if job.rank in (worker, shard):
            push, _ = memory.messages(worker, shard)
            assert push.is_shared == (kept == 1 and worker % 2 == shard)
            assert push.is_shared or push.sent is push.raw


@pytest.mark.parallel([4])
def test_ranks_that_do_not_reach_each_other_share_nothing(
    cpu: CpuDriver, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let one rank fail to open the memory, as in containers of one name: all ranks take MPI."""
    if job.rank == 1:

        def out_of_reach(handle: bytes) -> tuple[int, int]:
            raise UserError("it is in another container")

        monkeypatch.setattr(sharing, "open_shared", out_of_reach)
    memory = memory_of(cpu, job)
    if job.rank != 1:
        assert not memory.messages(2 if job.rank == 0 else job.rank, 0)[0].is_shared


@pytest.mark.parallel([2])
def test_a_tail_ends_its_leg_with_all_that_its_head_has_applied(job: Job) -> None:
    """Head and tail are in two legs; in the second the tail has not yet applied the last push."""
    requests, is_head = Requests(job, job.comm), job.rank == 0
    end = ChainEnd(requests, None if is_head else 0, 1 if is_head else None, 9)
    for version in (5, 8):
        end.begin()
        if not is_head:
            for _ in range(20):
                assert not end.is_over(version)  # the head has not said so
        job.wait_for_all()
        if is_head:
            while not end.is_over(version):
                pass
        else:
            deadline = time.monotonic() + 20
            while not end.is_over(version):
                assert time.monotonic() < deadline
            assert not end.is_over(version - 1)
        job.wait_for_all()


def test_who_has_lost_the_other_server_waits_for_none(job: Job) -> None:
    end = ChainEnd(Requests(job, job.comm), 3, None, 9)
    end.lose(2)
    assert not end.is_over(4)
    end.lose(3)
    assert end.is_over(4)
