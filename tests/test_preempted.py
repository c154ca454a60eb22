"""Jobs that are asked to stop: a checkpoint, exit code 0, a run that goes on as if it had never stopped."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import few, mpi
from tests.test_killed import Training

RANKS = 2

ARGUMENTS = ["--device", "cpu", "--hidden", "8", "--batch", "50", "--samples", "220", "--momentum", "0.5"]
ENDLESS = [*ARGUMENTS, "--epochs", "1000000", "--print-every", "3"]
"""Five steps an epoch."""

EVERYBODY = -1
"""mpirun gets the signal, and passes it on."""

Start = Callable[..., Training]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of the checkpoints; it is not there yet."""
    return tmp_path / "checkpoints"


@pytest.fixture
def start(tmp_path: Path, folder: Path) -> Iterator[Start]:
    """Starts an endless training with more arguments, which keeps checkpoints."""
    started: list[Training] = []

    def start(*arguments: str) -> Training:
        where = ["--checkpoint", str(folder), "--checkpoint-every", "1000ep"]
        started.append(Training(tmp_path, RANKS, *ENDLESS, *where, *arguments))
        return started[-1]

    yield start
    for training in started:
        training.clean_up()


def state(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "state.json").read_text())


def train(*arguments: str) -> str:
    """What a whole training of as many ranks prints."""
    done = mpi.mpirun(RANKS, sys.executable, "train.py", *ARGUMENTS, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def weights(path: Path) -> dict[str, bytes]:
    with np.load(path) as file:
        return {name: file[name].tobytes() for name in file.files if name != "run"}


SIGNALS = [(signal.SIGUSR1, EVERYBODY), (signal.SIGTERM, 1), (signal.SIGUSR1, 0), (signal.SIGINT, 0)]
"""And the rank that gets it."""


@pytest.mark.parametrize(("number", "rank"), few(SIGNALS[:1], of=SIGNALS))
def test_a_signal_leaves_a_checkpoint_and_no_error(
    start: Start, folder: Path, tmp_path: Path, number: int, rank: int
) -> None:
    training = start()
    os.kill(training.job.pid if rank == EVERYBODY else training.pids[rank], number)
    done = training.end(mpi.TIMEOUT)
    assert done.returncode == 0, done.stderr
    found = state(folder)
    step = found["step"]
    assert found["state"] == "preempted" and step > 0
    assert (folder / found["checkpoint"]).name == f"step-{step:012d}.npz"
    assert f"preempted at step {step} of 5000000: the same command with --resume goes on" in done.stdout
    assert "test precision" not in done.stdout and "Traceback" not in done.stderr
    if rank == EVERYBODY:
        goes_on_with_the_same_bits(folder, tmp_path, step)


@pytest.mark.long
def test_a_second_run_in_the_folder_is_refused_and_one_behind_a_killed_one_is_not(
    start: Start, folder: Path
) -> None:
    first = start()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    second = mpi.mpirun(2, sys.executable, "train.py", *ARGUMENTS, "--resume", "--checkpoint", str(folder))
    assert second.returncode == 2
    (line,) = (line for line in second.stderr.splitlines() if line.startswith("train.py: "))
    assert line.startswith(f"train.py: error: --checkpoint {folder}: another run is writing there: ")
    assert "Traceback" not in second.stderr and "epoch" not in second.stdout
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    for pid in first.pids:
        os.kill(pid, signal.SIGKILL)
    first.end(mpi.TIMEOUT)
    train("--resume", "--checkpoint", str(folder), "--epochs", "2")
    assert state(folder)["state"] == "finished"


def goes_on_with_the_same_bits(folder: Path, tmp_path: Path, step: int) -> None:
    """To the end of the next epoch but one, as a run that was never stopped."""
    epochs = ["--epochs", str(step // 5 + 2)]
    printed = train("--resume", "--checkpoint", str(folder), *epochs, "--save", str(tmp_path / "resumed.npz"))
    assert f"\nresumed at step {step}\n" in printed
    assert (state(folder)["state"], state(folder)["step"]) == ("finished", (step // 5 + 2) * 5)
    train(*epochs, "--save", str(tmp_path / "whole.npz"))
    assert weights(tmp_path / "resumed.npz") == weights(tmp_path / "whole.npz")
