"""Moves over peer memory: late ranks, work beside them, graphs, numbers that are none, what is refused."""

from __future__ import annotations

import random
import threading
import time

import numpy as np
import pytest
from mpi4py import MPI

from pyrt.driver import Driver
from pyrt.driver.cpu import CpuDriver
from pyrt.driver.emulated import EmulatedDriver
from pyrt.errors import UserError
from pyrt.graphs import Recorder
from pyrt.job import Job
from pyrt.redistribute import Redistribution
from tests import LONG, few
from tests.pyrt.exchange.test_peer import TouchedComm
from tests.pyrt.redistribute.test_redistribute import (
    KINDS,
    Matrix,
    Mover,
    all_moves,
    expected_of,
    made,
    part_of,
)

F4 = np.dtype("f4")
MIXED = [Redistribution(shape, *kind) for shape in ((2, 9), (13, 37), (1, 1)) for kind in KINDS]
"""Small and large ones in turns, with messages that are empty."""


def bound_moves(
    mover: Mover, moves: list[Redistribution]
) -> list[tuple[Redistribution, Matrix, Matrix, object]]:
    rows = []
    for move in moves:
        source, target = mover.matrices(move, (0, 0))
        rows.append((move, source, target, mover.bind(move, source, target)))
    return rows


def mine_of(mover: Mover, move: Redistribution, matrices: np.ndarray) -> np.ndarray:
    return part_of(matrices[mover.job.rank], move.source_of(mover.job.size, mover.job.rank))


@pytest.mark.long
@pytest.mark.parallel(few([3], of=[3, 4]))
def test_late_ranks_change_no_bit(driver: Driver, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Moves of all sizes in a random order: ranks sleep before some of them, threads take random turns."""
    device = EmulatedDriver(order_seed=job.rank) if driver.name == "emulated" else driver
    monkeypatch.setattr(device, "multiprocessors", max(device.multiprocessors, 6))
    moves = [*MIXED, Redistribution((64, 300), "rows", "whole")]
    mover = Mover("peer", device, job, F4, moves)
    rows = bound_moves(mover, moves)
    dice, own = random.Random(7), random.Random(job.rank)
    for step in range(150 if LONG else 60):
        move, source, target, bound = rows[dice.choice((-1, dice.randrange(len(rows))))]
        matrices = made(move, job.size, F4, step)
        if own.randrange(4) == 0:
            time.sleep(own.random() * 0.01)
        seen = mover.do(bound, source, target, mine_of(mover, move, matrices))
        target.check(seen, expected_of(move, matrices, job.rank))
    mover.links.close()


@pytest.mark.parallel([2])
@pytest.mark.parametrize("way", ["host", "peer"])
def test_other_work_runs_beside_a_move(driver: Driver, job: Job, way: str) -> None:
    """Rank 1 starts only when rank 0 has done work that it queued behind its own start."""
    move = Redistribution((6, 10), "rows", "whole")
    mover = Mover(way, driver, job, F4, [move])
    compute = mover.streams.compute
    ((_, source, target, bound),) = bound_moves(mover, [move])
    beside, _ = mover.matrices(move, (0, 0))
    matrices = made(move, job.size, F4, 0)
    mine = mine_of(mover, move, matrices)
    if job.rank == 1:
        job.comm.Barrier()
    held = [source.queue_upload(mine, compute)]
    bound.start()
    held.append(beside.queue_upload(mine, compute))
    seen_beside = beside.queue_download(compute)
    driver.synchronize_stream(compute)
    assert seen_beside.tobytes() == mine.tobytes()
    if job.rank == 0:
        job.comm.Barrier()
    bound.finish()
    seen = target.queue_download(compute)
    driver.synchronize_stream(compute)
    target.check(seen, matrices[0])
    mover.links.close()


@pytest.mark.parallel(few([3], of=[2, 3]))
def test_graphs_hold_moves(driver: Driver, job: Job) -> None:
    """A graph of all of them, replayed with new numbers, and in between moves without it."""
    mover = Mover("peer", driver, job, F4, MIXED)
    rows = bound_moves(mover, MIXED)
    compute = mover.streams.compute

    def queue_all() -> None:
        for _, _, _, bound in rows:
            bound.start()
            bound.finish()

    recorder = Recorder(driver, compute, mover.phases)
    replays = [recorder.record(queue_all, timed) for timed in (False, True)]
    for step in range(6):
        held, all_matrices = [], [made(move, job.size, F4, step) for move, *_ in rows]
        for (move, source, _, _), matrices in zip(rows, all_matrices, strict=True):
            held.append(source.queue_upload(mine_of(mover, move, matrices), compute))
        if step % 3 == 2:
            queue_all()
        else:
            replays[step % 3]()
        seen = [target.queue_download(compute) for _, _, target, _ in rows]
        driver.synchronize_stream(compute)
        for (move, _, target, _), matrices, one in zip(rows, all_matrices, seen, strict=True):
            target.check(one, expected_of(move, matrices, job.rank))
    calls = {times.name: times.calls for times in mover.phases.times()}
    assert calls["rows -> columns"] == 6 * 3
    mover.links.close()


@pytest.mark.parallel([3])
@pytest.mark.parametrize("way", ["host", "peer"])
def test_numbers_that_are_none_arrive(driver: Driver, job: Job, way: str, dtype: np.dtype) -> None:
    """One of them looks like a place where nothing has arrived; all ranks get the same one in its place."""
    shape = (5, 7)
    mover = Mover(way, driver, job, dtype, [Redistribution(shape, *kind) for kind in KINDS])
    values = np.arange(35, dtype=dtype).reshape(shape)
    values[0, :3] = values[4, 1:4] = np.inf, -np.inf, np.nan
    values.view(f"u{dtype.itemsize}")[[1, 2, 3, 4], [0, 6, 2, 5]] = 2 ** (8 * dtype.itemsize) - 1
    for move, source, target, bound in bound_moves(mover, [Redistribution(shape, *kind) for kind in KINDS]):
        matrices = np.broadcast_to(values, (job.size, *shape))
        seen = mover.do(bound, source, target, mine_of(mover, move, matrices))
        np.testing.assert_array_equal(seen, expected_of(move, matrices, job.rank))
        if move.target == "whole":
            assert len(set(job.comm.allgather(seen.tobytes()))) == 1, "not the same bits on all ranks"
    mover.links.close()


@pytest.mark.parallel([3])
def test_a_move_sends_nothing_through_mpi(driver: Driver, job: Job) -> None:
    comm, node = TouchedComm(job.comm), TouchedComm(job.node)
    mover = Mover("peer", driver, Job(comm, node, job.library, job.cores), F4, all_moves())
    move = Redistribution((13, 37), "whole", "whole", sums=True)
    ((_, source, target, bound),) = bound_moves(mover, [move])
    comm.touched.clear()
    node.touched.clear()
    for step in range(3):
        seen = mover.do(bound, source, target, made(move, job.size, F4, step)[job.rank])
        target.check(seen, expected_of(move, made(move, job.size, F4, step), job.rank))
    bound.start()
    bound.finish()
    assert not {*comm.touched, *node.touched} - {"size", "rank"}
    mover.links.close()


@pytest.mark.parallel([2])
def test_a_rank_that_has_given_up_waits_for_nobody(driver: Driver, job: Job) -> None:
    """Rank 1 makes no move, which rank 0's kernel waits for: what the watchdog says ends it."""
    move = Redistribution((6, 10), "whole", "whole", sums=True)
    mover = Mover("peer", driver, job, F4, [move])
    ((_, source, target, bound),) = bound_moves(mover, [move])
    if job.rank == 0:
        seconds = 0.5
        timer = threading.Timer(seconds, mover.links.mailboxes.give_up)
        started = time.monotonic()
        timer.start()
        mover.do(bound, source, target, made(move, 2, F4, 0)[0])
        assert seconds <= time.monotonic() - started < 10
    job.comm.Barrier()
    mover.links.close()


@pytest.mark.parallel([2])
def test_a_rank_without_memory_ends_all(driver: Driver, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    if job.rank == 1:

        def allocate(nbytes: int) -> int:
            raise UserError("no memory is left on rank 1")

        monkeypatch.setattr(driver, "allocate_mapped", allocate)
    with pytest.raises(UserError, match="no memory is left on rank 1"):
        Mover("peer", driver, job, F4, MIXED)


@pytest.mark.parallel([2])
def test_a_move_larger_than_announced_is_refused(driver: Driver, job: Job) -> None:
    mover = Mover("peer", driver, job, F4, [Redistribution((4, 4), "rows", "whole")])
    with pytest.raises(ValueError, match="more than the largest move"):
        bound_moves(mover, [Redistribution((40, 4), "rows", "whole")])
    mover.links.close()


@pytest.mark.parallel([2])
def test_it_needs_kernels_one_node_and_not_too_many_ranks(driver: Driver, job: Job) -> None:
    class Ranks:
        def __init__(self, size: int) -> None:
            self.rank, self.size = 0, size

        def Ibarrier(self) -> MPI.Request:
            return MPI.REQUEST_NULL

        def allgather(self, mine: object) -> list[object]:
            return [mine]

    for device, size, node, message in (
        (CpuDriver(), 2, 2, "the CPU has no kernels"),
        (driver, 4, 2, "ranks of several nodes"),
        (driver, 9, 9, "up to 8 ranks, not 9"),
    ):
        with pytest.raises(UserError, match=message):
            Mover("peer", device, Job(Ranks(size), Ranks(node), "no MPI", cores=1.0), F4, MIXED)
