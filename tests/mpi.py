"""Commands under mpirun: how tests start whole jobs, with MPICH and with Open MPI."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT = 60.0
"""Seconds after which a job counts as hanging, on the slowest machine."""

_OUTER_JOB = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDRA_", "HYDI_", "MPIR_", "MPI_LOCAL", "SLURM_")
"""What tells a process that it is a rank already: not for the ranks of a job of its own."""

_SETTINGS = {
    # Open MPI refuses root, and more ranks than cores, unless told otherwise (4.x by OMPI_, 5.x by PRTE_ names).
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def clean_environment(**extra: str) -> dict[str, str]:
    """This process's environment without traces of a job around it, the project importable."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OUTER_JOB)}
    return {**kept, "PYTHONPATH": str(ROOT), **extra}


def start(ranks: int, *command: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """``mpirun -n ranks command...`` in the project's folder, its output in pipes, under way."""
    return subprocess.Popen(
        ["mpirun", "-n", str(ranks), *command],
        cwd=ROOT,
        env=clean_environment(**_SETTINGS, **(env or {})),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(job: subprocess.Popen[str], timeout: float = TIMEOUT) -> subprocess.CompletedProcess[str]:
    """Wait for a started job. Past the time it is killed, and TimeoutExpired says what it had printed."""
    try:
        out, err = job.communicate(timeout=timeout)
    except BaseException:
        os.killpg(job.pid, signal.SIGKILL)
        job.communicate()
        raise
    return subprocess.CompletedProcess(job.args, job.returncode, out, err)


def mpirun(
    ranks: int, *command: str, env: Mapping[str, str] | None = None, timeout: float = TIMEOUT
) -> subprocess.CompletedProcess[str]:
    """Run a command on that many ranks to its end: ``mpirun(2, sys.executable, "train.py", ...)``."""
    return finish(start(ranks, *command, env=env), timeout)
