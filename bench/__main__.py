"""All comparisons, one after another: python3 -m bench [NAME ..]

Those that take one GPU run first; then, under mpirun, those that take several.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.program import require_gpu, start
from pyrt.arguments import Parser

ON_ONE_GPU = ("gemm", "tiles", "kernels", "step", "conv", "nets", "latency", "sparse")
ON_SEVERAL = ("step", "exchange", "overlap", "plans")
"""The files of this folder that measure, in the order they run in."""

PROGRAMS = tuple(dict.fromkeys((*ON_ONE_GPU, *ON_SEVERAL)))

MOST_RANKS = 4
"""However many GPUs there are."""


def parser() -> argparse.ArgumentParser:
    parser = Parser("bench", __doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{' or '.join(PROGRAMS)} (default: all)")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the programs, each in a process and context of its own; return the worst exit code."""
    names = parser().parse_args(arguments).names or PROGRAMS
    for name in names:
        if name not in PROGRAMS:
            parser().error(f"no comparison is called {name}: there are {', '.join(PROGRAMS)}")
    gpus = require_gpu()
    commands = [_command(name) for name in names if name in ON_ONE_GPU]
    several = [name for name in names if name in ON_SEVERAL]
    obstacle = _no_several(gpus)
    if not obstacle:
        ranks = min(gpus, MOST_RANKS)
        commands += [["mpirun", "-n", str(ranks), *_command(name)] for name in several]
    elif several:
        print(f"{', '.join(several)} on several GPUs: left out: {obstacle}", flush=True)
    return max((subprocess.run(command).returncode for command in commands), default=0)


def _command(name: str) -> list[str]:
    return [sys.executable, str(Path(__file__).parent / f"{name}.py")]


def _no_several(gpus: int) -> str:
    """Why no program can take several of so many GPUs; empty where they can."""
    if gpus == 1:
        return "there is one"
    return "" if shutil.which("mpirun") else "no mpirun is on PATH"


if __name__ == "__main__":
    start("bench", main)
