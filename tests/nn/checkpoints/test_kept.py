"""Which checkpoints are kept, what they tell, and what goes wrong while they are written."""

from __future__ import annotations

import dataclasses
import errno
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nn.checkpoints import files
from nn.input import load as load_data
from nn.train.diverged import Diverged
from nn.train.trainer import Trainer
from nn.train.training import Training
from pyrt.errors import UserError
from pyrt.job import Job, join
from pyrt.phases import Phases
from tests import few
from tests.nn.checkpoints.runs import Runs
from train import train


@pytest.mark.parametrize(
    ("every", "steps"),
    [("1ep", [5, 10, 15]), ("2ep", [10, 15]), ("4", [4, 8, 12, 15]), ("100", [15]), ("9ep", [15])],
)
def test_they_are_made_as_often_as_asked_and_at_the_end(runs: Runs, every: str, steps: list[int]) -> None:
    runs.kept(checkpoint_every=every, keep=100)
    assert runs.steps == steps


def test_the_best_by_validation_is_kept(runs: Runs) -> None:
    """Its precision is that of its own parameters, in the middle of an epoch too."""
    runs.kept(checkpoint_every="2", keep=100)
    found = {step: files.load(runs.file(step)) for step in runs.steps}
    precisions = {step: checkpoint.metadata.validation_precision for step, checkpoint in found.items()}
    best = max(precisions, key=lambda step: (precisions[step], -step))
    assert (runs.state["best"], runs.state["best_validation_precision"]) == (
        runs.file(best).name,
        precisions[best],
    )
    images = load_data(runs.options.data)
    held_out = images.images[40:] / 255
    for step, checkpoint in found.items():
        hidden = held_out
        for layer in (1, 2, 3):
            hidden = hidden @ checkpoint.parameters[f"W{layer}"].T + checkpoint.parameters[f"b{layer}"]
            hidden = 1 / (1 + np.exp(-hidden)) if layer < 3 else hidden
        assert precisions[step] == pytest.approx((hidden.argmax(axis=1) == images.labels[40:]).mean()), step
    runs.clear()
    runs.kept(checkpoint_every="2", keep=1)
    assert runs.steps == sorted({best, 15})


def test_a_checkpoint_can_be_evaluated(runs: Runs) -> None:
    trained = runs.kept()
    options = dataclasses.replace(runs.options, evaluate=True, init=runs.file(15))
    assert train(options).test == trained.test


def test_the_report_has_all_epochs(runs: Runs, tmp_path: Path) -> None:
    """And that it was stopped."""
    report = tmp_path / "report.json"
    runs.kept(stop=12).write_json(report)
    stopped = json.loads(report.read_text())
    assert stopped["preempted"] and [epoch["epoch"] for epoch in stopped["epochs"]] == [1, 2]
    assert runs.said.lines[-1] == "preempted at step 12 of 15: the same command with --resume goes on"
    runs.resumed().write_json(report)
    assert [epoch["epoch"] for epoch in json.loads(report.read_text())["epochs"]] == [1, 2, 3]


def test_a_checkpoint_tells_how_it_came_about(runs: Runs) -> None:
    runs.kept(stop=7)
    metadata = files.load_metadata(runs.file(7))
    assert {"ranks", "devices", "mpi", "exchange", "plan", "python", "numpy", "mpi4py", "revision"} <= set(
        metadata.environment
    )
    assert metadata.options["lr"] == 0.5 and metadata.plan == {"grid": [1, 1], "layers": ["samples"] * 3}


@pytest.mark.parallel(few([2], of=[1, 2]))
def test_snapshots_and_the_wait_for_the_disk_are_phases_of_their_own(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    phases = Phases(time.perf_counter())
    seen: dict[str, list[str]] = {"snapshot": [], "wait": []}

    def noted(what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*arguments: Any) -> Any:
            seen[what].append(phases._current.name)
            return call(*arguments)

        return noting

    for owner, name in ((Trainer, "parameters"), (Training, "whole_state")):
        monkeypatch.setattr(owner, name, noted("snapshot", getattr(owner, name)))
    monkeypatch.setattr(Job, "wait_for_all", noted("wait", Job.wait_for_all))
    train(dataclasses.replace(runs.options, checkpoint=runs.checkpoints), phases=phases)
    assert seen["snapshot"] == 6 * ["checkpoint snapshot"]
    assert seen["wait"].count("wait for checkpoint") == 4  # before each of three, and at the end
    calls = {phase.name: phase.calls for phase in phases.times()}
    assert calls["checkpoint snapshot"] == 3 and calls["wait for checkpoint"] == 4


def fails(monkeypatch: pytest.MonkeyPatch, *calls: int) -> None:
    """The disk is full in the middle of these checkpoints, counted from 0."""
    save, count = files.write_arrays, iter(range(10**6))

    def write_arrays(file: Any, members: Any) -> None:
        if next(count) in calls:
            file.write(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        save(file, members)

    monkeypatch.setattr(files, "write_arrays", write_arrays)


@pytest.mark.parallel(few([2], of=[1, 2]))
def test_a_full_disk_stops_the_run(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """On all ranks, and what was there before stays."""
    before = set(threading.enumerate())
    fails(monkeypatch, *([1] if join().rank == 0 else []))
    with pytest.raises(UserError, match=r"step-000000000010\.npz: cannot be written \(No space .*warn goes"):
        runs.kept()
    assert runs.steps == [5]
    assert (runs.state["state"], runs.state["checkpoint"]) == ("running", "step-000000000005.npz")
    assert "helper" not in [thread.name for thread in set(threading.enumerate()) - before]
    runs.resumed()
    assert "resumed at step 5" in runs.said.lines


@pytest.mark.parallel(few([2], of=[1, 2]))
def test_or_it_goes_on_with_a_warning_and_tries_again(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = runs.outcome(runs())
    fails(monkeypatch, 1)
    assert runs.outcome(runs.kept(checkpoint_errors="warn")) == whole
    (warning,) = (line for line in runs.said.lines if line.startswith("warning"))
    assert "step-000000000010.npz" in warning and "No space left" in warning
    assert runs.steps == [5, 15] and runs.state["state"] == "finished"


def test_a_last_checkpoint_that_failed_is_not_promised(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    fails(monkeypatch, 1)
    report = runs.kept(stop=8, checkpoint_errors="warn")
    assert report.preempted
    assert runs.said.lines[-1].endswith("step 8 of 15: the same command with --resume goes on from step 5")
    assert (runs.state["state"], runs.state["step"]) == ("preempted", 5)


@pytest.mark.parametrize("place", few(["/proc/c", "digits.npz"], of=["/proc/c", "/proc/sys", "digits.npz"]))
def test_a_folder_that_cannot_be_written(runs: Runs, shared: Path, place: str) -> None:
    """It is found before the training, which goes on all the same where that is wanted."""
    with pytest.raises(UserError, match=f"--checkpoint .*{place}"):
        runs(checkpoint=shared / place)
    assert not any(line.startswith("epoch") for line in runs.said.lines)
    for resume in (False, True):
        report = runs(checkpoint=shared / place, checkpoint_errors="warn", resume=resume)
        assert len(report.epochs) == 3 and not report.preempted
        assert sum(line.startswith("warning: --checkpoint") for line in runs.said.lines) >= 4


def test_it_is_finished_once_all_is_done(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before the parameters are saved: who is killed then has still to do it."""

    def refuse(*_: object) -> None:
        raise UserError("no")

    for go_on in (runs.kept, runs.resumed):
        with monkeypatch.context() as patch:
            patch.setattr("nn.app.pipeline.parameters.save", refuse)
            with pytest.raises(UserError, match="no"):
                go_on()
        assert (runs.state["state"], runs.state["step"]) == ("running", 15)
        runs.resumed()
        assert runs.state["state"] == "finished"


@pytest.mark.parametrize("epochs", [1, 50])
def test_a_run_that_diverges_leaves_no_useless_checkpoint(runs: Runs, epochs: int) -> None:
    """Neither in the middle nor of the last step, whose loss was still that of the parameters before."""
    with pytest.raises(Diverged):
        runs.kept(lr=1e300, batch=45, epochs=epochs, checkpoint_every="1", activation="relu", keep=100)
    for step in runs.steps:
        assert all(np.isfinite(array).all() for array in files.load(runs.file(step)).parameters.values())
    assert runs.state["state"] == "running"


def test_good_ones_stay_where_later_steps_diverge(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.kept(epochs=1, activation="relu")
    load = files.load

    def too_large(path: Path) -> Any:
        found = load(path)
        v = {name: np.copysign(np.float32(3e38), array) for name, array in found.states["v"].items()}
        return dataclasses.replace(found, states={"v": v})

    monkeypatch.setattr(files, "load", too_large)
    before = runs.file(5).read_bytes()
    with pytest.raises(Diverged):
        runs.resumed(checkpoint_every="1", keep=1, activation="relu")
    assert runs.file(5).read_bytes() == before
