"""Whole jobs under mpirun: how tests start them, with MPICH and with Open MPI."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path

from pyrt.cache import kernel_folder, make_folder
from pyrt.driver.emulated.compile import compiler
from pyrt.errors import UserError
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


_NAP = """
#include <time.h>

static const long TURN = 200000, SHORT = 50000, LONG = 500000;  // nanoseconds

static long now()
{
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

extern "C" int sched_yield() noexcept
{
    static thread_local long ended = 0, turns = 0;
    turns = now() - ended < TURN ? turns + 1 : 0;
    const timespec time{0, turns < 50 ? SHORT : LONG};
    const int code = nanosleep(&time, nullptr);
    ended = now();
    return code;
}
"""
"""MPICH polls, and yields in between. That takes time from the ranks it waits for, where cores are few. So a
yield is a short nap; in a wait of 5 ms and more, a longer one."""


@cache
def naps() -> dict[str, str]:
    """Compile ``_NAP``; return the variable that loads it before the C library; empty without a compiler."""
    try:
        command, version = compiler()
    except UserError:
        return {}

    def fill(scratch: Path) -> None:
        (scratch / "nap.cpp").write_text(_NAP)
        subprocess.run(
            [*command, "-O2", "-shared", "-fPIC", scratch / "nap.cpp", "-o", scratch / "nap.so"], check=True
        )

    folder = kernel_folder().path / sha256(f"{version}{_NAP}".encode()).hexdigest()[:32]
    make_folder(folder, fill)
    return {"LD_PRELOAD": str(folder / "nap.so")}


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
        env={**naps(), **environment(env)},
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
