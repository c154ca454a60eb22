"""Runs with --augment: any ranks, plans, devices and placements change images as the reference does."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nn
import pyrt
from nn.app.options import Options
from nn.checkpoints.stopping import Stopping
from pyrt.driver import Driver
from pyrt.errors import UserError
from pyrt.job import Job
from tests import few
from tests.nn.small_runs import outcome, require_passed, write_images
from train import train

NET = "conv2x2x3,relu,dense9,tanh,dropout0.2,dense5"

SMALL = Options(
    net=NET,
    augment="flip,shift2",
    epochs=3,
    batch=20,
    samples=47,
    lr=0.5,
    momentum=0.5,
    reg=0.01,
    val_fraction=0.1,
    seed=5,
    dtype="float64",
    check=True,
    device="cpu",
)
"""Nine steps, with batches of 20, 20 and 7 samples, of 45 rows: two come twice."""

DENSE = {"net": None, "hidden": (9,)}
"""A network that takes flat rows, of images whose shape the data tell."""


@pytest.fixture
def options(shared: Path, job: Job) -> Options:
    """Of a run on random images in five classes, for all ranks; it saves its weights."""
    if job.rank == 0:
        write_images(shared / "images.npz", (3, 4, 2))
    job.comm.barrier()
    return dataclasses.replace(SMALL, data=str(shared / "images.npz"), save=shared / "w.npz")


def test_one_rank_changes_what_the_reference_does(options: Options, job: Job) -> None:
    """In another way with other words; a network that takes flat rows gets the shape from the data."""
    require_passed(train(options, job))
    require_passed(train(dataclasses.replace(options, **DENSE), job))
    options = dataclasses.replace(options, check=False, net=NET.replace("dropout0.2,", ""), shuffle=False)
    changes = ({}, {"augment": "flip"}, {"augment": "shift2"}, {"augment": None})
    weights = {str(outcome(options, job, **change)[0]) for change in changes}
    assert len(weights) == 4


@pytest.mark.parallel(few([3], of=[2, 3, 4]))
def test_ranks_change_what_the_reference_does(options: Options, job: Job) -> None:
    """Split by samples, also where some ranks have none: batches of 2 of 5 samples, and 1; and by weights."""
    ways: list[dict[str, Any]] = [
        {"exchange": "host"},
        {"samples": 5, "batch": 2},
        {**DENSE, "plan": "model"},
    ]
    for changes in few(ways[1:], of=ways):
        require_passed(train(dataclasses.replace(options, **changes), job))


@pytest.mark.kernels
@pytest.mark.parallel(few([1], of=[1, 2, 3]))
def test_kernels_change_what_the_reference_does(options: Options, job: Job, driver: Driver) -> None:
    """In graphs of several steps and without; the same bits, whatever queues the steps and brings the rows.

    Of three ranks one gets no sample of the short last batch.
    """
    options = dataclasses.replace(options, device=driver.name, share_gpus=True, batch=5, epochs=2)
    whole = outcome(options, job, graph=True, placement="resident")
    require_passed(whole[-1])
    assert outcome(options, job, graph=False, placement="stream", check=False)[:3] == whole[:3]


OPERATIONS_OF: list[dict[str, Any]] = [{}, {**DENSE, "dtype": "float32", "placement": "stream"}]


@pytest.mark.kernels
@pytest.mark.parametrize("changes", few(OPERATIONS_OF[1:], of=OPERATIONS_OF))
def test_each_operation_is_that_of_numpy(
    options: Options, job: Job, driver: Driver, changes: dict[str, Any]
) -> None:
    options = dataclasses.replace(options, device=driver.name, check_each=3, lr=0.1, epochs=1, **changes)
    require_passed(train(options, job))


@pytest.mark.kernels
@pytest.mark.parametrize("placement", few(["stream"], of=["resident", "stream"]))
def test_a_resumed_run_changes_what_an_unbroken_one_does(
    options: Options, job: Job, driver: Driver, placement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From within an epoch."""
    options = dataclasses.replace(options, device=driver.name, placement=placement, check=False, **DENSE)
    whole = outcome(options, job)
    kept = dataclasses.replace(options, checkpoint=Path(options.data).parent / "kept", checkpoint_every="2")
    with monkeypatch.context() as patch:
        patch.setattr(Stopping, "is_agreed", lambda stopping, step, done: step >= 4)
        assert train(kept, job).preempted
    assert outcome(kept, job, resume=True)[:3] == whole[:3]
    with pytest.raises(UserError, match="made with --augment flip,shift2, this run is without --augment"):
        train(dataclasses.replace(kept, resume=True, augment=None), job)


def test_flat_rows_cannot_be_augmented() -> None:
    """In a program too; a network whose inputs are images says what their shape is."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (20, 12), np.uint8), np.arange(20, dtype=np.int32) % 3
    data = nn.Dataset("rows", images, labels, None, None, (12,))
    dense, settings = nn.Network((12,), [nn.Dense(3)]), {"batch": 5, "augment": "shift1", "val_fraction": 0}
    with pyrt.start(device="cpu") as runtime:
        with pytest.raises(
            UserError, match="--augment shift1: the height and width of an image are not known"
        ):
            nn.Trainer(dense, nn.Sgd(), data, runtime, **settings)
        network = nn.Network((3, 4), [nn.Dense(3)])
        with nn.Trainer(network, nn.Sgd(), data, runtime, **settings) as trainer:
            assert np.isfinite(trainer.step())
