"""Runs under plans that split convolutions: the trained network is that of the reference."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nn.app.options import Options
from nn.launch.conv.versions import runs_convolution
from nn.parallel import plan_files
from nn.parallel.plan import SPLITS, Plan
from pyrt.driver import Driver
from pyrt.errors import UserError
from pyrt.job import Job
from tests import few, standing_still
from tests.nn.checkpoints.runs import Runs
from tests.nn.small_runs import saved
from train import train

PIXELS = (17, 6, 5)
NET = (
    "dropout0.1,conv3x3x6p1,tanh,pool2s1,dropout0.2,conv2x3x5s2p1,relu,dropout0.3,avgpool2s1,"
    "conv1x2x4,sigmoid,dense6,tanh,dense4"
)
"""Layers without parameters behind all kinds of splits; filters that 2, 3 and 4 ranks cannot share evenly."""

SMALL = Options(
    net=NET,
    epochs=2,
    batch=9,
    samples=23,
    lr=0.2,
    momentum=0.5,
    reg=0.01,
    val_fraction=0.0,
    dtype="float64",
    device="cpu",
    seed=3,
    check=True,
)
"""Batches of 9, 9 and 5 samples."""

ADAM = {"optimiser": "adam", "lr": 0.01, "eps": 1e-4}

CONVOLUTIONS = list(itertools.product(SPLITS, repeat=2))
"""Pairs of splits: of one convolution and the next."""


@pytest.fixture
def options(shared: Path, job: Job) -> Options:
    """Of a run on random images in four classes, for all ranks."""
    if job.rank == 0:
        rng = np.random.default_rng(0)
        arrays: dict[str, Any] = {}
        for name, count in (("train", 23), ("test", 5)):
            arrays[f"x_{name}"] = rng.integers(0, 256, (count, *PIXELS), np.uint8)
            arrays[f"y_{name}"] = np.arange(count) % 4
        np.savez(shared / "images.npz", **arrays)
    job.comm.barrier()
    return dataclasses.replace(SMALL, data=str(shared / "images.npz"), save=shared / "w.npz")


def trained(options: Options, plan: Plan, job: Job) -> dict[str, Any]:
    """The parameters that a run under the plan saves, bit by bit, on rank 0; its check has passed."""
    standing_still.allow()
    assert options.save is not None
    path = options.save.parent / "plan.json"
    if job.rank == 0:
        plan_files.save(path, plan)
    report = train(dataclasses.replace(options, plan=str(path)), job)
    assert report.passed, f"{plan}\n{report.check}"
    if job.rank > 0:
        return {}
    return saved(options.save)


def plans(ranks: int) -> list[Plan]:
    """Each pair of convolutions behind an image and each before every split of a dense layer."""
    dense = itertools.cycle(["rows", "columns", "samples"])
    found = []
    for place, pair in enumerate(CONVOLUTIONS):
        for last in {pair[0], pair[1]}:
            splits = (*pair, last, next(dense), ("columns", "samples", "rows")[place % 3])
            found.append(Plan(1, ranks, splits))
    return found


@pytest.mark.parallel(few([3], of=[2, 3, 4]))
def test_every_split_of_convolutions_trains_the_network_of_the_reference(options: Options, job: Job) -> None:
    of = plans(job.size)
    for place, plan in enumerate(few(of[::9], of=of)):
        trained(dataclasses.replace(options, **(ADAM if place % 2 else {})), plan, job)


SPACE_NET = (
    "dropout0.1,conv3x3x6p1,tanh,pool2,dropout0.2,conv3x3x5p1,relu,dropout0.3,conv5x2x4s2p2,sigmoid,"
    "dense6,tanh,dense4"
)
"""Windows over the edges of a rank's rows, of one and of two neighbours, and a row that no pool sees."""

OVERLAPPING = (
    "conv3x3x6p1,tanh,dropout0.2,pool3s2,conv3x3x5p1,relu,avgpool2s1,dropout0.3,conv3x1x4,sigmoid,"
    "dense6,tanh,dense4"
)
"""Pools of which some windows see rows of two ranks."""

SPACE_PLANS = [
    ("space", "space", "space", "columns", "samples"),
    ("samples", "space", "samples", "rows", "columns"),
    ("columns", "space", "rows", "samples", "rows"),
    ("space", "samples", "space", "rows", "columns"),
    ("space", "rows", "columns", "columns", "columns"),
    ("rows", "columns", "space", "samples", "samples"),
    ("rows", "space", "columns", "rows", "samples"),
    ("space", "columns", "space", "columns", "rows"),
]


@pytest.mark.parallel(few([3], of=[2, 3, 4]))
def test_convolutions_split_by_rows_of_images_train_the_network_of_the_reference(
    options: Options, job: Job
) -> None:
    for place, splits in enumerate(few(SPACE_PLANS[4:5], of=SPACE_PLANS)):
        here = dataclasses.replace(options, net=SPACE_NET, **(ADAM if place % 2 else {}))
        trained(here, Plan(1, job.size, splits), job)
    for splits in few(SPACE_PLANS[:1], of=SPACE_PLANS[::3]):
        trained(dataclasses.replace(options, net=OVERLAPPING), Plan(1, job.size, splits), job)


SOME = [
    ("rows", "columns", "rows", "columns", "samples"),
    ("columns", "columns", "samples", "rows", "columns"),
    ("columns", "rows", "columns", "rows", "columns"),
]


def on_device(options: Options, driver: Driver, **changes: Any) -> Options:
    """A shorter run with kernels: batches of 5, 5 and 1 samples."""
    changes = {"device": driver.name, "share_gpus": True, "samples": 11, "batch": 5, "epochs": 1} | changes
    return dataclasses.replace(options, **changes)


@pytest.mark.kernels
@pytest.mark.parallel(few([2], of=[2, 3, 4]))
def test_kernels_of_split_convolutions(options: Options, job: Job, driver: Driver) -> None:
    """Whichever way images and their gradients move; the same bits twice, each operation as NumPy's."""
    ways: list[dict[str, Any]] = [
        {"exchange": "peer", "dtype": "float32"},
        {"exchange": "host", "check_each": 1},
        {"exchange": "peer", "graph": False, **ADAM},
    ]
    for splits, changes in few(
        list(zip(SOME, ways, strict=True))[1:2], of=list(zip(SOME, ways, strict=True))
    ):
        here, plan = on_device(options, driver, samples=6, **changes), Plan(1, job.size, splits)
        first = trained(here, plan, job)
        assert changes.get("check_each") or trained(here, plan, job) == first


@pytest.mark.long
@pytest.mark.kernels
@pytest.mark.parallel(few([2], of=[2, 3, 4]))
def test_kernels_of_convolutions_split_by_rows_of_images(options: Options, job: Job, driver: Driver) -> None:
    ways: list[dict[str, Any]] = [
        {"exchange": "peer", "dtype": "float32", "net": OVERLAPPING},
        {"exchange": "host", "check_each": 1, "net": SPACE_NET},
        {"exchange": "host", "net": OVERLAPPING, "conv": "im2col", **ADAM},
    ]
    of = list(zip(SPACE_PLANS[::3], ways, strict=True))
    for splits, changes in few(of[:1], of=of):
        here = on_device(options, driver, samples=7, **changes)
        trained(here, Plan(1, job.size, splits), job)


WIDE = "conv3x3x32,relu,pool2,conv2x2x32,tanh,conv1x1x4,relu,dense8,tanh,dense4"


@pytest.mark.long
@pytest.mark.kernels
@pytest.mark.parallel(few([2], of=[2, 3]))
def test_split_convolutions_on_tensor_cores(options: Options, job: Job, driver: Driver) -> None:
    """With components of a rank's filters and channels, kept from step to step."""
    if not runs_convolution("implicit", "float32", driver.architecture):
        pytest.skip(f"no tensor cores: {driver.architecture}")
    kernels = {"net": WIDE, "conv": "implicit", "gemm": "wgmma", "dtype": "float32"}
    splits_of_all = [*SOME, ("space", "space", "samples", "rows", "columns")]
    for splits in few([SOME[0], splits_of_all[-1]], of=splits_of_all):
        trained(on_device(options, driver, samples=3, **kernels), Plan(1, job.size, splits), job)


@pytest.mark.parallel([4])
def test_groups_that_split_convolutions(options: Options, job: Job) -> None:
    """Of a last batch of one sample one group has none."""
    here = dataclasses.replace(options, samples=10)
    trained(here, Plan(2, 2, ("columns", "rows", "columns", "rows", "columns")), job)


@pytest.mark.parallel([3])
@pytest.mark.parametrize("kept", few([ADAM], of=[{}, ADAM]), ids=str)
def test_a_run_goes_on_under_another_plan(
    options: Options, job: Job, shared: Path, kept: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filters, and what the optimiser keeps of them, are whole in the checkpoint."""
    standing_still.allow()
    runs, paths = (
        Runs(shared, str(options.data), monkeypatch),
        [shared / "first.json", shared / "second.json"],
    )
    runs.options = dataclasses.replace(options, **kept)
    if job.rank == 0:
        for path, splits in zip(paths, (SOME[0], ("space", *SOME[2][1:])), strict=True):
            plan_files.save(path, Plan(1, 3, splits))
    job.comm.barrier()
    runs.kept(stop=4, plan=str(paths[0]), check=False)
    report = runs.resumed(plan=str(paths[1]))
    assert report.passed, report.check
    assert "resumed at step 4" in runs.said.lines


@pytest.mark.parallel([2])
def test_an_image_of_one_channel_is_not_split_by_it(options: Options, job: Job) -> None:
    here = dataclasses.replace(options, net="conv3x3x1,pool2s1,conv2x2x4,dense4")
    with pytest.raises(
        UserError, match=r"^a plan that splits the 1 channels of W2 over 2 ranks: one would get no"
    ):
        trained(here, Plan(1, 2, ("samples", "columns", "samples")), job)
