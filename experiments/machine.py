"""What a report is measured on: what there is to use, and all that its numbers depend on."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

from experiments.jobs import ROOT
from nn.checkpoints import versions
from pyrt.devices import usable_gpus
from pyrt.driver.emulated.compile import compiler
from pyrt.errors import UserError

PACKAGES = ("numpy", "mpi4py", "pycuda", "cuda-bindings", "torch", "jax")


def gpus() -> int:
    """Count the GPUs this process may use."""
    return len(usable_gpus()[0])


def cores() -> int:
    return len(os.sched_getaffinity(0))


def emulates() -> bool:
    """Return whether there is a C++ compiler for the emulated device."""
    try:
        compiler()
    except UserError:
        return False
    return True


def about() -> dict[str, str]:
    """Describe all that numbers depend on: cards, links, MPI, versions, revision."""
    mpi = _output(sys.executable, "-c", "from mpi4py import MPI; print(MPI.Get_library_version())")
    found = {
        "GPUs": _cards() if gpus() else f"none is used: {usable_gpus()[1]}",
        "links of the first GPU": _links() if gpus() > 1 else "",
        "CPU": f"{cores()} cores of {_cpu()}",
        "MPI": mpi.splitlines()[0].split(",")[0].strip() if mpi else "unknown",
        "Python": platform.python_version(),
        **versions.packages(PACKAGES),
        "revision": versions.revision(),
    }
    return {name: text for name, text in found.items() if text}


def _cards() -> str:
    fields = "name,driver_version,clocks.max.sm"
    lines = _output("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader").splitlines()
    kinds = [f"{lines.count(line)} x {line.replace(', ', ', driver ', 1)}" for line in dict.fromkeys(lines)]
    return "; ".join(kinds)


def _links() -> str:
    """Say how the first GPU reaches the others, as nvidia-smi calls it: NV18 are 18 NVLinks."""
    for line in _output("nvidia-smi", "topo", "-m").splitlines():
        words = re.sub(r"\x1b\[\d*m", "", line).split()
        if words and words[0] == "GPU0" and "X" in words:
            count = len(_output("nvidia-smi", "-L").splitlines())
            return " ".join(words[2 : 1 + count])
    return ""


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _output(*command: str) -> str:
    """Return the output of a command in the project's folder; empty if it fails or is missing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
