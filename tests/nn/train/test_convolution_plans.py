"""Runs under plans that split convolutions: the trained network is that of the reference."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nn.app.options import Options
from nn.parallel import plan_files
from nn.parallel.plan import Plan
from pyrt.job import Job, join
from tests import few, standing_still
from train import train

PIXELS = (7, 6, 5)
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

CONVOLUTIONS = list(itertools.product(["samples", "rows"], repeat=2))
"""Pairs of splits: of one convolution and the next."""


@pytest.fixture
def job() -> Job:
    return join()


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


def trained(options: Options, plan: Plan, job: Job) -> dict[str, bytes]:
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
    with np.load(options.save) as file:
        return {name: file[name].tobytes() for name in file.files if name != "run"}


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
    for place, plan in enumerate(plans(job.size)):
        trained(dataclasses.replace(options, **(ADAM if place % 2 else {})), plan, job)
