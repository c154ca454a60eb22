"""The exchange without locks: what becomes of updates that meet, the bits of one worker, what it refuses."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import numpy as np
import pytest

from pyrt.arrays import DeviceArray
from pyrt.driver import Driver
from pyrt.driver.cpu import CpuDriver
from pyrt.driver.emulated import EmulatedDriver
from pyrt.errors import UserError
from pyrt.exchange import NoUpdate, parameter_moves
from pyrt.exchange.parameter_moves import (
    OWN_COUNTS,
    STALE,
    DeviceMoves,
    HostMoves,
    Moves,
    NodeLock,
    Places,
    words_for,
)
from pyrt.job import Job
from tests import few, spread
from tests.pyrt.exchange.trainer import (
    BUCKETS,
    PARAMETERS,
    RATE,
    STEPS,
    Trainer,
    first_parameters,
    made_gradients,
)

SIZE = 4 * parameter_moves._CHUNK + 4 * 300
"""Numbers: several chunks, and blocks, the last of which is not full."""


@pytest.fixture(params=["cpu", "kernels"])
def device(request: pytest.FixtureRequest) -> Iterator[Driver]:
    if request.param == "cpu":
        cpu = CpuDriver()
        yield cpu
        cpu.close()
    else:
        yield request.getfixturevalue("driver")


def bound(places: Places, atomic: bool) -> Moves:
    if places.mine.driver.has_kernels:
        return DeviceMoves(places, atomic)
    return HostMoves(places, NodeLock.create()[0] if atomic else None)


def workers(driver: Driver, dtype: str, atomic: bool) -> tuple[list[Places], list[Moves]]:
    """Two that share numbers, both within this process: their pushes come in the order of a test."""
    numbers = np.random.default_rng(0).standard_normal(SIZE).astype(dtype)
    numbers[:6] = 0, 1e30, -1e-30, np.inf, 3e38, -0.0
    shared = DeviceArray.from_host(driver, numbers)
    words = DeviceArray.from_host(driver, np.zeros(words_for(driver, SIZE), np.uint32))
    found = []
    for _ in range(2):
        mine, before = (DeviceArray.from_host(driver, numbers) for _ in range(2))
        own = DeviceArray.from_host(driver, np.zeros(OWN_COUNTS, np.uint32))
        found.append(Places(shared, words, mine, before, own))
    return found, [bound(places, atomic) for places in found]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Numbers here are not all finite; a run silences NumPy too (nn/app/pipeline.py)."""
    with np.errstate(all="ignore"):
        yield


CASES = pytest.mark.parametrize(("dtype", "atomic"), spread(["f4", "f8"], [False, True], by=2))


@CASES
def test_what_nobody_else_has_changed_becomes_what_the_update_made(
    device: Driver, dtype: str, atomic: bool
) -> None:
    """To the bit, whatever the numbers: before + (new - before) is not always new."""
    (first, _), (moves, _) = workers(device, dtype, atomic)
    stream, rng = device.create_stream(), np.random.default_rng(1)
    for step in range(1, 4):
        new = (rng.standard_normal(SIZE) * 10.0 ** rng.integers(-20, 20, SIZE)).astype(dtype)
        new[:4] = np.nan, np.inf, -0.0, 0
        first.mine.set(new)
        moves.push(stream)
        for array in (first.shared, first.mine, first.before):
            assert array.to_host().tobytes() == new.tobytes()
        assert first.own.to_host()[0] == step
        assert (first.words.to_host() == step).all()


@CASES
def test_changes_are_added_to_those_of_others(device: Driver, dtype: str, atomic: bool) -> None:
    """And the pull brings these: a worker's next gradients are of the newest parameters."""
    (first, second), (of_first, of_second) = workers(device, dtype, atomic)
    stream, start = device.create_stream(), first.shared.to_host()[6:].astype("f8")
    changes = np.random.default_rng(2).standard_normal((3, len(start)))
    at = slice(6, SIZE)

    def change(places: Places, moves: Moves, by: np.ndarray) -> None:
        mine = places.mine.to_host()
        mine[at] += by.astype(dtype)
        places.mine.set(mine)
        moves.push(stream)

    change(first, of_first, changes[0])
    change(second, of_second, changes[1])
    change(first, of_first, changes[2])
    close = {"rtol": 0, "atol": 40 * np.finfo(dtype).eps}
    np.testing.assert_allclose(first.shared.to_host()[at], start + changes.sum(axis=0), **close)
    np.testing.assert_allclose(second.mine.to_host()[at], start + changes[:2].sum(axis=0), **close)
    of_second.pull(stream)
    for array in (second.mine, second.before, first.mine):
        assert array.to_host().tobytes() == first.shared.to_host().tobytes()
    assert (first.words.to_host() == 3).all()
    for places, pushes, stale in ((first, 2, [1, 1, 0]), (second, 1, [0, 1, 0])):
        own = places.own.to_host()
        assert own[0] == pushes and own[STALE : STALE + 3].tolist() == stale and own[STALE:].sum() == pushes


@CASES
def test_a_worker_gives_its_parameters_to_all(device: Driver, dtype: str, atomic: bool) -> None:
    (first, second), (of_first, of_second) = workers(device, dtype, atomic)
    stream = device.create_stream()
    new = np.random.default_rng(3).standard_normal(SIZE).astype(dtype)
    first.mine.set(new)
    of_first.give(stream)
    of_second.pull(stream)
    of_second.push(stream)  # changes nothing
    for array in (first.shared, first.before, second.mine, second.before):
        assert array.to_host().tobytes() == new.tobytes()


@pytest.mark.parametrize(
    ("dtype", "atomic"), few([("f8", True)], of=spread(["f4", "f8"], [False, True], by=2))
)
def test_one_worker_has_the_bits_of_one_rank(device: Driver, job: Job, dtype: str, atomic: bool) -> None:
    for name, buckets in BUCKETS.items():
        alone, worker = (
            Trainer(kind, device, job, buckets, np.dtype(dtype), atomic=atomic)
            for kind in ("local", "hogwild")
        )
        worker.exchange.begin()
        for step in range(STEPS):
            (gradients,) = made_gradients(step, 1, np.dtype(dtype))
            assert worker.step(gradients).tobytes() == alone.step(gradients).tobytes(), name
        worker.exchange.meet()
        assert worker.exchange.count() == (STEPS, STEPS, [STEPS])
        assert worker.update.steps == STEPS
        assert worker.exchange.updates == alone.exchange.updates
        worker.exchange.close()


def whole_numbers(step: int, job: Job, dtype: np.dtype) -> np.ndarray:
    """Gradients whose sums any order gives exactly."""
    return np.rint(8 * made_gradients(step, job.size, dtype))


def run_workers(driver: Driver, job: Job, dtype: np.dtype, atomic: bool, steps: int) -> Trainer:
    """Train from whole numbers, without a look at what others do, until all meet."""
    trainer = Trainer("hogwild", driver, job, BUCKETS["with a loss"], dtype, atomic=atomic)
    if job.rank == 0:  # whose parameters all begin with
        trainer.parameters.set(np.rint(8 * first_parameters(dtype)))
    trainer.exchange.begin()
    for step in range(steps):
        trainer.step(whole_numbers(step, job, dtype)[job.rank])
    trainer.exchange.meet()
    return trainer


@pytest.mark.parametrize("dtype", few(["f8"], of=["f4", "f8"]))
@pytest.mark.parallel(few([4], of=[2, 3, 4]))
def test_atomic_adds_lose_no_update(device: Driver, job: Job, dtype: str) -> None:
    steps = 100 if not device.has_kernels else 40
    trainer = run_workers(device, job, np.dtype(dtype), True, steps)
    made, kept, stale = trainer.exchange.count()
    assert made == kept == sum(stale) == steps * job.size
    expected = np.rint(8 * first_parameters(np.dtype(dtype))).astype("f8")
    for step in range(steps):
        sums = whole_numbers(step, job, np.dtype(dtype)).sum(axis=0, dtype="f8")
        expected -= RATE * sums[:PARAMETERS]
    np.testing.assert_array_equal(trainer.parameters.to_host(), expected)
    trainer.exchange.close()


@pytest.mark.parallel(few([2], of=[2, 3, 4]))
def test_plain_stores_leave_all_with_the_same_parameters(device: Driver, job: Job) -> None:
    steps = 300 if not device.has_kernels else 40
    trainer = run_workers(device, job, np.dtype("f4"), False, steps)
    updates, found, stale = trainer.exchange.count()
    assert updates == sum(stale) == steps * job.size and steps <= found <= updates
    bits = trainer.parameters.to_host().tobytes()
    assert job.comm.allgather(bits) == [bits] * job.size
    if not device.has_kernels:
        last = trainer.update.refreshed[-1].tobytes()
        assert last == bits and len(trainer.update.refreshed) == steps + 2
    trainer.exchange.close()


@pytest.mark.parallel([2])
def test_whatever_the_order_of_threads_and_blocks(driver: Driver, job: Job) -> None:
    if driver.name != "emulated":
        pytest.skip("needs a device that shuffles them")
    for atomic in (False, True):
        shuffled = EmulatedDriver(sanitize=True, order_seed=5 + job.rank)
        trainer = run_workers(shuffled, job, np.dtype("f4"), atomic, 5)
        assert trainer.exchange.count()[0] == 5 * job.size
        trainer.exchange.close()
        shuffled.close()


@pytest.mark.sanitizer
def test_kernels_stay_within_their_arrays(driver: Driver) -> None:
    (first, _), (moves, _) = workers(driver, "f4", True)
    moves.push(stream := driver.create_stream())
    moves.pull(stream)
    assert first.own.to_host()[0] == 1


@pytest.mark.parallel([4])
def test_it_is_for_one_node(cpu: CpuDriver, job: Job) -> None:
    node = job.comm.Split(job.rank // 2, job.rank)
    with pytest.raises(UserError, match="--exchange hogwild: for the ranks of one node: use host"):
        Trainer("hogwild", cpu, job, BUCKETS["ragged"], np.dtype("f4"), node)
    node.Free()


@pytest.mark.parallel([2])
def test_it_makes_no_sums(cpu: CpuDriver, job: Job) -> None:
    with pytest.raises(UserError, match="--exchange hogwild: sums nothing: use host"):
        Trainer("hogwild", cpu, job, BUCKETS["ragged"], np.dtype("f4"), update=NoUpdate())


@pytest.mark.parallel([2])
def test_a_rank_without_memory_ends_all(cpu: CpuDriver, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(driver: CpuDriver, nbytes: int) -> int:
        raise MemoryError

    for where in ("allocate_exportable", "import_memory"):
        with monkeypatch.context() as patched:
            patched.setattr(CpuDriver, where, none_left)
            with pytest.raises(UserError, match="memory"):
                Trainer("hogwild", cpu, job, BUCKETS["ragged"], np.dtype("f4"))


@pytest.mark.parallel([2])
def test_nothing_is_left_behind(device: Driver, job: Job) -> None:
    def left() -> tuple[int, int]:
        with open("/proc/self/maps") as maps:
            return len(os.listdir("/proc/self/fd")), maps.read().count("memfd:pyrt-")

    before = left()
    for atomic in (False, True):
        trainer = run_workers(device, job, np.dtype("f4"), atomic, 2)
        trainer.exchange.close()
        trainer.exchange.close()
    del trainer
    assert left() == before


@pytest.mark.parallel([2])
def test_who_meets_waits_for_those_that_are_late(
    cpu: CpuDriver, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 is late with its push, then with its pull: both have what both pushed, and nothing later."""
    late = [0.0, 0.1][job.rank]
    push, pull = HostMoves.push, HostMoves.pull
    monkeypatch.setattr(HostMoves, "push", lambda moves, stream: [time.sleep(late), push(moves, stream)])
    monkeypatch.setattr(HostMoves, "pull", lambda moves, stream: [time.sleep(late), pull(moves, stream)])
    trainer = run_workers(cpu, job, np.dtype("f8"), True, 1)
    met = trainer.parameters.to_host()
    trainer.step(whole_numbers(1, job, np.dtype("f8"))[job.rank])
    expected = np.rint(8 * first_parameters(np.dtype("f8")))
    expected -= RATE * whole_numbers(0, job, np.dtype("f8")).sum(axis=0)[:PARAMETERS]
    np.testing.assert_array_equal(met, expected)
    trainer.exchange.meet()
    trainer.exchange.close()
