"""experiments/images.py: its runs and starts, findings from made-up rows of a GPU, its small run on made-up
images."""

import os
from pathlib import Path

import pytest

pytest.importorskip("pandas", reason="make test installs what the report needs")
pytest.importorskip("matplotlib")

import numpy as np
import pandas as pd

from experiments import images, jobs
from experiments.images import CONV, DENSE, FIRST, GOAL, NO_AUGMENT, ONLY, SECOND
from experiments.study import FAILED, FULL, SMALL, Setup
from nn.app.command_line import parse
from pyrt.cache import VARIABLE
from pyrt.errors import UserError
from tests.mpi import environment
from tests.nn.input.conftest import pack_idx


def setup_of(size, gpus, folder):
    return Setup(size, gpus, 2, False, folder)


@pytest.mark.parametrize(("size", "gpus", "runs"), [(FULL, 1, 7), (SMALL, 4, 3), (FULL, 0, 2), (SMALL, 0, 2)])
def test_points_are_commands_that_train_takes(size, gpus, runs, tmp_path):
    points = images.points(setup_of(size, gpus, tmp_path))
    assert len({point["words"] for point in points}) == len(points) == runs
    for point in points:
        options = parse(point["words"].split())
        assert (options.data, options.math, options.augment or NO_AUGMENT) == (
            "fashion-mnist",
            point["math"],
            point["augment"],
        )
        network = options.make_network((28, 28), 10)
        assert (len(network.layers) > 3) == (point["net"] in (CONV, images.SMALL_CONV))
        assert options.device == ("auto" if gpus else "cpu")
    assert gpus == 0 or images.Run(*list(points[0].values())[:3]) == GOAL


def report(seconds=(2.5, 3.0), shell=4.0):
    """What jobs.train returns of two epochs."""
    epochs = [
        {"epoch": n, "loss": 1 / n, "validation_precision": 0.8 + n / 100, "seconds": 0.5} for n in (1, 2)
    ]
    lines = [(0.1, "ranks     1"), *((at, f"epoch  {n}/15  loss 1") for n, at in enumerate(seconds, 1))]
    return {
        "epochs": epochs,
        "test": {"precision": 0.9},
        "shell": shell,
        "lines": [*lines, (3.5, "epochs and more")],
    }


def test_epochs_get_the_moments_at_which_they_were_printed():
    one, two = images.rows_of(SECOND, report())
    assert one == {
        **{"start": "second", "shell": 4.0, "epoch": 1, "at": 2.5, "loss": 1.0},
        **{"validation_precision": 0.81, "test_precision": 0.9},
    }
    assert (two["epoch"], two["at"]) == (2, 3.0)
    with pytest.raises(ValueError, match="shorter"):
        images.rows_of(SECOND, report(seconds=(2.5,)))


@pytest.fixture
def started(monkeypatch, tmp_path):
    """The caches of the starts, with what is in them, of runs that only leave a kernel there."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "own"))
    (tmp_path / "own" / "fashion-mnist").mkdir(parents=True)
    (tmp_path / "own" / "kernels").mkdir()
    caches = []

    def train(ranks, words, setup, variables=None):
        cache = Path(variables[VARIABLE])
        caches.append((cache, sorted(os.listdir(cache))))
        assert (cache / "fashion-mnist").samefile(tmp_path / "own" / "fashion-mnist")
        (cache / "kernels").mkdir(exist_ok=True)
        return {FAILED: "no room"} if "bf16" in words else report()

    monkeypatch.setattr(jobs, "train", train)
    monkeypatch.setattr(images, "load", lambda data: None)
    return caches


def test_each_command_starts_twice_with_a_cache_of_its_own(started, tmp_path):
    setup = setup_of(FULL, 1, tmp_path)
    points = [point for point in images.points(setup) if point["math"] != "tf32"]
    taken = list(images.take(points, setup))
    for (cache, before), (again, then) in zip(started[:4:2], started[1:4:2], strict=True):
        assert cache == again and not cache.exists()
        assert (before, then) == (["fashion-mnist"], ["fashion-mnist", "kernels"])
    assert len({cache for cache, _ in started}) == len(points)
    for point, rows in taken:
        if point["math"] == "bf16":
            assert rows == [{FAILED: "no room"}]
        else:
            assert [(row["start"], row["epoch"]) for row in rows] == [
                (FIRST, 1),
                (FIRST, 2),
                (SECOND, 1),
                (SECOND, 2),
            ]
        assert {*point, *rows[0]} <= {*images.COLUMNS, FAILED}
    assert (tmp_path / "own" / "fashion-mnist").is_dir()  # the link alone went


def test_without_the_images_each_point_says_why(monkeypatch, tmp_path):
    def load(data):
        raise UserError(f"{data} could not be downloaded")

    monkeypatch.setattr(images, "load", load)
    setup = setup_of(FULL, 1, tmp_path)
    taken = list(images.take(images.points(setup), setup))
    assert [rows for _, rows in taken] == [[{FAILED: "fashion-mnist could not be downloaded"}]] * 7
    assert list(images.take([], setup)) == []  # all is there: nothing is loaded


SHELL = {"tf32": 5.0, "float32": 9.5, "bf16": 4.5}


def rows_of_gpu(folder, precision=0.93, size=FULL):
    """Each first start takes 30 s more; without augmentation the test precision is 0.01 less."""
    rows = []
    for point in images.points(setup_of(size, 1, folder)):
        test = (0.89 if point["net"] == DENSE else precision) - 0.01 * (point["augment"] == NO_AUGMENT)
        for start, more in ((FIRST, 30.0), (SECOND, 0.0)):
            shell = SHELL[point["math"]] + more
            rows += [
                {
                    **{**point, "start": start, "shell": shell, "epoch": epoch, "loss": 1 / epoch},
                    **{"at": shell - 3 + epoch / 6, "validation_precision": test - 0.1 / epoch},
                    "test_precision": test,
                }
                for epoch in range(1, 16)
            ]
    return pd.DataFrame(rows)


def test_what_a_gpu_finds_is_said_beside_the_goal(tmp_path):
    section = images.section(rows_of_gpu(tmp_path), setup_of(FULL, 1, tmp_path))
    goal, *others = section.findings
    assert goal.startswith("`python train.py --data fashion-mnist --net conv3x3x32same,relu,")
    assert goal.endswith(
        "--math tf32 --augment flip` ends with a test precision of 0.9300 after 15 epochs, 5.0 s from shell "
        "to shell in the second start; the first one, which compiles the kernels, takes 35.0 s. The goal for "
        "one H200, 0.925 in at most 8 s, is reached."
    )
    assert others == [
        *(
            f"--augment flip takes the test precision of conv, {math}, from 0.9200 to 0.9300."
            for math in ("tf32", "float32", "bf16")
        ),
        "The accuracy of products, of conv with --augment flip: tf32 ends at 0.9300 after 5.0 s; float32 "
        "ends at 0.9300 after 9.5 s; bf16 ends at 0.9300 after 4.5 s.",
        "Networks: conv ends at 0.9300 after 5.0 s; 784-512-10 ends at 0.8900 after 5.0 s.",
    ]
    assert [figure.file for figure in section.figures] == ["accuracy.png", "ends.png"]
    assert all("0.925 in 8 s" in figure.caption for figure in section.figures)
    assert all((tmp_path / figure.file).stat().st_size > 10000 for figure in section.figures)
    (table,) = section.tables
    assert len(table.rows) == 14 and set(table.rows["test precision"]) == {"0.9300", "0.9200", "0.8900"}


@pytest.mark.parametrize(
    ("precision", "shell", "said"),
    [
        (0.9249, 8.0, "is missed by 0.0001."),
        (0.925, 9.25, "is missed by 1.2 s."),
        (0.9, 8.5, "is missed by 0.0250 and 0.5 s."),
    ],
)
def test_a_goal_that_is_missed_says_by_how_much(precision, shell, said, tmp_path, monkeypatch):
    monkeypatch.setitem(SHELL, "tf32", shell)
    (goal,) = images._goal(images.ends_of(rows_of_gpu(tmp_path, precision, SMALL)))
    assert goal.endswith(said)


def test_few_rows_are_enough(tmp_path):
    rows, setup = rows_of_gpu(tmp_path), setup_of(FULL, 1, tmp_path)
    assert images.section(rows[:0], setup).figures == []
    for some in (rows[rows.net == DENSE], rows[rows.math == "bf16"]):
        section = images.section(some, setup)
        assert len(section.figures) == 2 and "goal" not in " ".join(section.findings)


@pytest.mark.long
def test_the_small_size_learns_made_up_images_on_the_cpu(tmp_path, monkeypatch):
    """A class is a bright column: two epochs are enough to be better than chance, 0.1."""
    data, generator = tmp_path / "data", np.random.default_rng(1)
    data.mkdir()
    for name, count in (("train", 1200), ("t10k", 200)):
        labels = generator.integers(0, 10, count, dtype=np.uint8)
        pixels = generator.integers(0, 120, (count, 28, 28), dtype=np.uint8)
        pixels[np.arange(count), :, 2 * labels + 4] = 255
        for kind, array in (("images-idx3", pixels), ("labels-idx1", labels)):
            (data / f"{name}-{kind}-ubyte").write_bytes(pack_idx(array))
    monkeypatch.setattr(images, "DATA", str(data))
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    setup = setup_of(SMALL, 0, tmp_path)
    monkeypatch.setattr(images, "SMALL_EXTENT", "--epochs 2 --samples 1000 --device cpu")
    ((point, rows),) = images.take(images.points(setup)[:1], setup)
    one, two = rows
    assert (one["start"], one["epoch"], two["epoch"]) == (ONLY, 1, 2)
    assert 0 < one["at"] <= two["at"] <= two["shell"]
    assert two["test_precision"] > 0.3
    section = images.section(pd.DataFrame([{**point, **row} for row in rows]), setup)
    assert section.findings == [
        f"Networks: small conv ends at {two['test_precision']:.4f} after {two['shell']:.1f} s."
    ]
    assert "goal" not in section.figures[0].caption
    (why,) = images.missing(setup)
    assert "0.925 in at most 8 s: there is no GPU" in why
    assert images.missing(setup_of(SMALL, 1, tmp_path)) == []
