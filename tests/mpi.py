"""Whole jobs under mpirun: how tests start them, with MPICH and with Open MPI."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from pyrt.job.cores import BLAS_VARIABLES
from tests import standing_still

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT = 60.0
"""Seconds after which a job counts as hanging, on the slowest machine."""

_OPEN_MPI = {
    # It refuses root, and more ranks than cores, unless told otherwise (4.x by OMPI_, 5.x by PRTE_ names).
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    # A single process needs no daemon of 4.x, which its PyPI package cannot find.
    "OMPI_MCA_ess_singleton_isolated": "1",
}


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a child that imports the project and may use MPI, changed by ``extra``.

    BLAS threads are not inherited: those of this process, all cores, are too many for ranks that share them.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    inherited = {name: value for name, value in os.environ.items() if name not in BLAS_VARIABLES}
    return {**_OPEN_MPI, **inherited, "PYTHONPATH": path, **(extra or {})}


def start(ranks: int, *command: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start ``mpirun -n ranks command...`` in the project's folder, its output in pipes."""
    return subprocess.Popen(
        ["mpirun", "-n", str(ranks), *command],
        cwd=ROOT,
        env=environment(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(job: subprocess.Popen[str], timeout: float = TIMEOUT) -> subprocess.CompletedProcess[str]:
    """Wait for a started job; one that does not end in time is killed and raises TimeoutExpired."""
    standing_still.allow(timeout + standing_still.LIMIT)
    try:
        out, err = job.communicate(timeout=timeout)
    except BaseException:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
        raise
    standing_still.allow()
    return subprocess.CompletedProcess(job.args, job.returncode, out, err)


def mpirun(
    ranks: int, *command: str, env: Mapping[str, str] | None = None, timeout: float = TIMEOUT
) -> subprocess.CompletedProcess[str]:
    """Run a command on that many ranks to its end: ``mpirun(2, sys.executable, "train.py", ...)``."""
    return finish(start(ranks, *command, env=env), timeout)
