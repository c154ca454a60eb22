"""The cores of a node that a rank may use, and the threads that its BLAS takes of them."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path

from pyrt.job.cgroups import folders

BLAS_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables that set the threads of a BLAS; ranks pass them on to processes they start."""

_OF_ALL = "OMP_NUM_THREADS"
"""The one that each BLAS heeds where its own is not there."""

_ROOTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/cpu"))

_THREADS = (
    ("scipy_openblas_get_num_threads64_", "scipy_openblas_set_num_threads64_"),
    ("scipy_openblas_get_num_threads", "scipy_openblas_set_num_threads"),
    ("openblas_get_num_threads64_", "openblas_set_num_threads64_"),
    ("openblas_get_num_threads", "openblas_set_num_threads"),
    ("MKL_Get_Max_Threads", "MKL_Set_Num_Threads"),
    ("bli_thread_get_num_threads", "bli_thread_set_num_threads"),
)
"""The functions that get and set the number of threads of a BLAS."""


@dataclass(frozen=True)
class Limits:
    """What the system lets a process have of its node."""

    cores: frozenset[int]
    """Those that it may run on."""
    quotas: dict[tuple[int, int], float]
    """Of control groups with a quota of CPU time: how many cores' time all processes of the group may take
    together, by device and inode of its folder."""

    @classmethod
    def of_this_process(cls) -> Limits:
        """Ask the system."""
        return cls(frozenset(os.sched_getaffinity(0)), _quotas())


def _quotas() -> dict[tuple[int, int], float]:
    """Read the quotas of the groups that this process is in, and of those around them; see `Limits`."""
    quotas = {}
    for is_first, folder in folders("cpu", _ROOTS):
        with suppress(OSError, ValueError, ZeroDivisionError):  # not there, or without a limit
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if is_first else ("cpu.max",)
            quota, period = " ".join((folder / name).read_text() for name in names).split()
            if quota not in ("max", "-1"):
                place = folder.stat()
                quotas[place.st_dev, place.st_ino] = int(quota) / int(period)
    return quotas


def cores_share(ranks: Sequence[Limits], rank: int) -> float:
    """Return a rank's share of its node's cores, from the limits of all ranks there.

    Each core that it may run on counts 1 / (ranks that may, too); a quota is divided among the ranks that it
    limits. The least of these is the share.
    """
    own = ranks[rank]
    cores = sum(1 / sum(core in each.cores for each in ranks) for core in own.cores)
    quotas = (quota / sum(group in each.quotas for each in ranks) for group, quota in own.quotas.items())
    return min(cores, *quotas, inf)


def bound_blas(threads: int) -> None:
    """Have a BLAS take so many threads, if the user has not said how many: one that is loaded, or will be."""
    told = any(map(_count, BLAS_VARIABLES))
    asked = _count(_OF_ALL) or threads
    for variable in BLAS_VARIABLES:
        if not _count(variable):
            os.environ[variable] = str(asked)
    if "numpy" in sys.modules and not told:
        _call_blas(1, asked)


def blas_threads() -> int:
    """Return how many threads NumPy's BLAS takes; if it cannot be asked, what it was told."""
    threads = _call_blas(0)
    return int(threads) if threads is not None else _count(_OF_ALL) or 1


def _call_blas(which: int, *arguments: int) -> int | None:
    """Call the function of that place in `_THREADS`; None if NumPy's BLAS has none."""
    module = importlib.util.find_spec("numpy.linalg._umath_linalg")
    with suppress(OSError):
        library = ctypes.CDLL(module.origin if module is not None else None)
        for names in _THREADS:
            with suppress(AttributeError):
                return int(library[names[which]](*arguments))
    return None


def _count(variable: str) -> int:
    """Return the number that an environment variable begins with, for OMP's may be a list; else 0."""
    match = re.match(r"\s*(\d+)", os.environ.get(variable, ""))
    return int(match[1]) if match else 0
