"""nn/input/distribute.py: ranks that hold parts of the images train what ranks with all of them do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nn.app.options import Options
from nn.input.distribute import HeldRows, held_bytes, scattered, slices
from nn.input.npz import load
from pyrt.driver import Driver
from pyrt.errors import UserError
from pyrt.job import join
from tests import few
from train import train

IMAGES = np.random.default_rng(8).integers(0, 256, (61, 12), np.uint8)

RANKS = pytest.mark.parallel(few([3], of=[1, 2, 3, 4]))


def held(numbers: list[int]) -> HeldRows:
    return HeldRows(IMAGES[numbers], np.array(numbers), len(IMAGES))


def test_rows_that_are_held_are_those_of_the_array():
    rows = held([3, 4, 5, 20, 21, 40, 60])
    assert (len(rows), rows.shape, rows.dtype, rows.nbytes) == (61, (61, 12), np.uint8, 7 * 12)
    out = np.empty((5, 12), np.uint8)
    np.take(rows, np.array([21, 3, 60, 3, 5]), axis=0, out=out, mode="clip")
    np.testing.assert_array_equal(out, IMAGES[[21, 3, 60, 3, 5]])


def test_a_slice_of_them_is_numbered_from_its_start():
    rows = held([3, 4, 5, 20, 21, 40, 60])[5:41]
    assert len(rows) == 36 and rows.numbers.tolist() == [0, 15, 16, 35]
    out = np.empty((2, 12), np.uint8)
    np.take(rows, np.array([35, 15]), axis=0, out=out, mode="clip")
    np.testing.assert_array_equal(out, IMAGES[[40, 20]])
    assert len(held([1])[50:]) == 11 and held([1])[50:].numbers.size == 0


def test_no_rows_at_all_are_taken_as_whatever_there_is():
    """A rank without samples takes its room for one."""
    out = np.full((1, 12), 7, np.uint8)
    np.take(HeldRows(IMAGES[:0], np.arange(0), 61), np.array([0]), axis=0, out=out, mode="clip")
    assert (out == 7).all()


def test_slices_are_the_batches_and_what_validates():
    assert slices(7, 9, 12, 3) == [(0, 3), (3, 6), (6, 7), (9, 12)]
    assert slices(6, 6, 6, 100) == [(0, 6)]
    assert slices(0, 0, 5, 1) == [(0, 5)]


@RANKS
@pytest.mark.parametrize("of_set", [[(0, 61)], [(0, 20), (20, 40), (40, 49), (50, 61)], [(7, 9), (9, 10)]])
def test_ranks_hold_each_row_once(of_set):
    job = join()
    mine = scattered(IMAGES if job.rank == 0 else None, of_set, job)
    np.testing.assert_array_equal(mine.array, IMAGES[mine.numbers])
    together = sorted(np.concatenate(job.comm.allgather(mine.numbers)))
    assert together == [row for first, stop in of_set for row in range(first, stop)]
    sizes = job.comm.allgather(len(mine.numbers))
    assert max(sizes) - min(sizes) <= len(of_set)


@pytest.fixture
def digits(shared: Path) -> str:
    """61 random images of 3 x 4 pixels in five classes, 17 to test."""
    path, labels = shared / "digits.npz", np.arange(61) % 5
    if join().rank == 0:
        images = IMAGES.reshape(61, 3, 4)
        np.savez(path, x_train=images, y_train=labels, x_test=images[:17], y_test=labels[:17])
    join().comm.barrier()
    return str(path)


def both(shared: Path, digits: str, **changes: object) -> None:
    """Train with whole sets and with parts: the same losses, precisions and bits of weights."""
    found = []
    for distribute in ("whole", "parts"):
        path = shared / f"{distribute}.npz"
        options = {"hidden": (7,), "batch": 20, "epochs": 3, "lr": 0.5, "shuffle": False, "share_gpus": True}
        options |= {"data": digits, "val_fraction": 0.2, "save": path, "distribute": distribute, **changes}
        report = train(Options(**options), join())
        join().comm.barrier()
        weights = dict(np.load(path)) if join().rank == 0 else {}
        weights.pop("run", None)
        epochs = [(one.loss, one.validation_precision, one.validation_loss) for one in report.epochs]
        found.append((epochs, report.test, {name: array.tobytes() for name, array in weights.items()}))
    assert found[0] == found[1]


CASES = [
    {"batch": 2, "exchange": "root"},
    {"augment": "flip,shift1", "samples": 33},
    {"val_split": "random"},
]


@RANKS
@pytest.mark.parametrize("changes", few(CASES[:2], of=CASES))
def test_parts_train_the_same_network(shared: Path, digits: str, changes: dict[str, object]):
    both(shared, digits, device="cpu", **changes)


ON_DEVICE = [{"augment": "shift1"}, {"batch": 2, "graph": False}]


@pytest.mark.long
@RANKS
@pytest.mark.parametrize("changes", few([ON_DEVICE[0]], of=ON_DEVICE))
def test_so_they_do_on_a_device(shared: Path, digits: str, driver: Driver, changes: dict[str, object]):
    both(shared, digits, device=driver.name, placement="stream", **changes)


@pytest.mark.parallel([2])
def test_memory_counts_what_a_rank_holds_and_checkpoints_know_the_data(shared: Path, digits: str):
    options = {"hidden": (7,), "batch": 20, "shuffle": False, "device": "cpu", "data": digits, "epochs": 1}
    whole, parts = (
        train(Options(**options, memory=True, distribute=how), join()).memory for how in ("whole", "parts")
    )
    labels = 4 * (61 + 17)
    assert (whole.data, parts.data) == ((61 + 17) * 12 + labels, (28 + 3 + 9) * 12 + labels)
    kept = {**options, "checkpoint": shared / "kept"}
    train(Options(**kept, distribute="parts"), join())
    resumed = train(Options(**{**kept, "epochs": 2}, resume=True), join())
    assert [epoch.epoch for epoch in resumed.epochs] == [1, 2]


def test_a_file_that_is_mapped_takes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "set.npz"
    np.savez(path, x_train=IMAGES, y_train=np.arange(61) % 5)
    assert held_bytes(load(path)) == 61 * 12 + 61 * 4
    monkeypatch.setattr("nn.input.npz.LEAST", 1)
    assert held_bytes(load(path)) == 61 * 4


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "--no-shuffle"),
        ({"shuffle": False, "plan": "model"}, "--plan"),
        ({"shuffle": False, "check": True}, "--check"),
        ({"shuffle": False, "placement": "resident"}, "--placement stream"),
        ({"shuffle": False, "evaluate": True, "init": "a.npz"}, "--evaluate"),
    ],
)
def test_orders_and_ways_that_need_the_whole_set_are_refused(values: dict[str, object], words: str):
    with pytest.raises(UserError, match=f"--distribute parts: .*{words}"):
        Options(distribute="parts", **values)


def test_repeated_samples_are_refused(tmp_path: Path):
    path = tmp_path / "set.npz"
    np.savez(path, x_train=IMAGES, y_train=np.arange(61) % 5)
    options = {"data": str(path), "device": "cpu", "shuffle": False, "samples": 56, "distribute": "parts"}
    with pytest.raises(UserError, match="--samples 56 repeats the 55 training samples"):
        train(Options(**options), join())
