"""Training with parameter servers, whole: what it equals, the bound of staleness, checkpoints, refusals."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nn.app import start
from nn.app.options import Options
from nn.app.report import Report
from nn.checkpoints.stopping import Stopping
from nn.input.dataset import Dataset
from nn.model.dense import Dense
from nn.model.network import Network
from nn.optimisers import Sgd
from nn.train.diverged import Diverged
from nn.train.trainer import Trainer
from nn.train.workers import binned
from pyrt.devices import Device, open_device
from pyrt.driver.cpu import CpuDriver
from pyrt.errors import UserError
from pyrt.exchange.server import working
from pyrt.exchange.server.working import WorkingExchange
from pyrt.job import Job, join
from pyrt.phases import Phases
from pyrt.runtime import Runtime
from tests import few
from tests.nn.small_runs import outcome, require_passed, saved, using
from train import train

SERVER = using(
    exchange="server",
    data="synthetic:6x5x1:4:101",
    hidden=(11,),
    activation="tanh",
    batch=20,
    samples=100,
    momentum=0.5,
    lr=0.2,
    reg=0.01,
    dtype="float64",
)
"""Five batches of 20 an epoch."""


SYNCHRONOUS: list[dict[str, Any]] = [
    {"servers": 2, "samples": 41},  # a last batch of one sample: a worker has none
    {"optimiser": "adam", "lr": 0.01, "eps": 1e-4, "placement": "stream", "samples": 60, "val_fraction": 0.2},
    {"net": "conv3x3x4,relu,dropout0.3,pool2,dense4", "servers": 3, "hidden": Options.hidden},
]


@pytest.mark.parallel(few([4], of=[3, 4]))
@pytest.mark.parametrize("device", few(["cpu"], of=["cpu", "kernels"]), indirect=True)
@pytest.mark.parametrize("changes", few(SYNCHRONOUS[:2], of=SYNCHRONOUS), ids=str)
def test_without_staleness_it_trains_the_reference(device: str, job: Job, changes: dict[str, Any]) -> None:
    changes = {"activation": Options.activation, **changes} if "net" in changes else changes
    changes["servers"] = min(changes.get("servers", 1), job.size - 1)
    report = train(using(SERVER, device=device, staleness="0", check=True, **changes))
    require_passed(report)
    told = report.asynchronous
    assert told is not None and told.furthest == 0
    assert told.staleness == [[told.updates * told.workers]] * changes["servers"]
    assert told.least == told.most == SERVER.epochs


@pytest.mark.parallel([3])
@pytest.mark.parametrize("device", ["kernels"], indirect=True)
def test_a_server_on_the_cpu_goes_with_workers_that_have_kernels(
    device: str, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Train the reference as on a node that has as many GPUs as workers."""
    opened = start.open_device

    def open_one(choice: str, job: Job, *settings: Any) -> Device:
        found = opened(choice, job, *settings)
        if job.rank > 0:
            return found
        found.driver.close()
        return Device(CpuDriver(), "")

    monkeypatch.setattr(start, "open_device", open_one)
    report = train(using(SERVER, device=device, staleness="0", check=True, epochs=1, samples=30))
    require_passed(report)
    assert report.environment["device"] == device and report.environment["gemm"] != "numpy"


def require_close(found: dict[str, tuple[str, bytes]], expected: dict[str, tuple[str, bytes]]) -> None:
    """Compare parameters, of which Adam's steps may differ by roundings."""
    assert found.keys() == expected.keys()
    for name, (dtype, values) in found.items():
        np.testing.assert_allclose(
            np.frombuffer(values, dtype), np.frombuffer(expected[name][1], dtype), atol=1e-4, err_msg=name
        )


@pytest.mark.parallel([2])
@pytest.mark.parametrize("optimiser", few(["adam"], of=["sgd", "adam"]))
@pytest.mark.parametrize("device", few(["kernels"], of=["cpu", "kernels"]), indirect=True)
def test_one_worker_has_the_bits_of_one_rank(device: str, job: Job, tmp_path: Path, optimiser: str) -> None:
    folder: Path = job.comm.bcast(tmp_path)
    options = using(SERVER, device=device, dtype="float32", samples=53, optimiser=optimiser, print_every=2)
    served = outcome(options, job, staleness="0", save=folder / "served.npz")
    alone = using(options, exchange="auto", save=folder / f"alone{job.rank}.npz")
    report = train(alone, job.alone())
    if len(set(served[3].environment["devices"])) > 1:  # fewer GPUs than ranks: the update is NumPy's
        require_close(served[0], saved(alone.save))
        return
    assert served[0] == saved(alone.save)
    assert served[1] == [(epoch.loss, epoch.validation_precision) for epoch in report.epochs]
    assert served[2] == report.test
    if job.rank == 0:
        assert served[3].losses == report.losses


@pytest.mark.parallel(few([4], of=[3, 4]))
@pytest.mark.parametrize("device", few(["cpu"], of=["cpu", "kernels"]), indirect=True)
def test_workers_learn(device: str, job: Job) -> None:
    options = using(SERVER, device=device, epochs=12, servers=2, batch=25, momentum=0.0, order_seed=None)
    if device == "emulated":
        options = using(options, order_seed=5, epochs=6)
    report = train(options)
    first, *_, last = report.epochs
    assert first.loss > 0.5 and last.loss < 0.7 * first.loss  # how stale updates are depends on the machine
    assert report.test is not None and report.test.precision >= 0.7
    told, workers = report.asynchronous, job.size - 2
    assert told is not None and (told.workers, told.updates) == (workers, 4 * options.epochs * workers)
    assert [sum(counts) for counts in told.staleness] == [told.updates] * 2
    assert told.lost == 0 and told.seen == 100
    assert job.comm.allgather(told) == [told] * job.size
    assert told.lines[1].startswith("staleness in versions: mean")


class Times:
    """The times at which this rank's steps began, and at which their first gradients were ready."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, nap: Callable[[int], float]) -> None:
        self.begun: list[float] = []
        self.done: list[float] = []
        begin, ready = WorkingExchange.begin_step, WorkingExchange.ready

        def begins(exchange: WorkingExchange, samples: int, weight: int) -> None:
            self.begun.append(time.monotonic())
            time.sleep(nap(len(self.begun)))
            begin(exchange, samples, weight)

        def is_ready(exchange: WorkingExchange, bucket: int) -> None:
            if len(self.done) < len(self.begun):
                self.done.append(time.monotonic())
            ready(exchange, bucket)

        monkeypatch.setattr(WorkingExchange, "begin_step", begins)
        monkeypatch.setattr(WorkingExchange, "ready", is_ready)


@pytest.mark.parallel([4])
@pytest.mark.parametrize("staleness", few([2], of=[0, 1, 2, 5]))
def test_no_worker_gets_further_ahead_than_the_bound(
    job: Job, staleness: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read the clocks of the workers themselves; some nap at random, and one always does."""
    rng = np.random.default_rng(job.rank)
    times = Times(monkeypatch, lambda step: 0.004 if job.rank == 2 else 0.004 * (rng.random() < 0.2))
    report = train(using(SERVER, staleness=str(staleness), epochs=1, samples=500))
    begun, done = zip(*job.comm.allgather((times.begun, times.done))[1:], strict=True)
    leads = [
        step - sum(end <= start for end in others)
        for mine in begun
        for step, start in enumerate(mine)
        for others in done
    ]
    assert max(leads) <= staleness
    told = report.asynchronous
    assert told is not None and told.furthest == staleness
    most = max(len(counts) for counts in told.staleness) - 1
    assert most <= (told.workers - 1) * (2 * staleness + 1)


@pytest.mark.parallel([3])
def test_a_program_of_the_user_trains_step_by_step(job: Job) -> None:
    """On all ranks, servers too; with the losses that ranks have who sum."""
    opened = open_device("cpu", job, True)
    runtime = Runtime(job, opened, Phases(time.perf_counter()))
    images = np.random.default_rng(0).integers(0, 256, (47, 36)).astype(np.uint8)
    data = Dataset("noise", images, (np.arange(47) % 3).astype(np.int32), None, None, (6, 6))
    network = Network((36,), [Dense(17, "tanh"), Dense(3)])

    def losses(**settings: Any) -> list[float]:
        settings |= {"batch": 20, "val_fraction": 0, "dtype": "float64"}
        with Trainer(network, Sgd(lr=0.3, momentum=0.9), data, runtime, **settings) as trainer:
            found = [trainer.step() for _ in range(4)] + [epoch.loss for epoch in trainer.epochs(1)]
            assert bool(trainer.parameters()) == (job.rank == 0)
        return found

    assert losses(exchange="server", staleness="0") == pytest.approx(losses(exchange="host"), rel=1e-12)


@pytest.mark.parallel([4])
def test_nobody_waits_for_a_slow_worker(job: Job) -> None:
    """It makes fewer steps; others make these in its place."""
    report = train(using(SERVER, slow_rank="3:300", epochs=2, epoch_barrier=False))
    told = report.asynchronous
    assert told is not None and told.updates == 2 * 5 * 3
    assert told.furthest > 2 and told.most > told.least
    assert [epoch.validation_precision for epoch in report.epochs] == [None, None]
    assert len(report.epochs) == 2 and all(np.isfinite(epoch.loss) for epoch in report.epochs)


def stopped_and_resumed(options: Options, at: int, monkeypatch: pytest.MonkeyPatch) -> Report:
    """Ask one worker to stop when it has made so many steps; go on from the checkpoint."""
    rank, seen = join().rank, [0]

    def is_asked() -> bool:
        seen[0] += rank == 2
        return seen[0] >= at

    with monkeypatch.context() as patched:
        patched.setattr(working, "stop_was_asked", is_asked)
        patched.setattr(Stopping, "is_agreed_now", lambda _: any(join().comm.allgather(seen[0] >= at)))
        report = train(options)
        assert report.preempted and 0 < len(report.epochs) < options.epochs
    return train(dataclasses.replace(options, resume=True))


@pytest.mark.parallel([4])
@pytest.mark.parametrize("optimiser", ["adam"])
def test_a_synchronous_run_goes_on_as_if_never_stopped(
    job: Job, tmp_path: Path, optimiser: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder: Path = job.comm.bcast(tmp_path)
    options = using(SERVER, servers=2, staleness="0", optimiser=optimiser, epochs=3)
    options = using(options, checkpoint=folder / "c", samples=80, val_fraction=0.2)
    whole = outcome(options, job, save=folder / "w.npz", checkpoint=None)
    report = stopped_and_resumed(using(options, save=folder / "r.npz"), 8, monkeypatch)
    assert saved(folder / "r.npz") == whole[0]
    assert [epoch.loss for epoch in report.epochs] == [epoch.loss for epoch in whole[3].epochs]
    assert report.test == whole[2]


@pytest.mark.parallel([3])
def test_a_run_that_one_worker_was_asked_to_stop_goes_on(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder: Path = job.comm.bcast(tmp_path)
    options = using(SERVER, checkpoint=folder / "c", checkpoint_every="3", epochs=6)
    report = stopped_and_resumed(options, 9, monkeypatch)
    assert len(report.epochs) == 6 and report.epochs[0].loss > report.epochs[-1].loss
    told = report.asynchronous
    assert told is not None and told.updates < 6 * 5 * 2 and told.least >= 1


@pytest.mark.parallel([2])
def test_a_loss_that_is_not_finite_ends_all_at_the_end_of_its_epoch(job: Job) -> None:
    with pytest.raises(Diverged, match=r"the loss of epoch \d is (nan|inf): no result was written; try a"):
        train(using(SERVER, lr=1e300, activation="relu"))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"check": True}, "--exchange server: .*: leave out --check, or give --staleness 0"),
    ({"plan": "model"}, "--exchange server: each rank has all weights: leave out --plan"),
    ({"exchange": "host", "servers": 2}, "--servers: goes with --exchange server"),
    ({"exchange": "host", "staleness": "3"}, "--staleness: goes with --exchange server"),
    ({"exchange": "host", "epoch_barrier": False}, "--no-epoch-barrier: goes with --exchange hogwild"),
    ({"staleness": "-1"}, "--staleness -1: must be steps, 0 or more, or inf"),
    ({"servers": 0}, "--servers 0: must be a whole number, 1 or more"),
    ({"atomic": True}, "--atomic: goes with --exchange hogwild"),
    ({"slow_rank": "3"}, "--slow-rank 3: must be a rank, and how many times as long"),
    ({"slow_rank": "3:0.5"}, "--slow-rank 3:0.5: must be a rank, and how many times as long"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED)
def test_options_that_make_no_sense_together(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        using(SERVER, **changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parallel([3])
def test_what_ranks_cannot_do_is_refused_by_all_of_them(job: Job) -> None:
    for changes, words in (
        ({"servers": 3}, "--servers 3: leaves no worker among 3 ranks: start more"),
        ({"samples": 81}, "each of 2 workers needs a sample of each batch, and one has 1"),
        ({"slow_rank": "0:2"}, "--slow-rank 0:2: the ranks that compute are 1 to 2: name one of them"),
    ):
        with pytest.raises(UserError, match=words):
            train(using(SERVER, **changes))


@pytest.mark.parallel([3])
def test_a_slow_rank_slows_those_that_wait_for_it(job: Job) -> None:
    """The time of its naps is told; and what is trained is the same."""
    plain = using(SERVER, exchange="host", epochs=1)
    slow = train(using(plain, slow_rank="1:3", check=True))
    require_passed(slow)
    if job.rank == 0:
        row = slow.phase("slow rank")
        assert row.calls == 5 and row.least == 0.0 < row.most


def test_bins_double() -> None:
    assert binned(np.array([0.5, 0.1, 0.1, 0.1, 0.2])) == [
        ("0", 0.5),
        ("1", 0.1),
        ("2-3", pytest.approx(0.2)),
        ("4-7", 0.2),
    ]
