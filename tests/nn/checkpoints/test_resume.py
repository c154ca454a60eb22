"""Runs that go on from a checkpoint end with the bits of one that never stopped."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nn.autotune import probe
from nn.autotune.probe.context import EXTENTS
from nn.input import streamed
from nn.train import prepare as prepare_module
from pyrt import runtime as runtime_module
from pyrt.driver import Driver
from pyrt.exchange.device import verdict
from pyrt.job import join
from tests import few
from tests.nn.autotune.rates import QUICK
from tests.nn.checkpoints.runs import Runs
from train import train


def check_bits(runs: Runs, stops: Sequence[int], **changes: Any) -> None:
    """A run that stops after each of these steps, and goes on, is one that never stops."""
    whole = runs.outcome(runs(**changes))
    for stop in stops:
        stopped = runs.kept(stop=stop, checkpoint_every=str(stop), **changes)  # graphs end there, too
        assert stopped.preempted and stopped.test is None
        report = runs.resumed(**changes)
        assert f"resumed at step {stop}" in runs.said.lines
        assert not report.preempted
        assert runs.outcome(report) == whole, (stop, changes)
        runs.clear()


def test_any_step_on_the_cpu(runs: Runs) -> None:
    check_bits(runs, few([14], of=range(1, 15)))


@pytest.mark.parametrize(
    ("dtype", "momentum", "shuffle"),
    few(
        [("float32", 0.9, False), ("float64", 0.0, True)],
        of=list(itertools.product(["float32", "float64"], [0.0, 0.9], [True, False])),
    ),
)
def test_other_options_on_the_cpu(runs: Runs, dtype: str, momentum: float, shuffle: bool) -> None:
    check_bits(runs, [7], dtype=dtype, momentum=momentum, shuffle=shuffle)


def test_what_is_held_out_stays_so(runs: Runs) -> None:
    for val_split in few(["stratified"], of=["random", "stratified"]):
        check_bits(runs, [7], val_split=val_split, classes=4)


@pytest.mark.kernels
@pytest.mark.parametrize(
    ("placement", "graph"),
    few([("stream", True)], of=list(itertools.product(["resident", "stream"], [True, False]))),
)
def test_one_device(
    runs: Runs, driver: Driver, placement: str, graph: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks have two steps: the seventh is in the middle of one, and of an epoch."""
    monkeypatch.setattr(streamed, "CHUNK_BYTES", 2 * 10 * 12)
    check_bits(runs, few([7], of=[5, 7, 14]), device=driver.name, placement=placement, graph=graph)


@pytest.mark.parallel([3])
def test_ranks_on_the_cpu(runs: Runs) -> None:
    for exchange in few([], of=["root", "blocking", "host"]):
        check_bits(runs, [7], exchange=exchange)
    check_bits(runs, [7], plan="model", exchange="host", val_split="random")


@pytest.mark.kernels
@pytest.mark.parallel([2])
def test_ranks_on_a_device(runs: Runs, driver: Driver) -> None:
    names = ["host", "peer", *(["device"] if verdict(join(), driver).is_proven else [])]
    where = {"device": driver.name, "share_gpus": True}
    for exchange in few([], of=names):  # peer is below, host on the CPU above
        check_bits(runs, [7], exchange=exchange, **where)
    check_bits(runs, [6], plan="model", exchange="peer", placement="stream", **where)


@pytest.mark.long
@pytest.mark.kernels
@pytest.mark.parallel([4])
def test_nodes_and_groups_on_a_device(runs: Runs, driver: Driver) -> None:
    """Gradients of two nodes; two groups of two ranks that share the weights."""
    where = {"device": driver.name, "share_gpus": True}
    ways = [
        {"exchange": "hierarchical", "ranks_per_node": 2},
        {"plan": "model", "grid": "2x2", "exchange": "peer"},
    ]
    for way in few(ways[:1], of=ways):  # peer: test_ranks_on_a_device
        check_bits(runs, [7], **way, **where)


@pytest.mark.long
@pytest.mark.parallel([2])
def test_what_was_chosen_by_measurement_is_kept(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan, which is not searched for again on as many ranks; the exchange. Where they were not chosen
    they are not kept."""
    monkeypatch.setitem(EXTENTS, "cpu", QUICK)
    cache = runs.checkpoints.parent / "cache"  # other tests keep what they measure
    monkeypatch.setattr(probe, "cache_folder", lambda name: cache / name)
    asked = []
    choose = runtime_module.choose
    monkeypatch.setattr(
        runtime_module, "choose", lambda name, *arguments: (asked.append(name), choose(name, *arguments))[1]
    )
    first = runs.kept(stop=7, plan="auto")
    chosen = first.environment["plan"], first.environment["exchange"]

    def never(*setting: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(prepare_module, "fastest_plan", never)
    again = runs.resumed(stop=9, plan="auto")
    assert asked == ["auto", chosen[1]]
    assert again.environment["plan"].split("(")[0] == chosen[0].split("(")[0]
    was_data = chosen[0].startswith("data")
    named = runs.resumed(plan="model" if was_data else "data", exchange="blocking").environment
    assert named["plan"].startswith("data") != was_data and named["exchange"] == "blocking"
    runs.clear()
    runs.kept(stop=7, plan="data")
    with pytest.raises(AssertionError, match="measured again"):
        runs.resumed(plan="auto")


@pytest.mark.parallel([2])
def test_other_ranks_plans_and_devices_go_on_to_rounding(runs: Runs, shared: Path) -> None:
    """In float64: one rank, then two, which then share the weights, and then sum on rank 0."""
    job, changes = join(), {"dtype": "float64"}

    def weights() -> dict[str, np.ndarray]:
        with np.load(shared / "w.npz") as file:
            return {name: file[name] for name in file.files if name != "run"}

    runs(**changes)
    expected = weights()
    job.comm.barrier()
    if job.rank == 0:
        alone = train(
            dataclasses.replace(runs.options, checkpoint=runs.checkpoints, epochs=1, **changes), job.alone()
        )
        assert len(alone.epochs) == 1
    job.comm.barrier()
    runs.resumed(stop=7, **changes)
    assert "resumed at step 5" in runs.said.lines
    runs.resumed(stop=10, plan="model", exchange="host", **changes)
    report = runs.resumed(exchange="root", **changes)
    assert "resumed at step 10" in runs.said.lines
    assert [epoch.epoch for epoch in report.epochs] == [1, 2, 3]
    for name, array in weights().items():
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-13 * np.abs(expected[name]).max())


@pytest.mark.kernels
def test_a_device_goes_on_from_the_cpu(runs: Runs, driver: Driver) -> None:
    runs.kept(stop=7, dtype="float64")
    assert runs.resumed(dtype="float64", device=driver.name, check=True).passed


def test_a_finished_run_can_be_made_longer(runs: Runs) -> None:
    whole = runs.outcome(runs(epochs=5))
    runs.kept(epochs=2)
    assert runs.state["state"] == "finished"
    assert runs.outcome(runs.resumed(epochs=5)) == whole
    assert (runs.state["state"], runs.state["step"]) == ("finished", 25)


def test_a_finished_run_has_nothing_left_to_do(runs: Runs) -> None:
    first = runs.outcome(runs.kept())
    assert runs.outcome(runs.resumed()) == first
    assert "resumed at step 15" in runs.said.lines


def test_the_check_is_of_the_whole_training(runs: Runs) -> None:
    for dtype in few(["float64"], of=["float32", "float64"]):
        runs.kept(stop=7, dtype=dtype)
        assert runs.resumed(check=True, dtype=dtype).passed
        runs.clear()


def test_every_step_may_have_a_checkpoint_and_none_changes_anything(runs: Runs) -> None:
    whole = runs.outcome(runs())
    assert runs.outcome(runs.kept(checkpoint_every="1", keep=100)) == whole
    assert runs.steps == list(range(1, 16))
