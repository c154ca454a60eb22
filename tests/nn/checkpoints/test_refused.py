"""Folders and checkpoints that a run cannot go on from: one line on all ranks, and nothing overwritten."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from nn.app.load import problem_of
from nn.checkpoints import files
from nn.checkpoints.folder import Folder
from nn.files import parameters
from nn.input import load as load_data
from nn.model.initial import initial_values
from nn.model.network import Network
from pyrt.errors import UserError
from pyrt.job import join
from tests import few
from tests.nn.checkpoints.runs import SMALL, Runs


def test_no_checkpoint_yet_is_step_0(runs: Runs) -> None:
    whole = runs.outcome(runs())
    assert runs.outcome(runs.resumed()) == whole
    assert "resumed at step 0" in runs.said.lines


def test_checkpoints_of_another_run_are_not_overwritten(runs: Runs) -> None:
    runs.kept()
    before = runs.state
    with pytest.raises(UserError, match=r"--checkpoint .*: has checkpoints: go on .* --resume"):
        runs.kept(epochs=9)
    assert runs.steps == [5, 10, 15] and runs.state == before


@pytest.mark.parallel(few([2], of=[1, 2]))
def test_a_folder_that_another_run_writes_into_is_refused(runs: Runs) -> None:
    """On all ranks, also where it shall only warn; its files stay as they are, and can be looked at. However
    a run has ended, the next one may have the folder."""
    job = join()
    runs.kept(stop=7)
    other = Folder(runs.checkpoints, 3)
    if job.rank == 0:
        other.prepare()
    before = {path.name: path.read_bytes() for path in runs.checkpoints.iterdir()}
    for go_on in (runs.kept, runs.resumed):
        for errors in ("stop", "warn"):
            with pytest.raises(UserError, match=r"^--checkpoint .*/c: another run is writing there: "):
                go_on(checkpoint_errors=errors)
    assert runs.resumed(memory=True).memory is not None
    assert {path.name: path.read_bytes() for path in runs.checkpoints.iterdir()} == before
    job.comm.barrier()
    other.close()
    for mistake in ({}, {"resume": True, "lr": 0.25}):
        with pytest.raises(UserError):
            runs.kept(**mistake)
    assert len(runs.resumed().epochs) == 3


@pytest.mark.parallel(few([2], of=[1, 2]))
@pytest.mark.parametrize("name", ["state.json", "lock", "step-000000000005.npz"])
def test_no_other_file_of_a_run_takes_the_place_of_one_there(runs: Runs, name: str) -> None:
    runs.kept(stop=7)
    before = {path.name: path.read_bytes() for path in runs.checkpoints.iterdir()}
    with pytest.raises(UserError, match=rf"--json .*{name}: belongs to --checkpoint: name another place"):
        runs.resumed(json=runs.checkpoints / name)
    assert {path.name: path.read_bytes() for path in runs.checkpoints.iterdir()} == before


@pytest.mark.parallel(few([2], of=[1, 2]))
def test_others_may_lie_beside_them_in_a_folder_that_the_run_makes(runs: Runs) -> None:
    assert len(runs.kept(json=runs.checkpoints / "report.json").epochs) == SMALL.epochs


def test_memory_changes_nothing_where_there_is_no_folder_yet(runs: Runs) -> None:
    assert runs.kept(memory=True).memory is not None
    assert not runs.checkpoints.exists()


@pytest.mark.parallel(few([2], of=[1, 2]))
def test_a_mistake_is_one_line_on_all_ranks(runs: Runs, shared: Path) -> None:
    """And nothing in the folder changes."""
    runs.kept(stop=7)
    for changes, words in (
        ({"lr": 0.25}, "with --lr 0.5, this run is with --lr 0.25"),
        ({"dtype": "float64"}, "--dtype float32"),
        ({"data": "embedded"}, "other training or validation data"),
        ({"data": other_validation(shared)}, "other training or validation data"),
        ({"epochs": 1}, "is of step 7, and --epochs 1 end at 5"),
    ):
        with pytest.raises(UserError) as caught:
            runs.resumed(**changes)
        assert words in str(caught.value) and "\n" not in str(caught.value)
        assert (runs.state["state"], runs.state["step"]) == ("preempted", 7)
    checkpoint = files.load(runs.file(7))
    for name in ("W1", "v"):
        arrays = {**checkpoint.parameters, name: np.zeros((9, 11), np.float32)}
        join().comm.barrier()
        if join().rank == 0:
            files.save(runs.file(7), dataclasses.replace(checkpoint, parameters=arrays))
        join().comm.barrier()
        with pytest.raises(UserError, match="parameters are not those of 12-9-7-3"):
            runs.resumed()


def other_validation(shared: Path) -> str:
    """The digits but for the last one, which validates."""
    if join().rank == 0:
        with np.load(shared / "digits.npz") as file:
            arrays = dict(file)
        arrays["x_train"][-1] ^= 1
        np.savez(shared / "other.npz", **arrays)
    join().comm.barrier()
    return str(shared / "other.npz")


@pytest.mark.parallel(few([2], of=[1, 2]))
def test_a_check_begins_where_the_training_did(runs: Runs, shared: Path) -> None:
    """Not at another --init, which matters to nothing else."""
    network = Network.dense((12, 9, 7, 3), "sigmoid", "softmax")
    one, other = shared / "one.npz", shared / "two.npz"
    if join().rank == 0:
        for seed, path in enumerate((one, other)):
            parameters.save(path, initial_values(network, "float32", seed), {})
    join().comm.barrier()
    runs.kept(stop=3, init=one)
    runs.resumed(stop=7)
    for init in few([other], of=[None, other]):
        with pytest.raises(UserError, match="--resume: the training did not begin at the parameters"):
            runs.resumed(init=init, check=True)
    assert runs.resumed(stop=9, init=other).preempted
    assert runs.resumed(init=one, check=True).passed
    runs.clear()
    runs.kept(stop=7)
    with pytest.raises(UserError, match="give the same --init, or none if there was none"):
        runs.resumed(init=one, check=True)
    assert runs.resumed(check=True).passed


@pytest.mark.parametrize("damage", few(["cut short"], of=["cut short", "of another network's code"]))
def test_the_one_before_a_damaged_one_is_taken(runs: Runs, damage: str) -> None:
    whole = runs.outcome(runs())
    runs.kept(epochs=2, keep=100, checkpoint_every="3")
    assert runs.steps == [3, 6, 9, 10]
    for step in (9, 10):
        content = runs.file(step).read_bytes()
        runs.file(step).write_bytes(content[: len(content) // 2] if damage == "cut short" else b"")
    assert runs.outcome(runs.resumed(keep=1)) == whole
    assert [line for line in runs.said.lines if line.startswith(("warning", "resumed"))] == [
        *(line for line in runs.said.lines if line.startswith("warning")),
        "resumed at step 6",
    ]
    assert sum(line.startswith(f"warning: {runs.checkpoints}/step-") for line in runs.said.lines) == 2
    assert runs.state["checkpoint"] == "step-000000000015.npz"


def test_a_plan_that_is_none_is_a_mistake(runs: Runs) -> None:
    from nn.checkpoints.resume_point import ResumePoint

    runs.kept(stop=7)
    checkpoint = files.load(runs.file(7))
    for plan in ({}, {"grid": [1, 1], "layers": ["samples"]}, {"grid": [1, 2], "layers": ["rows"] * 3}):
        metadata = dataclasses.replace(checkpoint.metadata, plan=plan)
        resume_point = ResumePoint(join(), None, dataclasses.replace(checkpoint, metadata=metadata))
        with pytest.MonkeyPatch.context() as patch, pytest.raises(UserError, match="plan"):
            patch.setattr(ResumePoint, "_chose_here", lambda *_: True)
            resume_point.plan(problem_of(runs.options, load_data(runs.options.data)).network, None)
