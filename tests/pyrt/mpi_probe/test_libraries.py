"""What is known of each MPI library, by what it says of itself; what is decided from that and a probe."""

from __future__ import annotations

import pytest

from pyrt.mpi_probe.libraries import (
    CRASHES,
    HANGS,
    IALLREDUCE,
    SENDRECV,
    SHARDS,
    WORKS,
    WRONG,
    Library,
    has_cuda_support,
    identify,
    judge,
    library_path,
)

ACCOUNTS = {
    "Open MPI v5.0.7, package: Open MPI root@host Distribution, ident: 5.0.7": Library("Open MPI", "5.0.7"),
    "Open MPI v4.1.6, package: Debian OpenMPI, ident: 4.1.6, Sep 30, 2023\0": Library("Open MPI", "4.1.6"),
    "Open MPI v4.1.7a1, package: HPC-X": Library("Open MPI", "4.1.7"),
    "MPICH Version:      5.0.2\nMPICH Release date: Fri\nMPICH Device: ch4:ofi": Library("MPICH", "5.0.2"),
    "MPICH Version:\t3.4.3\nMPICH ABI:\t14:0:2": Library("MPICH", "3.4.3"),
    "MPI VERSION    : CRAY MPICH version 8.1.27.26 (ANL base 3.4a2)": Library("Cray MPICH", "8.1.27.26"),
    "MVAPICH2 Version      :\t2.3.7\nMVAPICH2 Release date : Wed": Library("MVAPICH", "2.3.7"),
    "MVAPICH Version      :\t4.0\nMVAPICH Release date": Library("MVAPICH", "4.0"),
    "Intel(R) MPI Library 2021.11 for Linux* OS\n": Library("Intel MPI", "2021.11"),
    "IBM Spectrum MPI v10.4.0, package: Open MPI v3": Library("Spectrum MPI", "10.4.0"),
    "Somebody's MPI": Library("", ""),
}


@pytest.mark.parametrize("account", ACCOUNTS)
def test_a_library_is_known_by_its_account_of_itself(account: str) -> None:
    assert identify(account) == ACCOUNTS[account]


@pytest.mark.parametrize(
    ("family", "version", "iallreduce", "shards"),
    [
        ("Open MPI", "5.0.7", False, True),
        ("Open MPI", "5.1.0", False, True),
        ("Open MPI", "6.0.0", False, True),
        ("Open MPI", "10.0.0", False, True),
        ("Open MPI", "4.1.6", False, None),
        ("Spectrum MPI", "10.4", False, None),
        ("MPICH", "5.0.2", True, True),
        ("MPICH", "10.0", True, True),
        ("MPICH", "3.4", True, True),
        ("MPICH", "3.3.2", False, False),
        ("MPICH", "1.5", False, False),
        ("Cray MPICH", "8.1.27", None, None),
        ("Intel MPI", "2021.11", None, None),
        ("", "", None, None),
    ],
)
def test_the_row_of_a_version(family: str, version: str, iallreduce: bool, shards: bool) -> None:
    row = Library(family, version).row
    assert (row.iallreduce, row.shards) == (iallreduce, shards)
    assert row.source


def test_iallreduce_is_never_taken_on_open_mpi() -> None:
    for version in ("2.0.0", "4.1.6", "5.0.7", "5.0.9", "6.1.0"):
        for built in (True, False, None):
            for tried in (None, {SENDRECV: WORKS, SHARDS: WORKS, IALLREDUCE: WORKS}):
                assert not judge(Library("Open MPI", version), built, tried).iallreduce


@pytest.mark.parametrize("family", ["Open MPI", "MPICH", "Intel MPI", ""])
@pytest.mark.parametrize("built", [True, False, None])
@pytest.mark.parametrize("result", [HANGS, CRASHES, WRONG])
@pytest.mark.parametrize("call", [SENDRECV, SHARDS])
def test_what_did_not_work_here_is_refused(family: str, built: bool, result: str, call: str) -> None:
    tried = {SENDRECV: WORKS, call: result}
    verdict = judge(Library(family, "5.0.0"), built, tried)
    assert f"{result} in {call}" in verdict.refusal
    assert "--exchange host" in verdict.refusal and "\n" not in verdict.refusal
    assert not verdict.is_proven
    assert not verdict.iallreduce


def test_without_a_probe_the_library_decides() -> None:
    known, unknown = Library("Open MPI", "5.0.7"), Library("", "")
    assert judge(known, True, None).refusal == ""
    assert judge(unknown, True, None).refusal == ""
    assert judge(known, False, None).refusal.startswith("Open MPI 5.0.7 is not built for device buffers: use")
    assert "try `mpirun -n 2 python -m pyrt.mpi_probe`" in judge(known, None, None).refusal
    assert judge(unknown, None, None).refusal.startswith("this MPI does not say")
    assert "does not take device buffers" in judge(Library("MPICH", "3.2"), True, None).refusal
    assert not judge(known, True, None).is_proven


def test_what_worked_here_counts_for_more_than_the_librarys_word() -> None:
    tried = {SENDRECV: WORKS, SHARDS: WORKS}
    for built in (True, False, None):
        verdict = judge(Library("MPICH", "3.2"), built, tried)
        assert verdict.refusal == ""
        assert verdict.is_proven
    # A probe that has not come to the calls of the exchange proves nothing.
    assert not judge(Library("Open MPI", "5.0.7"), True, {SENDRECV: WORKS}).is_proven


def test_iallreduce_where_it_is_known_to_work_or_was_tried() -> None:
    worked = {SENDRECV: WORKS, SHARDS: WORKS}
    assert judge(Library("MPICH", "5.0.2"), True, None).iallreduce
    assert judge(Library("MPICH", "5.0.2"), True, worked).iallreduce
    assert not judge(Library("MPICH", "5.0.2"), True, {**worked, IALLREDUCE: CRASHES}).iallreduce
    assert judge(Library("MPICH", "5.0.2"), True, {**worked, IALLREDUCE: CRASHES}).refusal == ""
    assert not judge(Library("", ""), True, worked).iallreduce
    assert judge(Library("", ""), True, {**worked, IALLREDUCE: WORKS}).iallreduce


def test_the_loaded_library_is_asked() -> None:
    """What it answers depends on the machine; MPICH 4 and later and Open MPI have a word for it."""
    from mpi4py import MPI

    library = identify(MPI.Get_library_version())
    if library.family in ("Open MPI", "MPICH") and library.row.shards:
        assert has_cuda_support() in (True, False)
        assert "/libmpi" in library_path()


def test_a_library_that_has_no_word_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda path: object())
    assert has_cuda_support() is None
