"""Every move brings each rank the bits of NumPy, whatever the way, the shape, and the arrays' layout."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pyrt import redistribute
from pyrt.arrays import DeviceArray
from pyrt.driver import Driver
from pyrt.driver.cpu import CpuDriver
from pyrt.errors import UserError
from pyrt.job import Job
from pyrt.mpi_probe.libraries import Verdict
from pyrt.phases import Phases
from pyrt.redistribute import Redistribution, RedistributionContext, device
from pyrt.redistribute.regions import Region
from pyrt.redistribute.registry import create_links
from pyrt.streams import Streams
from tests import few, spread
from tests.pyrt.exchange.counting import CountingComm
from tests.pyrt.fakes import LateDriver

KINDS = [
    ("rows", "whole", False),
    ("columns", "whole", False),
    ("rows", "columns", False),
    ("columns", "rows", False),
    ("whole", "rows", True),
    ("whole", "columns", True),
    ("whole", "whole", True),
]
SHAPES = [(1, 1), (3, 2), (8, 16), (13, 37), (2, 300), (101, 5)]
"""Ragged ones, and ones with fewer rows or columns than ranks."""
IMAGES, PIXELS = (21, 6), 3
"""Seven images of three pixels, of six channels."""
ROUNDS = 2
F4, F8 = np.dtype("f4"), np.dtype("f8")


SPAN_KINDS = [
    ("part", "whole", False),
    ("part", "rows", False),
    ("part", "columns", False),
    ("rows", "halo", False),
    ("part", "halo", False),
    ("whole", "part", True),
]


def spans(word: str, columns: int, ranks: int) -> Any:
    """Columns of each rank, the last with most; with a halo those beside them too, or of all others."""
    starts = [*range(0, ranks), columns]
    if word == "part":
        return tuple(itertools.pairwise(starts))
    if word == "halo":
        return tuple(
            (max(0, start - 2), min(columns, stop + 1)) for start, stop in itertools.pairwise(starts)
        )
    return word


def span_moves(ranks: int) -> list[Redistribution]:
    """Moves of parts that are not even, and that overlap."""
    return [
        Redistribution(shape, spans(source, shape[1], ranks), spans(target, shape[1], ranks), sums)
        for shape in ((3, 7), (8, 16), (13, 37))
        for source, target, sums in SPAN_KINDS
    ]


def all_moves() -> list[Redistribution]:
    plain = [Redistribution(shape, *kind) for shape in SHAPES for kind in KINDS]
    return plain + [Redistribution(IMAGES, *kind, together=PIXELS) for kind in KINDS]


class Matrix:
    """A region of a matrix on the device, whole or as a view of some columns, and what lies around it."""

    def __init__(self, driver: Driver, held: Region, dtype: np.dtype, gap: int) -> None:
        """``gap`` columns before the region, and as many behind it; with none the rows have no gaps."""
        rows, columns = held.shape
        self.driver, self.gap = driver, gap
        self.around = np.full((rows, columns + 2 * gap), -7, dtype)
        self._memory = DeviceArray.from_host(driver, self.around)
        self.array = self._memory.columns(gap, gap + columns)

    def queue_upload(self, values: np.ndarray, stream: Any) -> np.ndarray:
        """Fill the region; what is returned must live until it is done."""
        full = self.around.copy()
        full[:, self.gap : self.gap + values.shape[1]] = values
        self._memory.queue_upload(full, stream)
        return full

    def queue_download(self, stream: Any) -> np.ndarray:
        """All of it, once the stream is there."""
        full = np.empty_like(self.around)
        self._memory.queue_download(full, stream)
        return full

    def check(self, full: np.ndarray, expected: np.ndarray) -> None:
        """The region has these bits, and nothing around it has changed."""
        wanted = self.around.copy()
        wanted[:, self.gap : self.gap + expected.shape[1]] = expected
        assert full.tobytes() == wanted.tobytes()


class Mover:
    """One rank's moves of matrices through one of the links."""

    def __init__(
        self, way: str, driver: Driver, job: Job, dtype: np.dtype, all_moves: list[Redistribution]
    ) -> None:
        self.driver, self.job, self.dtype = driver, job, dtype
        self.streams = Streams(driver)
        self.phases = Phases(time.perf_counter())
        self.phases.use_device(driver)
        largest = max(move.received(job.size, job.rank) for move in all_moves)
        self.links = create_links(
            way, RedistributionContext(driver, self.streams, job, self.phases, dtype, largest)
        )

    def matrices(
        self, move: Redistribution, gaps: tuple[int, int], in_place: bool = False
    ) -> tuple[Matrix, Matrix]:
        ranks, rank = self.job.size, self.job.rank
        source = Matrix(self.driver, move.source_of(ranks, rank), self.dtype, gaps[0])
        if in_place:
            return source, source
        return source, Matrix(self.driver, move.target_of(ranks, rank), self.dtype, gaps[1])

    def bind(self, move: Redistribution, source: Matrix, target: Matrix) -> redistribute.Bound:
        return self.links.bind(f"{move.source} -> {move.target}", move, source.array, target.array)

    def do(self, bound: redistribute.Bound, source: Matrix, target: Matrix, values: np.ndarray) -> np.ndarray:
        """What work that is queued after the move sees in the target, with all around it."""
        compute = self.streams.compute
        held = source.queue_upload(values, compute)
        bound.start()
        bound.finish()
        seen = target.queue_download(compute)
        self.driver.synchronize_stream(compute)
        del held
        return seen


def made(move: Redistribution, ranks: int, dtype: np.dtype, seed: int) -> np.ndarray:
    """Matrices (ranks, rows, columns), for a plain move all the same."""
    rng = np.random.default_rng([seed, *move.shape])
    if move.sums:
        return rng.standard_normal((ranks, *move.shape)).astype(dtype)
    return np.broadcast_to(rng.standard_normal(move.shape).astype(dtype), (ranks, *move.shape))


def part_of(matrix: np.ndarray, held: Region) -> np.ndarray:
    return matrix[slice(*held.rows), slice(*held.columns)]


def expected_of(move: Redistribution, matrices: np.ndarray, rank: int) -> np.ndarray:
    """What the rank gets of these, added up from rank 0 on."""
    total = matrices[0]
    if move.sums:
        for matrix in matrices[1:]:
            total = total + matrix
    return part_of(total, move.target_of(len(matrices), rank))


def layouts(move: Redistribution) -> Iterator[tuple[tuple[int, int], bool]]:
    """Gaps of source and target, and whether they are one."""
    yield from (((0, 0), False), ((4, 3), False), ((3, 4), False))
    if move.sums and move.target == "whole":
        yield from (((0, 0), True), ((3, 3), True))


def check_series(driver: Driver, job: Job, way: str, dtype: np.dtype, shapes: list[tuple[int, int]]) -> None:
    """A series of all moves of these shapes, in another order each time, through the same links."""
    some = [move for move in all_moves() if move.shape in shapes] + span_moves(job.size)
    mover = Mover(way, driver, job, dtype, some)
    rows = []
    for move in some:
        for gaps, in_place in layouts(move):
            matrices = mover.matrices(move, gaps, in_place)
            rows.append((move, *matrices, mover.bind(move, *matrices)))
    order = np.random.default_rng(len(rows))
    for step, index in itertools.product(range(ROUNDS), range(len(rows))):
        if index == 0:
            order.shuffle(rows)
        move, source, target, bound = rows[index]
        matrices = made(move, job.size, dtype, step)
        mine = part_of(matrices[job.rank], move.source_of(job.size, job.rank))
        target.check(mover.do(bound, source, target, mine), expected_of(move, matrices, job.rank))
    mover.links.close()
    mover.links.close()


def require_device_buffers(job: Job, driver: Driver) -> None:
    """Skips the test where MPI is not known to take them."""
    if not device.verdict(job, driver).is_proven:
        pytest.skip("this MPI is not known to take device buffers")


@pytest.mark.parallel(few([4], of=[2, 3, 4]))
def test_moves_in_host_memory(job: Job, dtype: np.dtype) -> None:
    """On a device that does everything at once, and on one that does everything late."""
    for kind, way in spread((CpuDriver, LateDriver), ("host", "device"), by=2):
        check_series(kind(), job, way, dtype, [*SHAPES, IMAGES])


WAYS = list(itertools.product(redistribute.CHOICES, (F4, F8)))
"""Ways, and types of numbers. tests/kernels has both types for the kernels of ``host`` and ``device``."""


@pytest.mark.parallel(few([3], of=[2, 3, 4]))
@pytest.mark.parametrize(("way", "dtype"), few([("device", F8), ("peer", F4)], of=WAYS), ids=str)
def test_moves_of_a_device(
    driver: Driver, job: Job, way: str, dtype: np.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "device":
        require_device_buffers(job, driver)
    if driver.name == "emulated":
        monkeypatch.setattr(driver, "multiprocessors", 6)  # of which a move takes half
    shapes = few(SHAPES[::2], of=SHAPES) if dtype == F4 else SHAPES[1::2]
    check_series(driver, job, way, dtype, [*shapes, IMAGES])


class TestMove:
    """What a move says of itself, on 1 to 5 ranks."""

    CASES = tuple((move, ranks) for ranks in range(1, 6) for move in all_moves() + span_moves(ranks))

    def test_messages_cover_each_target_once(self) -> None:
        for move, ranks in self.CASES:
            for stage, receiver in itertools.product(move.stages, range(ranks)):
                got = np.zeros(move.shape, int)
                for sender in range(ranks):
                    part_of(got, stage.message(ranks, sender, receiver))[:] += 1
                wanted = part_of(got, stage.target_of(ranks, receiver))
                assert np.all(wanted == (ranks if stage.sums else 1))
                assert got.sum() == wanted.sum()

    def test_what_is_sent_is_received(self) -> None:
        for move, ranks in self.CASES:
            sent, received = (
                [count(ranks, rank) for rank in range(ranks)] for count in (move.sent, move.received)
            )
            assert sum(sent) == sum(received)

    def test_elements_and_messages(self) -> None:
        """7 rows fall to three ranks as 3, 2 and 2, 4 columns as 2, 1 and 1."""
        for kind, sent, received, messages in [
            (("rows", "whole"), 2 * 2 * 4, 5 * 4, 2),
            (("columns", "whole"), 2 * 7, 7 * 3, 2),
            (("rows", "columns"), 2 * 3, 5 * 1, 2),
            (("columns", "rows"), 5 * 1, 2 * 3, 2),
            (("whole", "rows", True), 5 * 4, 2 * 2 * 4, 2),
            (("whole", "columns", True), 7 * 3, 2 * 7, 2),
            (("whole", "whole", True), 5 * 4 + 2 * 2 * 4, 2 * 2 * 4 + 5 * 4, 4),
        ]:
            move = Redistribution((7, 4), *kind)
            assert (move.sent(3, 1), move.received(3, 1), move.messages(3, 1)) == (sent, received, messages)
        assert Redistribution((2, 5), "rows", "whole").messages(4, 3) == 0
        of_images = Redistribution((7 * 5, 4), "rows", "columns", together=5)
        assert (of_images.sent(3, 1), of_images.received(3, 1)) == (5 * 2 * 3, 5 * 5 * 1)

    @pytest.mark.parametrize(
        "kind", [("rows", "rows"), ("whole", "rows"), ("rows", "whole", True), ("whole", "diagonal", True)]
    )
    def test_there_are_no_others(self, kind: tuple[Any, ...]) -> None:
        with pytest.raises(ValueError, match=f"from {kind[0]} to {kind[1]}"):
            Redistribution((3, 3), *kind)


@pytest.mark.parallel(few([3], of=[2, 3, 4]))
@pytest.mark.parametrize("way", ["host", "device"])
def test_messages_through_mpi(cpu: CpuDriver, job: Job, way: str) -> None:
    """Bytes that leave and arrive are those that a move says; of a sum to all it is two calls."""
    comm = CountingComm(job.comm)
    dtype, ranks, rank = np.dtype("f8"), job.size, job.rank
    mover = Mover(way, cpu, Job(comm, comm, job.library, job.cores), dtype, all_moves())
    for move in all_moves():
        source, target = mover.matrices(move, (0, 0))
        bound = mover.bind(move, source, target)
        for step in range(2):
            matrices = made(move, ranks, dtype, step)
            mover.do(bound, source, target, part_of(matrices[rank], move.source_of(ranks, rank)))
            calls, sent, received = zip(*comm.notes, strict=True)
            assert calls == ("Ialltoallv", "Iallgatherv")[: len(move.stages)]
            assert sum(sent) == 8 * move.sent(ranks, rank)
            assert sum(received) == 8 * move.received(ranks, rank)
            comm.notes.clear()
    mover.links.close()


def test_one_rank_moves_nothing(cpu: CpuDriver, job: Job) -> None:
    move = Redistribution((4, 4), "rows", "whole")
    for way in redistribute.CHOICES:
        mover = Mover(way, cpu, job, np.dtype("f4"), [move])
        assert mover.links.name == "local"
        source, target = mover.matrices(move, (0, 0))
        values = np.arange(16, dtype="f4").reshape(4, 4)
        seen = mover.do(mover.bind(move, source, source), source, source, values)
        source.check(seen, values)
        with pytest.raises(ValueError, match="the source of a move is its target"):
            mover.bind(move, source, target)
        mover.links.close()


@pytest.mark.parallel([2])
def test_arrays_that_do_not_fit_are_refused(cpu: CpuDriver, job: Job) -> None:
    move = Redistribution((4, 4), "rows", "whole")
    mover = Mover("host", cpu, job, np.dtype("f4"), [move])
    source, target = (matrix.array for matrix in mover.matrices(move, (0, 0)))
    with pytest.raises(ValueError, match=r"asks for an array \(2, 4\) of float32, not \(4, 4\) of float32"):
        mover.links.bind("", move, target, target)
    with pytest.raises(ValueError, match="float64"):
        mover.links.bind("", move, DeviceArray.empty(cpu, source.shape, "f8"), target)
    mover.links.close()


@pytest.mark.parallel([2])
def test_device_buffers_that_mpi_does_not_take_are_refused(
    cpu: CpuDriver, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = Verdict("MPI X hangs on them", iallreduce=False, is_proven=False)
    monkeypatch.setattr(device, "verdict", lambda job, driver: refusal)
    with pytest.raises(UserError, match="--exchange device: MPI X hangs on them"):
        Mover("device", cpu, job, F4, all_moves())


@pytest.mark.parallel([2])
def test_a_rank_that_does_not_come_ends_the_wait(
    driver: Driver, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an MPI that hangs on device buffers would. Outside of a move nothing is waited for."""
    require_device_buffers(job, driver)
    monkeypatch.setattr(device, "LIMIT", 0.4)
    ended = threading.Event()
    monkeypatch.setattr(Job, "stop", lambda job, message, code: ended.set())
    move = Redistribution((13, 37), "whole", "whole", sums=True)
    mover = Mover("device", driver, job, F4, [move])
    source, target = mover.matrices(move, (0, 0))
    bound = mover.bind(move, source, target)
    time.sleep(1)
    assert not ended.is_set()
    if job.rank == 1:
        time.sleep(1.5)
    mover.do(bound, source, target, made(move, job.size, F4, 0)[job.rank])
    assert ended.is_set() == (job.rank == 0)
    mover.links.close()
