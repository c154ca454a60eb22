"""docs/slurm.sh in a real Slurm: preempted by a job or by its time limit, it is requeued, and goes on."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests import mpi, standing_still
from tests.cluster.cluster import Cluster, is_open_mpi
from tests.cluster.slurm import URGENT, Slurm, obstacle

pytestmark = pytest.mark.long

PATIENCE = 200.0
"""Seconds until a job is in the state that a test waits for."""

SMALL = [
    *("--device", "cpu", "--hidden", "8", "--batch", "50", "--samples", "220", "--val-fraction", "0"),
    *("--momentum", "0.5", "--epochs"),
]

NEEDS = ["--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=1", "--cpus-per-task=1"]


@pytest.fixture
def slurm(nodes: Cluster, tmp_path: Path) -> Slurm:
    """Slurm on two nodes."""
    if obstacle():
        pytest.skip(obstacle())
    return Slurm(nodes, tmp_path)


@pytest.fixture
def folder(slurm: Slurm, tmp_path: Path) -> Path:
    """Make the folder from which the job is submitted: docs/slurm.sh for the tests' MPI, and its files."""
    text = (mpi.ROOT / "docs" / "slurm.sh").read_text()
    assert "--mpi=pmix" in text
    speaks = "pmix" if is_open_mpi() else "pmi2"
    if speaks not in slurm("sh", "-c", "srun --mpi=list 2>&1").split():
        pytest.skip(f"needs a Slurm that speaks {speaks} (Debian: libpmix-dev)")
    (tmp_path / "slurm.sh").write_text(text.replace("--mpi=pmix", f"--mpi={speaks}"))
    (tmp_path / "train.py").symlink_to(mpi.ROOT / "train.py")
    activate = tmp_path / ".venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.write_text(f'PATH="{Path(sys.executable).parent}:$PATH"\n')
    return tmp_path


def submit(slurm: Slurm, folder: Path, options: list[str], *arguments: str) -> str:
    """Submit docs/slurm.sh; return the job's number."""
    command = ["sbatch", "--parsable", *NEEDS, *options, "slurm.sh", *SMALL, *arguments]
    return slurm("env", "-C", str(folder), *command).strip()


def state_of(slurm: Slurm, job: str) -> str:
    """Return PENDING, RUNNING, COMPLETING or, once it has left the queue, nothing."""
    return slurm("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").strip()


def wait_until(slurm: Slurm, job: str, states: set[str]) -> None:
    standing_still.allow(PATIENCE + standing_still.LIMIT)
    until = time.monotonic() + PATIENCE
    while (state := state_of(slurm, job)) not in states:
        assert time.monotonic() < until, f"the job is {state}, not {states}"
        time.sleep(0.2)


def wait_for_a_checkpoint(slurm: Slurm, job: str, folder: Path) -> None:
    wait_until(slurm, job, {"RUNNING"})
    until = time.monotonic() + PATIENCE
    while not [*folder.glob(f"checkpoints-{job}/step-*.npz")]:
        assert state_of(slurm, job) == "RUNNING" and time.monotonic() < until
        time.sleep(0.2)


def state(folder: Path, job: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / f"checkpoints-{job}" / "state.json").read_text())
    return found


def output(folder: Path, job: str) -> str:
    return (folder / f"slurm-{job}.out").read_text()


def test_a_preempted_job_is_requeued_and_ends_with_the_bits_of_one_that_was_not(
    nodes: Cluster, slurm: Slurm, folder: Path
) -> None:
    job = submit(slurm, folder, [], "400", "--checkpoint-every", "50ep", "--save", "resumed.npz")
    wait_for_a_checkpoint(slurm, job, folder)
    urgent = slurm(
        "sbatch", "--parsable", "-p", URGENT, "--nodes=2", "--exclusive", "--wrap", "sleep 3"
    ).strip()
    wait_until(slurm, job, {"PENDING"})
    found = state(folder, job)
    assert found["state"] == "preempted" and found["step"] % 250 != 0  # not of a step that was due
    wait_until(slurm, urgent, {"COMPLETED"})
    wait_until(slurm, job, {"COMPLETED"})
    assert f"\nresumed at step {found['step']}\n" in output(folder, job)
    assert state(folder, job)["state"] == "finished"
    whole = [*SMALL, "400", "--save", str(folder / "whole.npz")]
    assert nodes.run(1, sys.executable, "train.py", *whole).returncode == 0
    with np.load(folder / "resumed.npz") as resumed, np.load(folder / "whole.npz") as expected:
        for name in set(expected.files) - {"run"}:
            assert resumed[name].tobytes() == expected[name].tobytes(), name


def test_a_job_at_its_time_limit_is_requeued(slurm: Slurm, folder: Path) -> None:
    """Slurm's signal may come a minute early."""
    job = submit(slurm, folder, ["--time=2", "--signal=USR1@70"], "1000000")
    wait_until(slurm, job, {"RUNNING"})
    wait_until(slurm, job, {"PENDING"})
    found = state(folder, job)
    assert found["state"] == "preempted"
    assert f"preempted at step {found['step']} of " in output(folder, job)
    wait_until(slurm, job, {"RUNNING"})
    while f"\nresumed at step {found['step']}\n" not in output(folder, job):
        assert state_of(slurm, job) == "RUNNING"
        time.sleep(0.2)
    slurm("scancel", job)
