"""pyrt/job/launcher.py: which launcher started this process, and whether it belongs to the loaded MPI."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from pyrt.errors import UserError
from pyrt.job import launcher
from pyrt.job.launcher import launcher_rank, no_library, require_own, require_startable

MPICH = "MPICH Version:      5.0.2\nMPICH configure:    --with-device=ch4:ucx,ofi --with-pm=hydra:gforker\n"
OPEN_MPI = "Open MPI v5.0.11, package: Open MPI user@localhost Distribution, ident: 5.0.11"


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PMIX_NAMESPACE", *(name for names in launcher._LAUNCHERS for name in names[:2])):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("garbage", ["", " ", "x", "-1", "1.5", "²"])
def test_what_is_no_number_counts_as_not_there(garbage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"):
        monkeypatch.setenv(name, garbage)
    assert launcher_rank() == 0
    require_own(1, "MPICH 5.0.2")
    monkeypatch.setenv("PMI_RANK", "3")
    monkeypatch.setenv("PMI_SIZE", "4")
    assert launcher_rank() == 3
    with pytest.raises(
        UserError, match=r"MPICH or Slurm's PMI\) started 4 ranks, .* \(Open MPI\) sees 1: use"
    ):
        require_own(1, "Open MPI")


@pytest.mark.parametrize(
    ("account", "variables", "ends"),
    [
        (MPICH, {"PMIX_NAMESPACE": "prterun-1@1", "OMPI_COMM_WORLD_SIZE": "2"}, "Open MPI"),
        (MPICH, {"PMIX_NAMESPACE": "slurm.pmix.1.0", "SLURM_STEP_NUM_TASKS": "2"}, "Slurm"),
        (MPICH + "--with-pmix=/usr", {"PMIX_NAMESPACE": "prterun-1@1", "OMPI_COMM_WORLD_SIZE": "2"}, ""),
        (OPEN_MPI, {"PMIX_NAMESPACE": "prterun-1@1", "OMPI_COMM_WORLD_SIZE": "2"}, ""),
        (OPEN_MPI, {"PMI_SIZE": "2"}, "MPICH or Slurm's PMI"),
        (OPEN_MPI, {"SLURM_STEP_NUM_TASKS": "2"}, "Slurm"),
        (OPEN_MPI, {"SLURM_STEP_NUM_TASKS": "1"}, ""),
        (OPEN_MPI.replace("v5", "v4"), {"PMI_SIZE": "2"}, ""),
        (MPICH, {"PMI_SIZE": "2"}, ""),
        (MPICH, {}, ""),
    ],
)
def test_a_library_that_the_launcher_would_end_is_named_before_it_starts(
    account: str, variables: dict[str, str], ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    message = (
        rf"^mpirun \({ends}\) started 2 ranks, but .* \(the library\) is not built for it: use the mpirun"
    )
    with pytest.raises(UserError, match=message) if ends else nullcontext():
        require_startable(account, "the library")


def test_mpi_is_not_started_without_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    require_startable(MPICH, "MPICH")
    monkeypatch.setattr(launcher, "files_limit", lambda: 32)
    with pytest.raises(
        UserError, match=r"may have 32 open files, too few: raise that limit, as by `ulimit -n"
    ):
        require_startable(MPICH, "MPICH")


def test_a_variable_that_hides_the_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MPI4PY_LIBMPI", "MPI4PY_MPIABI"):
        monkeypatch.delenv(name, raising=False)
    line = "no MPI library can be loaded (cannot load MPI library): "
    assert no_library("cannot load MPI library\nlibmpi.so") == f"{line}run `make run` once, or load your MPI"
    monkeypatch.setenv("MPI4PY_LIBMPI", "")
    assert no_library("cannot load MPI library") == f"{line}unset MPI4PY_LIBMPI, or correct it"
