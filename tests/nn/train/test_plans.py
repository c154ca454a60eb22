"""Runs under every plan: whatever is split, the trained network is that of the reference."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest

from nn.app.options import Options
from nn.parallel import plan_files
from nn.parallel.plan import SAMPLES, SPLITS, Plan
from nn.program.update import ParameterUpdate
from nn.train.diverged import Diverged
from pyrt.driver import Driver
from pyrt.errors import UserError
from pyrt.exchange import Bucket, QueueWork
from pyrt.exchange.host import HostExchange
from pyrt.job import Job
from tests import few, spread
from tests.nn.small_runs import saved, write_images
from train import train

SMALL = Options(
    hidden=(9, 7),
    epochs=2,
    batch=20,
    samples=47,
    lr=0.5,
    momentum=0.0,
    reg=0.01,
    val_fraction=0.0,
    check=True,
)
"""Batches of 20, 20 and 7 samples; units that 2, 3 and 4 ranks cannot share evenly."""


@pytest.fixture
def digits(shared: Path, job: Job) -> str:
    """50 random images of 3 x 4 pixels in five classes, and 11 to test."""
    if job.rank == 0:
        write_images(shared / "digits.npz", (3, 4))
    job.comm.barrier()
    return str(shared / "digits.npz")


def plans(ranks: int, layers: int) -> list[Plan]:
    """All of so many ranks that split anything but batches."""
    return [
        Plan(ranks // shards, shards, splits)
        for shards in range(2, ranks + 1)
        if ranks % shards == 0
        for splits in itertools.product(SPLITS, repeat=layers)
        if set(splits) != {SAMPLES}
    ]


def trained(options: Options, plan: Plan, shared: Path, job: Job) -> dict[str, Any]:
    """The parameters that a run under the plan saves, bit by bit, on rank 0; its check has passed."""
    path, weights = shared / "plan.json", shared / "weights.npz"
    if job.rank == 0:
        plan_files.save(path, plan)
    report = train(dataclasses.replace(options, plan=str(path), save=weights), job)
    assert report.passed, f"{plan}\n{report.check}"
    if job.rank > 0:
        return {}
    return saved(weights)


@pytest.mark.parallel(few([3], of=[2, 3, 4]))
@pytest.mark.parametrize("dtype", few(["float64"], of=["float32", "float64"]))
def test_every_plan_trains_the_network_of_the_reference(
    digits: str, shared: Path, job: Job, dtype: str
) -> None:
    options = dataclasses.replace(SMALL, data=digits, device="cpu", dtype=dtype)
    of_all = plans(job.size, 3)[:: 1 if dtype == "float64" else 4]
    for plan in few(of_all[::9], of=of_all):
        trained(options, plan, shared, job)


SOME = {
    2: [Plan(1, 2, splits) for splits in (("rows", "columns", "samples"), ("samples", "rows", "columns"))],
    3: [Plan(1, 3, splits) for splits in (("columns", "samples", "rows"), ("rows", "rows", "columns"))],
    4: [Plan(2, 2, ("rows", "samples", "columns")), Plan(1, 4, ("rows", "columns", "columns"))],
}
"""Between them every transition from one split to another."""

WAYS = [("host", True), ("peer", True), ("peer", False)]
"""Exchange, and whether graphs replay the steps."""


def on_device(digits: str, driver: Driver, **changes: Any) -> Options:
    """A small run with kernels, on one device if need be."""
    options = dataclasses.replace(SMALL, data=digits, device=driver.name, share_gpus=True)
    return dataclasses.replace(options, **changes)


@pytest.mark.kernels
@pytest.mark.parallel(few([3], of=[2, 3, 4]))
@pytest.mark.parametrize(("exchange", "graph"), few([WAYS[2]], of=WAYS))
def test_plans_on_a_device(
    digits: str, shared: Path, job: Job, driver: Driver, exchange: str, graph: bool
) -> None:
    """Whichever way activations and gradients go; the first plan's, the same bits twice."""
    options = on_device(
        digits,
        driver,
        exchange=exchange,
        graph=graph,
        momentum=0.5,
    )
    first, second = SOME[job.size]
    assert trained(options, first, shared, job) == trained(options, first, shared, job)
    trained(options, second, shared, job)


@pytest.mark.long
@pytest.mark.kernels
@pytest.mark.parallel([4])
def test_groups_that_are_nodes(digits: str, shared: Path, job: Job, driver: Driver) -> None:
    """Activations move over peer memory, gradients between nodes by MPI, some while a move is under way."""
    options = on_device(
        digits,
        driver,
        exchange="hierarchical",
        ranks_per_node=2,
    )
    of = [("rows", "rows", "columns"), ("rows", "samples", "columns")]
    for splits in few(of[1:], of=of):
        launched = dataclasses.replace(options, graph=False)
        plan = Plan(2, 2, splits)
        assert trained(options, plan, shared, job) == trained(launched, plan, shared, job)


@pytest.mark.kernels
@pytest.mark.parallel([4])
@pytest.mark.parametrize("exchange", few(["peer"], of=["host", "peer"]))
def test_under_a_profile_groups_do_not_wait_for_each_others_moves(
    digits: str, shared: Path, job: Job, driver: Driver, exchange: str
) -> None:
    """One of the groups has no sample of the last batch, and fewer samples to test, in fewer parts."""
    options = on_device(
        digits,
        driver,
        exchange=exchange,
        profile=True,
        batch=10,
        samples=11,
    )
    trained(options, Plan(2, 2, ("rows", "columns", "columns")), shared, job)


@pytest.mark.kernels
@pytest.mark.parallel([2])
def test_mailboxes_are_for_the_samples_that_there_are(
    digits: str, shared: Path, job: Job, driver: Driver
) -> None:
    """Not for those of a batch that is never full."""
    options = on_device(digits, driver, exchange="peer", batch=10**9)
    trained(options, Plan(1, 2, ("rows", "columns", "columns")), shared, job)


@pytest.mark.kernels
@pytest.mark.parallel([3])
@pytest.mark.parametrize("exchange", few(["peer"], of=["host", "peer"]))
def test_a_loss_that_diverges_ends_all_ranks(digits: str, job: Job, driver: Driver, exchange: str) -> None:
    """They see it while steps behind it are still under way, and do these to their end."""
    options = on_device(
        digits,
        driver,
        exchange=exchange,
        plan="model",
        lr=1e30,
        epochs=20,
        check=False,
    )
    with pytest.raises(Diverged, match="the loss is nan at epoch 1, step 3"):
        train(options, job)


@pytest.mark.long
@pytest.mark.parallel([4])
def test_groups_and_shards_give_the_loss_and_precision_of_one_rank(
    digits: str, shared: Path, job: Job
) -> None:
    """Scores are of all samples, each counted once; so are the losses of the epochs."""
    options = dataclasses.replace(SMALL, data=digits, device="cpu", dtype="float64", check=False)
    expected = job.comm.bcast(train(options, job.alone()) if job.rank == 0 else None)
    for plan in plans(4, 3)[::11]:
        if job.rank == 0:
            plan_files.save(shared / "plan.json", plan)
        report = train(dataclasses.replace(options, plan=str(shared / "plan.json")), job)
        assert report.test.loss == pytest.approx(expected.test.loss, rel=1e-12)
        assert report.test.recall == expected.test.recall
        assert [e.loss for e in report.epochs] == pytest.approx([e.loss for e in expected.epochs], rel=1e-12)


@pytest.mark.parallel([3])
def test_a_plan_that_does_not_fit_ends_all_ranks(digits: str, job: Job) -> None:
    options = dataclasses.replace(SMALL, data=digits, device="cpu", plan="model", hidden=(2, 7))
    with pytest.raises(UserError, match="splits the 2 rows of W1 over 3 ranks"):
        train(options, job)


@pytest.mark.parallel([2])
@pytest.mark.parametrize("splits", [(*SPLITS, SAMPLES), ("rows", SAMPLES, "columns", "rows")], ids=str)
def test_the_update_that_ends_a_step_is_the_last(
    digits: str, shared: Path, job: Job, splits: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With gradients of some layers summed over all ranks, and of others over those of a shard."""
    ended: list[bool] = []
    bind = ParameterUpdate.bind

    def noted(update: ParameterUpdate, *buckets: Bucket, ends_step: bool = False) -> QueueWork:
        work = bind(update, *buckets, ends_step=ends_step)
        keeps_the_loss = ends_step and update.ring is not None
        return lambda stream: (ended.append(keeps_the_loss), work(stream))

    monkeypatch.setattr(ParameterUpdate, "bind", noted)
    options = dataclasses.replace(SMALL, hidden=(8, 9, 8), data=digits, device="cpu", exchange="blocking")
    trained(options, Plan(1, 2, splits), shared, job)
    assert ended == [False, True] * 6


@pytest.mark.parallel([2])
@pytest.mark.parametrize(
    ("splits", "early"),
    spread([("rows", SAMPLES), (SAMPLES, "columns"), ("rows", SAMPLES, "rows")], [False, True], by=2),
    ids=str,
)
def test_a_step_is_counted_behind_all_updates(
    digits: str, shared: Path, job: Job, splits: tuple[str, ...], early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where an exchange has made all of its updates before the others make theirs."""
    advance = HostExchange._advance
    if early:
        monkeypatch.setattr(HostExchange, "_advance", lambda exchange, wait: advance(exchange, True))
    options = dataclasses.replace(SMALL, hidden=(8, 9)[: len(splits) - 1], data=digits, device="cpu")
    adam = {"optimiser": "adam", "lr": 0.01, "eps": 1e-4, "exchange": "host"}
    trained(dataclasses.replace(options, **adam), Plan(1, 2, splits), shared, job)
