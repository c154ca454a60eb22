"""Which code runs here: the versions of packages, and the revision of this project."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from pathlib import Path

import pyrt

ROOT = Path(__file__).resolve().parents[2]

UNKNOWN = "unknown: no git"
"""The revision of a folder that is no git checkout."""


@cache
def code() -> dict[str, str]:
    """Return the versions that a run's numbers depend on, beside what MPI and devices say of themselves."""
    return {**packages(("mpi4py", "pycuda", "cuda-bindings")), "revision": revision()}


def packages(names: Sequence[str]) -> dict[str, str]:
    """Return versions of those packages that are installed."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def version() -> str:
    """Name this release, and the revision where git knows it: pyrt 0.1.0, revision 0123456789ab."""
    commit = revision()
    return f"pyrt {pyrt.__version__}" + ("" if commit == UNKNOWN else f", revision {commit}")


def revision() -> str:
    """Return the commit, and a digest of the changes to it: results hold for this code alone."""
    if _git("rev-parse", "--show-toplevel") != str(ROOT):  # what is around it says nothing of it
        return UNKNOWN
    commit, changes = _git("rev-parse", "--short=12", "HEAD"), _git("diff", "HEAD")
    if changes:
        commit += f" and changes {hashlib.sha256(changes.encode()).hexdigest()[:8]}"
    return commit or UNKNOWN


def _git(*words: str) -> str:
    """Return what git prints in the project's folder; empty if it fails or is missing."""
    try:
        done = subprocess.run(["git", *words], capture_output=True, text=True, cwd=ROOT, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
