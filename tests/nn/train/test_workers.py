"""Asynchronous training, whole: what workers make of a step, losses of epochs, coverage, what is refused."""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nn.app.options import Options
from nn.app.report import Report
from nn.checkpoints.stopping import Stopping
from nn.input.dataset import Dataset
from nn.input.schedule import Schedule
from nn.launch.gemm.versions import runs_gemm
from nn.model import reference
from nn.model.constraint import Constraint
from nn.model.dense import Dense
from nn.model.initial import initial_values
from nn.model.network import Network
from nn.optimisers import Sgd
from nn.train import check
from nn.train.diverged import Diverged
from nn.train.trainer import Trainer
from pyrt.devices import open_device
from pyrt.errors import UserError
from pyrt.exchange.registry import exchanges
from pyrt.job import Job
from pyrt.phases import Phases
from pyrt.redistribute.regions import share
from pyrt.runtime import Runtime
from tests import few, spread
from tests.nn.small_runs import saved, using
from train import train

HOGWILD = using(
    exchange="hogwild",
    data="synthetic:6x5x1:4:101",
    hidden=(11,),
    activation="tanh",
    batch=20,
    momentum=0.5,
    lr=0.1,
    reg=0.0,
)
"""Batches of 20, the last of an epoch of 1."""

NETWORK = Network((36,), [Dense(17, "tanh"), Dense(3)])


@pytest.fixture
def runtime(device: str, job: Job) -> Iterator[Runtime]:
    opened = open_device(device, job, True)
    yield Runtime(job, opened, Phases(time.perf_counter()))
    opened.driver.close()


def noise() -> Dataset:
    images = np.random.default_rng(0).integers(0, 256, (47, 36)).astype(np.uint8)
    return Dataset("noise", images, (np.arange(47) % 3).astype(np.int32), None, None, (6, 6))


def after_steps(trainer: Trainer, steps: int) -> dict[str, np.ndarray]:
    """Train, and check each step's loss; return what the parameters should be then, float64.

    The workers begin each step with the same parameters, update them by the gradients of their own samples
    with velocities of their own, and all updates are added.
    """
    problem, job, network = trainer.problem, trainer.runtime.job, trainer.problem.network
    rates: Any = problem.optimiser
    first = initial_values(network, problem.settings.dtype, 0)
    expected = {name: value.astype(np.float64) for name, value in first.items()}
    velocities = [{name: np.zeros_like(p) for name, p in expected.items()} for _ in range(job.size)]
    for X, labels in itertools.islice(check.batches(problem), steps):
        parts = [slice(*share(len(X), job.size, rank)) for rank in range(job.size)]
        _, Z = reference.forward(expected, X[parts[job.rank]], network)
        loss = reference.losses(Z, labels[parts[job.rank]], "softmax").mean()
        found = [
            reference.cost_and_gradients(expected, X[part], labels[part], network, rates.reg)[1]
            for part in parts
        ]
        for v, gradients in zip(velocities, found, strict=True):
            for name, gradient in gradients.items():
                v[name] = rates.momentum * v[name] + gradient
                expected[name] = expected[name] - rates.lr * v[name]
        assert trainer.step() == pytest.approx(loss, rel=1e-5)
    return expected


def check_steps(runtime: Runtime, network: Network, **settings: Any) -> None:
    """Compare with NumPy to rounding: float32's over a few steps, in sums of 40 to 160 products."""
    job, optimiser = runtime.job, Sgd(lr=0.3, momentum=0.9, reg=0.01)
    settings |= {"exchange": "hogwild", "atomic": True, "val_fraction": 0}
    with Trainer(network, optimiser, noise(), runtime, **settings) as trainer:
        expected = after_steps(trainer, 5)
        mine = trainer.model.parameters.to_host()
        tolerance = 1e-12 if settings["dtype"] == "float64" else 1e-5
        for name, array in mine.items():
            assert check.difference(name, array, expected[name]).max_norm <= tolerance, name
        bits = {name: array.tobytes() for name, array in mine.items()}
        assert job.comm.allgather(bits) == [bits] * job.size


@pytest.mark.parallel(few([3], of=[2, 3, 4]))
@pytest.mark.parametrize("dtype", few(["float64"], of=["float32", "float64"]))
def test_each_worker_updates_by_the_mean_of_its_own_samples(runtime: Runtime, dtype: str) -> None:
    """Parts of uneven size, and a short last batch."""
    check_steps(runtime, NETWORK, dtype=dtype, batch=20)


@pytest.mark.parallel([2])
def test_components_of_weights_follow_what_others_have_changed(runtime: Runtime) -> None:
    """Products on tensor cores read them in place of weights."""
    driver = runtime.driver
    if not driver.has_kernels or not runs_gemm("wgmma", driver.architecture):
        pytest.skip("needs the tensor cores of sm_90")
    wide = Network((36,), [Dense(72, "sigmoid"), Dense(70, "sigmoid"), Dense(3)])
    check_steps(runtime, wide, dtype="float32", batch=160, samples=160, gemm="wgmma")


def one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one rank, which has nothing to sum, train as a worker all the same."""
    monkeypatch.setitem(exchanges(), "local", exchanges()["hogwild"])


CHANGES: list[dict[str, Any]] = [
    {},
    {"optimiser": "adam", "lr": 0.001, "val_fraction": 0.2, "print_every": 2},
    {
        "graph": False,
        "net": "conv3x3x4,relu,dropout0.3,pool2,dense4",
        "hidden": Options.hidden,
        "activation": Options.activation,
    },
]


@pytest.mark.parametrize(
    ("device", "changes"),
    spread(["cpu", "kernels"], few(CHANGES[1:], of=CHANGES), by=2),
    indirect=["device"],
    ids=str,
)
def test_one_worker_has_the_bits_of_one_rank(
    device: str, tmp_path: Path, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def outcome(name: str) -> tuple[object, ...]:
        options = using(HOGWILD, device=device, save=tmp_path / name, **changes)
        report = train(options)
        told = [(epoch.loss, epoch.validation_precision) for epoch in report.epochs]
        return saved(options.save), told, report.losses, report.test

    alone = outcome("alone.npz")
    one_worker(monkeypatch)
    assert outcome("worker.npz") == alone


def test_on_one_rank_there_is_nobody_to_wait_for(tmp_path: Path) -> None:
    """The exchange is none there; the report tells of no workers."""
    report = train(using(HOGWILD, epochs=1))
    assert report.environment["exchange"] == "local" and report.asynchronous is None


@pytest.mark.parallel(few([4], of=[2, 3, 4]))
@pytest.mark.parametrize("atomic", few([True], of=[False, True]))
@pytest.mark.parametrize("device", few(["cpu"], of=["cpu", "kernels"]), indirect=True)
def test_workers_learn(device: str, job: Job, atomic: bool, tmp_path: Path) -> None:
    """To tell four classes by their squares: the loss falls from 1.4 to below 0.2."""
    path: Path = job.comm.bcast(tmp_path / "report.json")
    batch = {"batch": 25, "samples": 100, "epochs": 12, "momentum": 0.0}
    report = train(using(HOGWILD, device=device, atomic=atomic, lr=0.2, json=path, **batch))
    first, *_, last = report.epochs
    assert first.loss > 0.7 and last.loss < 0.2
    assert report.test is not None and report.test.precision == 1.0
    told = report.asynchronous
    assert told is not None and (told.workers, told.updates) == (job.size, 4 * 12 * job.size)
    assert (told.samples, told.seen, told.least, told.most) == (100, 100, 12, 12)
    assert 0 <= told.lost < (1e-12 if atomic else 0.5)
    assert job.comm.allgather(told) == [told] * job.size
    (line,) = (line for line in report.environment["header"] if line.startswith("exchange"))
    assert line.endswith("results differ from run to run")
    if job.rank == 0:
        report.write_json(path)
        assert json.loads(path.read_text())["asynchronous"] == dataclasses.asdict(told)
        assert told.lines[0].endswith("100 of 100 training samples were seen, each 12 times")


def stopped_and_resumed(options: Options, stop: int, monkeypatch: pytest.MonkeyPatch) -> Report:
    with monkeypatch.context() as patched:
        patched.setattr(Stopping, "is_agreed", lambda stopping, step, done: step >= stop)
        assert train(options).preempted
    return train(dataclasses.replace(options, resume=True))


@pytest.mark.parallel([3])
@pytest.mark.parametrize("device", few(["cpu"], of=["cpu", "kernels"]), indirect=True)
def test_the_loss_of_an_epoch_is_the_mean_over_all_samples(
    device: str, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a rate that changes nothing it is that of a run that sums, also where it was broken off."""
    folder: Path = job.comm.bcast(tmp_path)
    still = using(HOGWILD, device=device, batch=9, lr=1e-30, dtype="float64", samples=43)
    expected = [epoch.loss for epoch in train(using(still, exchange="host")).epochs]
    assert [epoch.loss for epoch in train(still).epochs] == pytest.approx(expected, rel=1e-12)
    report = stopped_and_resumed(using(still, checkpoint=folder / "c", checkpoint_every="7"), 7, monkeypatch)
    assert [epoch.loss for epoch in report.epochs] == pytest.approx(expected, rel=1e-12)
    assert report.asynchronous is not None and report.asynchronous.updates == 3 * 3
    assert (report.asynchronous.least, report.asynchronous.most) == (2, 2)


@pytest.mark.parallel([3])
@pytest.mark.parametrize("device", few(["cpu"], of=["cpu", "kernels"]), indirect=True)
def test_without_a_barrier_epochs_are_told_where_workers_meet(device: str, job: Job, tmp_path: Path) -> None:
    """At a rate that changes nothing their losses are those with barriers; the last is validated."""
    folder: Path = job.comm.bcast(tmp_path)
    still = using(HOGWILD, device=device, batch=9, lr=1e-30, dtype="float64", samples=43, val_fraction=0.2)
    expected = train(using(still, exchange="host")).epochs
    for changes in ({}, {"checkpoint": folder / "c", "checkpoint_every": "7"}):
        report = train(using(still, epoch_barrier=False, **changes))
        losses = [epoch.loss for epoch in report.epochs]
        assert losses == pytest.approx([epoch.loss for epoch in expected], rel=1e-12)
        scores = [epoch.validation_precision for epoch in report.epochs]
        assert scores == [None] * (len(expected) - 1) + [expected[-1].validation_precision]


@pytest.mark.parallel([2])
def test_a_resumed_run_goes_on_from_the_shared_parameters(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder: Path = job.comm.bcast(tmp_path)
    options = using(HOGWILD, samples=80, epochs=12, checkpoint=folder / "c", checkpoint_every="37")
    report = stopped_and_resumed(options, 37, monkeypatch)
    assert len(report.epochs) == 12 and report.epochs[0].loss > 0.7
    assert report.epochs[9].loss < 0.3


@pytest.mark.parallel([2])
def test_a_loss_that_is_not_finite_ends_all_at_the_end_of_its_epoch(device: str, job: Job) -> None:
    options = using(HOGWILD, device=device, samples=80, lr=1e30, activation="relu")
    with pytest.raises(Diverged, match=r"the loss of epoch 1 is (nan|inf): no result was written; try a"):
        train(options)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"plan": "model"}, "--exchange hogwild: each rank has all weights: leave out --plan"),
    ({"plan": "auto"}, "--exchange hogwild: each rank has all weights: leave out --plan"),
    ({"check": True}, "--exchange hogwild: .*: leave out --check"),
    ({"exchange": "host", "atomic": True}, "--atomic: goes with --exchange hogwild"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED)
def test_options_that_make_no_sense_together(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        using(HOGWILD, **changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parallel([2])
def test_what_ranks_cannot_do_is_refused_by_all_of_them(job: Job) -> None:
    with pytest.raises(UserError, match="each of 2 workers needs a sample of each batch, and one has 1"):
        train(HOGWILD)
    with pytest.raises(UserError, match="--exchange hogwild: for the ranks of one node"):
        train(using(HOGWILD, samples=40, ranks_per_node=1))
    opened = open_device("cpu", job, True)
    keeps, whole = Runtime(job, opened, Phases(time.perf_counter())), Constraint({1: np.zeros((17, 36), int)})
    with pytest.raises(UserError, match="--exchange hogwild: keeps no constraint"):
        Trainer(NETWORK, Sgd(), noise(), keeps, constraint=whole, batch=20, exchange="hogwild")


def test_coverage_counts_the_rows_of_batches() -> None:
    for samples, shuffle in ((10, True), (25, True), (7, False)):
        schedule = Schedule(rows=10, samples=samples, batch=4, epochs=3, shuffle=shuffle, seed=1)
        counts = np.zeros(schedule.used, int)
        for step in range(schedule.steps):
            assert schedule.coverage(step).tolist() == counts.tolist()
            np.add.at(counts, schedule.rows(step), 1)
        assert schedule.coverage(schedule.steps).tolist() == counts.tolist()
