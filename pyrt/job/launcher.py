"""How this process was launched: by which launcher, as which of how many ranks, and for which MPI library."""

from __future__ import annotations

import os

from pyrt.errors import TOO_FEW_FILES, UserError, files_limit
from pyrt.mpi_probe.libraries import identify

_LAUNCHERS = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "Open MPI"),
    ("PMI_SIZE", "PMI_RANK", "MPICH or Slurm's PMI"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "Slurm"),
)
"""Where each launcher says how many ranks it started; the first that is there is the innermost."""

_FEWEST_FILES = 48
"""With fewer open files MPI or this program fails: MPICH 5.0.2 over UCX ends four ranks with 32."""


def launcher_rank() -> int:
    """Return this process's number among those that the launcher started, when MPI itself cannot say."""
    ranks = (_number(rank) for _, rank, _ in _LAUNCHERS)
    return next((rank for rank in ranks if rank is not None), 0)


def no_library(error: str) -> str:
    """Return the line for an mpi4py that finds no MPI library, of its own words."""
    named = [name for name in ("MPI4PY_LIBMPI", "MPI4PY_MPIABI") if name in os.environ]
    way_out = f"unset {named[0]}, or correct it" if named else "run `make run` once, or load your MPI"
    return f"no MPI library can be loaded ({error.splitlines()[0]}): {way_out}"


def require_startable(account: str, library: str) -> None:
    """Raise UserError where MPI_Init would end this process: of a foreign launcher, or without open files.

    ``account`` is what the library says of itself, ``library`` its short name. A launcher that speaks PMIx
    sets PMIX_NAMESPACE. An MPICH that was built without PMIx, as its configure line tells, aborts then; Open
    MPI knows nothing else from version 5 on.
    """
    family, version = identify(account)
    started = _started()
    speaks_pmix = "PMIX_NAMESPACE" in os.environ
    needs_pmix = family == "Open MPI" and int(version.split(".")[0]) >= 5
    lacks_pmix = family == "MPICH" and "pmix" not in account.lower() and "PMI_SIZE" not in os.environ
    if started is not None and (lacks_pmix if speaks_pmix else needs_pmix and started[0] > 1):
        raise _foreign(*started, f"({library}) is not built for it")
    if 0 <= files_limit() < _FEWEST_FILES:  # -1: as many as there may be
        raise UserError(TOO_FEW_FILES.format(files_limit()))


def require_own(size: int, library: str) -> None:
    """Raise UserError where the launcher belongs to another MPI: it has started N jobs of one rank each.

    ``size`` is the number of ranks that the MPI library sees.
    """
    started = _started()
    if started is not None and started[0] != size:
        raise _foreign(*started, f"({library}) sees {size}")


def _foreign(size: int, launcher: str, finding: str) -> UserError:
    return UserError(
        f"mpirun ({launcher}) started {size} ranks, but the MPI library that mpi4py loads {finding}: use the "
        "mpirun of that library, or the library of that mpirun"
    )


def _started() -> tuple[int, str] | None:
    """Return how many ranks the innermost launcher started, and its name; None where there is none."""
    for variable, _, launcher in _LAUNCHERS:
        size = _number(variable)
        if size is not None:
            return size, launcher
    return None


def _number(variable: str) -> int | None:
    """Return the number in an environment variable; None where it is not there, empty or something else."""
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else None
