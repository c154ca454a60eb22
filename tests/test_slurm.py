"""Scripts for Slurm: docs/slurm.sh puts a job back into the queue where its training was preempted, and only
there; docs/nsys.sh profiles each rank."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from nn.checkpoints.folder import FINISHED, PREEMPTED, Folder
from tests import mpi

SRUN = """#!/bin/sh
echo "$@" >srun
[ -n "$STATE" ] && cp "$STATE" checkpoints-42/state.json
exit "${CODE:-0}"
"""
"""Leaves what it was told to start; its training writes this state and ends with this code."""

SCONTROL = """#!/bin/sh
echo "$@" >scontrol
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the job was submitted, with commands of Slurm's names, and a state for each end of a training."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").write_text(f'PATH="{commands}:$PATH"\n')
    (tmp_path / "checkpoints-42").mkdir()
    for state in (PREEMPTED, FINISHED):
        written = Folder(tmp_path / state, 1)
        written.prepare()
        written.end(state)
        written.close()
    return tmp_path


def submit(folder: Path, *arguments: str, script: str = "slurm.sh", **variables: str) -> int:
    """The exit code of the job."""
    slurm = {"SLURM_SUBMIT_DIR": str(folder), "SLURM_JOB_ID": "42"}
    return subprocess.run(
        ["bash", mpi.ROOT / "docs" / script, *arguments],
        env=mpi.environment({**slurm, **variables}),
        timeout=mpi.TIMEOUT,
    ).returncode


def test_a_preempted_training_goes_back_into_the_queue(folder: Path) -> None:
    assert submit(folder, "--epochs", "9", STATE=str(folder / PREEMPTED / "state.json")) == 0
    assert (folder / "scontrol").read_text() == "requeue 42\n"
    started = (folder / "srun").read_text()
    assert started.endswith("--epochs 9 --checkpoint checkpoints-42 --resume\n") and " train.py " in started


def test_a_finished_one_does_not(folder: Path) -> None:
    assert submit(folder, STATE=str(folder / FINISHED / "state.json")) == 0
    assert not (folder / "scontrol").exists()


def test_nor_does_one_that_cannot_say_so(folder: Path) -> None:
    """What is there was said the time before."""
    shutil.copy(folder / PREEMPTED / "state.json", folder / "checkpoints-42")
    assert submit(folder, STATE="") == 0
    assert not (folder / "scontrol").exists()


def test_nor_does_one_that_fails_after_it_was_preempted_before(folder: Path) -> None:
    assert submit(folder, STATE=str(folder / PREEMPTED / "state.json"), CODE="2") == 2
    assert not (folder / "scontrol").exists()


NSYS = """#!/bin/sh
echo "$@" >>nsys
for word in "$@"; do
    case $word in
        --output=*) touch "$(echo "${word#--output=}" | sed "s/%q{SLURM_PROCID}/0/").nsys-rep" ;;
    esac
done
"""
"""Leaves what it was told, and the report that it would write."""


def test_a_profile_has_a_report_for_each_rank_and_its_tables(folder: Path) -> None:
    """The training runs twice: the first time without nsys, to compile its kernels."""
    (folder / "bin" / "srun").write_text(
        '#!/bin/sh\necho "$@" >>srun\nshift\n[ "$1" = nsys ] || exit 0\n"$@"\n'
    )
    (folder / "bin" / "nsys").write_text(NSYS)
    (folder / "bin" / "nsys").chmod(0o755)
    assert submit(folder, "--exchange", "host", script="nsys.sh", MPI_IMPL="mpich", SRUN_MPI="pmi2") == 0
    plain, profiled = (folder / "srun").read_text().splitlines()
    assert plain.startswith("--mpi=pmi2 ") and " train.py " in plain
    assert plain.endswith("--exchange host --quiet")
    assert profiled.startswith("--mpi=pmi2 nsys profile ") and profiled.endswith("--exchange host --profile")
    profile, stats = (folder / "nsys").read_text().splitlines()
    assert "--mpi-impl=mpich" in profile and "--output=profile-42/rank-%q{SLURM_PROCID}" in profile
    assert stats.startswith("stats ") and stats.endswith("profile-42/rank-0.nsys-rep")


@pytest.mark.skipif(shutil.which("nsys") is not None, reason="nsys is on PATH")
def test_a_profile_without_nsys_says_what_is_missing(folder: Path) -> None:
    assert submit(folder, script="nsys.sh") == 2
    assert not (folder / "srun").exists()
