"""What each MPI library can do with device buffers: the one table of it, and what the loaded library says.

A library that is not built for them takes a device pointer for a host's and crashes. So nothing is ever tried
in a run: the table, what the library itself says, and the answer of ``python -m pyrt.mpi_probe`` decide.
docs/explain/mpi.md has the same table for people.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

WORKS = "works"
HANGS = "hangs"
WRONG = "gives wrong results"
CRASHES = "crashes, or was stopped"
"""Answers of the probe: the last one is written down before a call, and replaced if that returns."""

SENDRECV = "Sendrecv"
SHARDS = "Ialltoallv, Iallgatherv"
IALLREDUCE = "Iallreduce"
"""What the probe tries, in this order."""

PROBE = "mpirun -n 2 python -m pyrt.mpi_probe"

_ADVICE = "use --exchange host, or an MPI built with CUDA"


class Row(NamedTuple):
    """What is known of a library from version ``since`` on, where it is built with CUDA.

    True, False or, where nobody knows, None: for Iallreduce, and for Ialltoallv and Iallgatherv.
    """

    family: str
    since: tuple[int, ...]
    iallreduce: bool | None
    shards: bool | None
    source: str


_CRASHES = "open-mpi/ompi 9845 and 12045"
_MPICH = "wiki of pmodels/mpich, GPU Support Matrix (3.4.x)"

TABLE = (
    Row("Open MPI", (5,), False, True, f"{_CRASHES}; 5.0.7 was tried: over UCX 1.22 it hangs"),
    Row("Open MPI", (), False, None, f"{_CRASHES}; not tried here, and its FAQ says no to non-blocking ones"),
    Row("Spectrum MPI", (), False, None, "made of Open MPI; not tried here"),
    Row("MPICH", (3, 4), True, True, f"{_MPICH}; not tried here"),
    Row("MPICH", (), False, False, f"{_MPICH}: none before"),
    Row("", (), None, None, "not tried here"),
)
"""The first row that fits is meant."""

_NAMES = (
    # What no other library's account of itself contains; those made of another one come first.
    ("Spectrum MPI", r"Spectrum MPI\D*([\d.]+)"),
    ("Open MPI", r"Open MPI v([\d.]+)"),
    ("Cray MPICH", r"CRAY MPICH version ([\d.]+)"),
    ("MVAPICH", r"MVAPICH\S* Version\s*:\s*([\d.]+)"),
    ("Intel MPI", r"Intel\(R\) MPI Library ([\d.]+)"),
    ("MPICH", r"MPICH Version:\s*([\d.]+)"),
)


class Library(NamedTuple):
    """An MPI library: what it calls itself, and its version; both empty where that is not understood."""

    family: str
    version: str

    def __str__(self) -> str:
        return f"{self.family} {self.version}" if self.family else "this MPI"

    @property
    def _numbers(self) -> tuple[int, ...]:
        return tuple(int(part) for part in re.findall(r"\d+", self.version))

    @property
    def row(self) -> Row:
        """What is known of it."""
        return next(row for row in TABLE if row.family in ("", self.family) and self._numbers >= row.since)


def identify(account: str) -> Library:
    """Identify the library by the text of ``MPI.Get_library_version``."""
    for family, pattern in _NAMES:
        match = re.search(pattern, account)
        if match:
            return Library(family, match[1])
    return Library("", "")


def has_cuda_support() -> bool | None:
    """Return whether the loaded library says it was built for CUDA buffers; None if it cannot say.

    ``MPIX_Query_cuda_support`` is in Open MPI since 2.0 and in MPICH 4; mpi4py does not have it. MPI must
    have been started.
    """
    from mpi4py import MPI

    for path in (MPI.__file__, library_path()):  # with what mpi4py's own module is linked, or has loaded
        try:
            return bool(ctypes.CDLL(path).MPIX_Query_cuda_support())
        except (OSError, AttributeError):
            continue
    return None


def library_path() -> str:
    """Return the file that the MPI library was loaded from; empty where that cannot be told."""
    with open("/proc/self/maps") as lines:
        paths = [line.split(maxsplit=5)[-1].strip() for line in lines]
    return next((path for path in paths if re.search(r"/libmpi(ch)?\.so[^/]*$", path)), "")


@dataclass(frozen=True)
class Verdict:
    """What is decided for the exchange `device`."""

    refusal: str
    """Why it cannot work, and what to do, in words that follow its name; empty where it can."""
    iallreduce: bool
    """Whether Iallreduce does all of it."""
    is_proven: bool
    """By a probe of this MPI on this machine: nothing less is enough to choose it for the user."""


def judge(library: Library, built: bool | None, tried: Mapping[str, str] | None) -> Verdict:
    """Decide from the answer of `has_cuda_support`, and from the probe's results here, if it ran.

    A result of the probe counts for more than what the library says; but Iallreduce is never used where it is
    known to crash.
    """
    row, tried = library.row, tried or {}
    failed = [call for call in (SENDRECV, SHARDS) if tried.get(call, WORKS) != WORKS]
    is_proven = not failed and tried.get(SHARDS) == WORKS
    refusal = ""
    if failed:
        refusal = (
            f"{tried[failed[0]]} in {failed[0]} on device buffers, as `{PROBE}` found: use --exchange host"
        )
    elif not is_proven and built is False:
        refusal = f"is not built for device buffers: {_ADVICE}"
    elif not is_proven and row.shards is False:
        refusal = f"does not take device buffers ({row.source}): {_ADVICE}"
    elif not is_proven and built is None:
        refusal = f"does not say whether it takes device buffers: try `{PROBE}`, or use --exchange host"
    if IALLREDUCE in tried:
        iallreduce = row.iallreduce is not False and tried[IALLREDUCE] == WORKS
    else:
        iallreduce = row.iallreduce is True
    return Verdict(f"{library} {refusal}" if refusal else "", iallreduce and not refusal, is_proven)
