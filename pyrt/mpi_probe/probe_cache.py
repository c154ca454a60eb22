"""What ``python -m pyrt.mpi_probe`` found, kept in the cache for this MPI, driver and machine."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path

from pyrt.cache import VARIABLE, cache_folder
from pyrt.driver import Driver
from pyrt.errors import UserError, out_of_files
from pyrt.job import Job
from pyrt.mpi_probe.libraries import library_path

_SETTINGS = (
    *("OMPI_MCA_pml", "OMPI_MCA_btl", "OMPI_MCA_mtl", "OMPI_MCA_coll", "OMPI_MCA_opal_cuda_support"),
    *("UCX_", "MPIR_CVAR_", "MPICH_", "MV2_", "MVP_", "FI_"),
)
"""How the names of variables begin with which a user says how an MPI moves data. With another transport it
may work where it hung."""

_DRIVER = Path("/sys/module/nvidia/version")


def key(job: Job, driver: Driver) -> dict[str, object]:
    """Describe what an answer holds for: ranks of one node may use other transports than those of several."""
    from mpi4py import MPI

    return {
        "mpi": MPI.Get_library_version().strip("\0\n"),
        "library": library_path(),
        "settings": {name: os.environ[name] for name in sorted(os.environ) if name.startswith(_SETTINGS)},
        "device": f"{driver.name}: {driver.device_name}",
        "driver": _DRIVER.read_text().strip() if _DRIVER.exists() else "",
        "host": platform.node(),
        "nodes": "one" if job.node.size == job.size else "several",
    }


def path(key: Mapping[str, object]) -> Path:
    """Return the file of the answer for this key."""
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()
    return cache_folder("probe") / f"{digest[:16]}.json"


def write(key: Mapping[str, object], results: Mapping[str, str]) -> None:
    """Keep results by the names of the calls (pyrt/mpi_probe/libraries.py), all or nothing.

    Raises UserError where it cannot be written.
    """
    file = path(key)
    unfinished = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(json.dumps({"key": key, "results": results}, indent=1))
        unfinished.rename(file)
    except OSError as error:
        raise UserError(
            out_of_files(error)
            or f"{file} cannot be written ({error.strerror}): set {VARIABLE} to a folder of your own"
        ) from None


def read(key: Mapping[str, object]) -> dict[str, str] | None:
    """Read the results that are kept for this key; return None if there are none."""
    try:
        content = json.loads(path(key).read_text())
        return {str(call): str(result) for call, result in content["results"].items()}
    except (UserError, OSError, ValueError, KeyError, TypeError, AttributeError):  # not there, or not ours
        return None
