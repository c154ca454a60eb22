"""Runs with dropout: any ranks, plans and devices drop what the reference does; nothing in evaluation."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from nn.app.options import Options
from nn.checkpoints.stopping import Stopping
from nn.files import parameters
from nn.model import reference
from nn.model.net_text import make_network
from pyrt.driver import Driver
from pyrt.job import Job
from tests import few, spread
from tests.nn.small_runs import outcome, require_passed, write_images
from train import train

NET = "dropout0.1,conv2x2x3,relu,pool2s1,dropout0.3,dense9,tanh,dropout0.5,dense7,sigmoid,dropout0.2,dense5"
"""Behind the input, a pool, and dense layers that ranks may share by rows and by columns."""

SMALL = Options(
    net=NET,
    epochs=3,
    batch=20,
    samples=47,
    lr=0.5,
    momentum=0.5,
    reg=0.01,
    val_fraction=0.0,
    seed=5,
    dtype="float64",
    check=True,
)
"""Nine steps, with batches of 20, 20 and 7 samples."""

SPLITS = [
    ("samples", "rows", "columns", "rows"),
    ("samples", "columns", "samples", "columns"),
    ("samples", "rows", "rows", "samples"),
]


@pytest.fixture
def options(shared: Path, job: Job) -> Options:
    """Of a run on random images in five classes, for all ranks; it saves its weights."""
    if job.rank == 0:
        write_images(shared / "digits.npz", (3, 4))
    job.comm.barrier()
    return dataclasses.replace(SMALL, data=str(shared / "digits.npz"), save=shared / "w.npz", device="cpu")


def test_one_rank_drops_what_the_reference_does(options: Options, job: Job) -> None:
    """In every step something else, and with another seed too."""
    first, *_, report = outcome(options, job)
    require_passed(report)
    weights = {str(first), str(outcome(options, job, seed=6, check=False)[0])}
    weights.add(str(outcome(options, job, net=NET.replace("0.5", "0.4"), check=False)[0]))
    assert len(weights) == 3


@pytest.mark.parallel(few([3], of=[2, 3, 4]))
def test_ranks_drop_what_the_reference_does(options: Options, job: Job) -> None:
    """Split by samples, also where some ranks have none: batches of 2 of 5 samples, and 1."""
    for exchange in few(["blocking"], of=["host", "blocking"]):
        require_passed(train(dataclasses.replace(options, exchange=exchange), job))
    require_passed(train(dataclasses.replace(options, samples=5, batch=2), job))


@pytest.mark.long
@pytest.mark.parallel(few([4], of=[2, 3, 4]))
@pytest.mark.parametrize("splits", few(SPLITS[:1], of=SPLITS), ids="-".join)
def test_ranks_that_share_layers_drop_what_the_reference_does(
    options: Options, job: Job, splits: tuple[str, ...]
) -> None:
    """By rows and by columns of the layer before; of four ranks also in two groups."""
    folder = Path(options.data).parent
    for groups, batch in spread((1, 2), (20, 1), by=2) if job.size == 4 else ((1, 20), (1, 1)):
        if job.rank == 0:
            plan = {"grid": [groups, job.size // groups], "layers": list(splits)}
            (folder / "plan.json").write_text(json.dumps(plan))
        job.comm.barrier()
        changed = dataclasses.replace(options, plan=str(folder / "plan.json"), batch=batch, samples=23)
        require_passed(train(changed, job))


@pytest.mark.kernels
@pytest.mark.parametrize("net", few([NET], of=[NET, "dense9,relu,dropout0.5,dense5"]))
def test_kernels_drop_what_the_reference_does_with_graphs_and_without(
    options: Options, job: Job, driver: Driver, net: str
) -> None:
    """In graphs of several steps; the same bits, whatever queues the steps and brings the rows."""
    options = dataclasses.replace(options, device=driver.name, net=net, samples=28, batch=5, epochs=2)
    whole, *others = (
        outcome(options, job, graph=graph, placement=placement)
        for graph, placement in spread((True, False), ("resident", "stream"), by=2)
    )
    require_passed(whole[-1])
    assert all(other[:3] == whole[:3] for other in others)


@pytest.mark.long
@pytest.mark.kernels
def test_each_operation_is_that_of_numpy(options: Options, job: Job, driver: Driver) -> None:
    require_passed(train(dataclasses.replace(options, device=driver.name, check_each=3), job))


@pytest.mark.long
@pytest.mark.kernels
@pytest.mark.parallel(few([2], of=[2, 4]))
def test_ranks_with_kernels_drop_what_the_reference_does(options: Options, job: Job, driver: Driver) -> None:
    """Over peer memory, and through the host; also ranks without samples."""
    options = dataclasses.replace(options, device=driver.name, share_gpus=True)
    ways: list[dict[str, object]] = [
        {"exchange": "peer"},
        {"samples": 5, "batch": 1},
        {"exchange": "host", "plan": "model"},
    ]
    for changes in few(ways[1:], of=ways):
        require_passed(train(dataclasses.replace(options, **changes), job))


def check_resumed(options: Options, job: Job, stop: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that stops after a step and goes on is one that never stops."""
    whole = outcome(options, job)
    kept = dataclasses.replace(options, checkpoint=Path(options.data).parent / "kept", checkpoint_every="2")
    with monkeypatch.context() as patch:
        patch.setattr(Stopping, "is_agreed", lambda stopping, step, done: step >= stop)
        assert train(kept, job).preempted
    job.comm.barrier()
    assert outcome(kept, job, resume=True)[:3] == whole[:3]


@pytest.mark.parallel(few([1], of=[1, 3]))
def test_a_resumed_run_drops_what_an_unbroken_one_does(
    options: Options, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_resumed(options, job, 4, monkeypatch)


@pytest.mark.long
@pytest.mark.kernels
def test_so_does_one_of_graphs(
    options: Options, job: Job, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = dataclasses.replace(options, device=driver.name, optimiser="adam", lr=0.01)
    check_resumed(options, job, 4, monkeypatch)


@pytest.mark.parallel(few([2], of=[1, 2]))
def test_nothing_is_dropped_in_evaluation(options: Options, job: Job) -> None:
    """The scores after training, and those of --evaluate, are those of the reference without dropout."""
    scores = train(options, job).test
    again = train(
        Options(evaluate=True, init=options.save, data=options.data, device="cpu", dtype="float64"), job
    )
    network = make_network(NET, (3, 4), 5, "softmax")
    assert options.save is not None
    weights = parameters.load(options.save, network, "float64")
    with np.load(options.data) as data:
        _, Z = reference.forward(weights, data["x_test"].reshape(11, 12) / 255, network)
        loss = reference.losses(Z, data["y_test"], "softmax").mean()
    assert scores is not None and again.test is not None
    assert scores.loss == pytest.approx(loss, rel=1e-12)
    assert again.test.loss == pytest.approx(loss, rel=1e-12)
    assert again.options["net"] == NET
