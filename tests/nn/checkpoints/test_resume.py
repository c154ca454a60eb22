"""Runs that go on from a checkpoint: the bits of one that never stopped; what is said where they cannot."""

from __future__ import annotations

import dataclasses
import errno
import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nn.app.console import Console
from nn.app.load import problem_of
from nn.app.options import Options
from nn.app.report import Report
from nn.checkpoints import files
from nn.checkpoints.folder import Folder
from nn.checkpoints.stopping import Stopping
from nn.files import parameters
from nn.input import load as load_data
from nn.input import streamed
from nn.model.initial import initial_values
from nn.model.network import Network
from nn.parallel import buckets
from nn.train import prepare as prepare_module
from nn.train.trainer import Trainer
from nn.train.training import Diverged, Training
from pyrt import runtime as runtime_module
from pyrt.driver import Driver
from pyrt.errors import UserError
from pyrt.exchange.device import verdict
from pyrt.job import Job, join
from pyrt.phases import Phases
from train import train

SMALL = Options(
    hidden=(9, 7), epochs=3, batch=10, samples=45, lr=0.5, reg=0.01, momentum=0.5, val_fraction=0.2, seed=3
)
"""15 steps, of which each fifth is short."""


class Said(Console):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__(speaking=False)
        self.lines: list[str] = []

    def tell(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture
def digits(shared: Path) -> str:
    """50 random images of 3 x 4 pixels in three classes, and 7 to test."""
    rng = np.random.default_rng(0)
    if join().rank == 0:
        sets = {"train": 50, "test": 7}
        images = {f"x_{name}": rng.integers(0, 256, (n, 3, 4)).astype(np.uint8) for name, n in sets.items()}
        labels = {f"y_{name}": np.arange(n) % 3 for name, n in sets.items()}
        np.savez(shared / "digits.npz", **images, **labels)
    join().comm.barrier()
    return str(shared / "digits.npz")


class Runs:
    """Runs with the same checkpoint folder, in this process."""

    def __init__(self, folder: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.checkpoints, self._weights = folder / "c", folder / "w.npz"
        self._monkeypatch = monkeypatch
        self.options = dataclasses.replace(SMALL, data=source, device="cpu")
        self.said = Said()

    def __call__(self, job: Job | None = None, stop: int | None = None, **changes: Any) -> Report:
        """A run without checkpoints, unless the changes say so; asked to ``stop`` after a step."""
        job, self.said = job or join(), Said()
        with self._monkeypatch.context() as patch:
            if stop is not None:
                patch.setattr(Stopping, "is_agreed", lambda stopping, step, done: step >= stop)
            try:
                return train(
                    dataclasses.replace(self.options, save=self._weights, **changes), job, None, self.said
                )
            finally:
                job.comm.barrier()

    def kept(self, **changes: Any) -> Report:
        """A run that keeps checkpoints."""
        return self(checkpoint=self.checkpoints, **changes)

    def resumed(self, **changes: Any) -> Report:
        return self.kept(resume=True, **changes)

    @property
    def steps(self) -> list[int]:
        return sorted(int(path.stem.removeprefix("step-")) for path in self.checkpoints.glob("step-*.npz"))

    @property
    def state(self) -> dict[str, Any]:
        return json.loads((self.checkpoints / "state.json").read_text())

    def file(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:012d}.npz"

    def outcome(self, report: Report) -> tuple[dict[str, bytes], list[tuple[object, ...]], object]:
        """All that a run can be told by, bit by bit."""
        with np.load(self._weights) as file:
            weights = {name: file[name].tobytes() for name in file.files if name != "run"}
        epochs = [(e.epoch, e.loss, e.validation_loss, e.validation_precision) for e in report.epochs]
        join().comm.barrier()
        return weights, epochs, report.test

    def clear(self) -> None:
        if join().rank == 0:
            shutil.rmtree(self.checkpoints, ignore_errors=True)
        join().comm.barrier()


@pytest.fixture
def runs(shared: Path, digits: str, monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.setattr(buckets, "PANEL_BYTES", 200)  # two panels of the first layer
    return Runs(shared, digits, monkeypatch)


# the same bits


def check_bits(runs: Runs, stops: list[int], **changes: Any) -> None:
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
    check_bits(runs, list(range(1, 15)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("shuffle", [True, False])
def test_other_options_on_the_cpu(runs: Runs, dtype: str, momentum: float, shuffle: bool) -> None:
    check_bits(runs, [7], dtype=dtype, momentum=momentum, shuffle=shuffle)


def test_what_is_held_out_stays_so(runs: Runs) -> None:
    for val_split in ("random", "stratified"):
        check_bits(runs, [7], val_split=val_split, classes=4)


@pytest.mark.kernels
@pytest.mark.parametrize("placement", ["resident", "stream"])
@pytest.mark.parametrize("graph", [True, False])
def test_one_device(
    runs: Runs, driver: Driver, placement: str, graph: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks have two steps: the seventh is in the middle of one, and of an epoch."""
    monkeypatch.setattr(streamed, "CHUNK_BYTES", 2 * 10 * 12)
    check_bits(runs, [5, 7, 14], device=driver.name, placement=placement, graph=graph)


@pytest.mark.parallel([3])
def test_ranks_on_the_cpu(runs: Runs) -> None:
    for exchange in ("root", "blocking", "host"):
        check_bits(runs, [7], exchange=exchange)
    check_bits(runs, [7], plan="model", exchange="host", val_split="random")


@pytest.mark.kernels
@pytest.mark.parallel([2])
def test_ranks_on_a_device(runs: Runs, driver: Driver) -> None:
    names = ["host", "peer", *(["device"] if verdict(join(), driver).is_proven else [])]
    where = {"device": driver.name, "share_gpus": True}
    for exchange in names:
        check_bits(runs, [7], exchange=exchange, **where)
    check_bits(runs, [6], plan="model", exchange="peer", placement="stream", **where)


@pytest.mark.kernels
@pytest.mark.parallel([4])
def test_nodes_and_groups_on_a_device(runs: Runs, driver: Driver) -> None:
    """Gradients of two nodes; two groups of two ranks that share the weights."""
    where = {"device": driver.name, "share_gpus": True}
    check_bits(runs, [7], exchange="hierarchical", ranks_per_node=2, **where)
    check_bits(runs, [7], plan="model", grid="2x2", exchange="peer", **where)


@pytest.mark.parallel([2])
def test_what_was_chosen_by_measurement_is_kept(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan, which is not searched for again on as many ranks; the exchange. Where they were not chosen
    they are not kept."""
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
    runs.kept(stop=7)
    assert runs.resumed(check=True).passed
    runs.clear()
    runs.kept(stop=7, dtype="float64")
    assert runs.resumed(check=True, dtype="float64").passed


def test_every_step_may_have_a_checkpoint_and_none_changes_anything(runs: Runs) -> None:
    whole = runs.outcome(runs())
    assert runs.outcome(runs.kept(checkpoint_every="1", keep=100)) == whole
    assert runs.steps == list(range(1, 16))


# what is kept


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


@pytest.mark.parallel([1, 2])
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


# where it cannot go on


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


@pytest.mark.parallel([1, 2])
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


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("name", ["state.json", "lock", "step-000000000005.npz"])
def test_no_other_file_of_a_run_takes_the_place_of_one_there(runs: Runs, name: str) -> None:
    runs.kept(stop=7)
    before = {path.name: path.read_bytes() for path in runs.checkpoints.iterdir()}
    with pytest.raises(UserError, match=rf"--json .*{name}: belongs to --checkpoint: name another place"):
        runs.resumed(json=runs.checkpoints / name)
    assert {path.name: path.read_bytes() for path in runs.checkpoints.iterdir()} == before


@pytest.mark.parallel([1, 2])
def test_others_may_lie_beside_them_in_a_folder_that_the_run_makes(runs: Runs) -> None:
    assert len(runs.kept(json=runs.checkpoints / "report.json").epochs) == SMALL.epochs


def test_memory_changes_nothing_where_there_is_no_folder_yet(runs: Runs) -> None:
    assert runs.kept(memory=True).memory is not None
    assert not runs.checkpoints.exists()


@pytest.mark.parallel([1, 2])
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


@pytest.mark.parallel([1, 2])
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
    for init in (None, other):
        with pytest.raises(UserError, match="--resume: the training did not begin at the parameters"):
            runs.resumed(init=init, check=True)
    assert runs.resumed(stop=9, init=other).preempted
    assert runs.resumed(init=one, check=True).passed
    runs.clear()
    runs.kept(stop=7)
    with pytest.raises(UserError, match="give the same --init, or none if there was none"):
        runs.resumed(init=one, check=True)
    assert runs.resumed(check=True).passed


@pytest.mark.parametrize("damage", ["cut short", "of another network's code"])
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


# what goes wrong meanwhile


def fails(monkeypatch: pytest.MonkeyPatch, *calls: int) -> None:
    """The disk is full in the middle of these checkpoints, counted from 0."""
    save, count = files.write_arrays, iter(range(10**6))

    def write_arrays(file: Any, members: Any) -> None:
        if next(count) in calls:
            file.write(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        save(file, members)

    monkeypatch.setattr(files, "write_arrays", write_arrays)


@pytest.mark.parallel([1, 2])
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


@pytest.mark.parallel([1, 2])
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


@pytest.mark.parametrize("place", ["/proc/c", "/proc/sys", "digits.npz"])
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
