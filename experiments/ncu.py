"""Runs train.py under Nsight Compute, which reads counters of the hardware, and reads what it prints."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from experiments.jobs import ROOT
from pyrt.errors import UserError

TIMEOUT = 120
"""Seconds that a run may take."""

_PREFIXES = {"G": 1e9, "M": 1e6, "K": 1e3, "m": 1e-3, "u": 1e-6, "n": 1e-9}
"""The factors of the prefixes of ncu's units, as in Mbyte, usecond and ns."""


class Launch(NamedTuple):
    """A kernel that ran, and its counters by the names that they were given: in numbers, bytes, seconds and
    percent."""

    kernel: str
    grid: tuple[int, ...]
    counts: dict[str, float]


def launches(
    words: Sequence[str], kernels: str, metrics: Mapping[str, str], most: int | None = None
) -> list[Launch]:
    """Run `train.py` with these words; list the launches of kernels of that name, the first ``most`` of them.

    ``kernels`` is a name or ``regex:..``; ``metrics`` names each counter that is read. Raises UserError, with
    the words of ncu, if it fails.
    """
    command = ["ncu", "--csv", "--clock-control", "none", "--metrics", ",".join(metrics), "-k", kernels]
    command += [] if most is None else ["--launch-count", str(most)]
    try:
        # Without what MPI has added to this process's environment behind Python's back.
        environment = dict(os.environ)
        done = subprocess.run(
            [*command, sys.executable, "train.py", *words],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"ncu: {error}") from None
    if done.returncode != 0:
        said = [line for line in (done.stdout + done.stderr).splitlines() if "error" in line.lower()]
        raise UserError(f"ncu: {said[-1].strip() if said else f'ended with {done.returncode}'}")
    return read(done.stdout, metrics)


def read(text: str, metrics: Mapping[str, str]) -> list[Launch]:
    """List the launches in Nsight Compute's CSV, in order; leave out what the program printed.

    Each line is a counter of a launch: ID, process, its name, host, kernel, context, stream, block, grid,
    device, compute capability, section, counter, unit, value.
    """
    found: dict[int, Launch] = {}
    for cells in csv.reader(line for line in text.splitlines() if line.startswith('"')):
        if len(cells) < 15 or not cells[0].isdigit() or cells[-3] not in metrics:
            continue
        grid = tuple(int(number) for number in cells[8].strip("() ").split(","))
        launch = found.setdefault(int(cells[0]), Launch(cells[4], grid, {}))
        launch.counts[metrics[cells[-3]]] = float(cells[-1].replace(",", "")) * _scale(cells[-2])
    return list(found.values())


def _scale(unit: str) -> float:
    """Return a unit's size in inst, bytes or seconds."""
    if unit in ("inst", "byte", "s", "sec", "second"):
        return 1.0
    return _PREFIXES.get(unit[:1], 1.0)
