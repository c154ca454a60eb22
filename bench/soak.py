"""Train for some minutes and watch what must not grow: memory, open files, the time of a step.

    mpirun -n 2 python3 bench/soak.py [--minutes 8] [--device cuda]

The training is `train.py`'s, with checkpoints and validation in it. Each rank looks at itself at the end of
an epoch, once a second at most; when the time is up the job is asked to stop as a cluster would ask it. The
table has the first and the last quarter of the time; exit code 1 where memory or files have grown.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tabulate import tabulate

from nn.app.console import Console
from pyrt.arguments import Parser
from pyrt.errors import UserError
from pyrt.job import Job, run

if TYPE_CHECKING:  # at run time only once MPI has started: they load NumPy
    from nn.app.options import Options

PERIOD = 1.0
"""Seconds between two looks, at least."""

GROWTH = {"host MB": 4.0, "mapped MB": 128.0, "device MB": 1.0, "open files": 0.5}
"""How much more the last quarter may have than the first: allocators keep a little, or map for a thread."""

SAMPLES = {"cuda": 3_000_000, "cpu": 4000, "emulated": 40}
"""Of an epoch: what a run keeps of each, for its report and its checkpoints, must not count."""

STEPS = {"cuda": 1000, "cpu": 20, "emulated": 20}
"""Of an epoch."""


Look = dict[str, float]
"""What a rank has at a time, by the names of the table."""


def look(step_us: float, device: str) -> Look:
    """Look at this process. Its mapped memory includes pinned memory; on a GPU all programs there count."""
    pages = [int(word) for word in Path("/proc/self/statm").read_text().split()[:2]]
    mapped, resident = (count * os.sysconf("SC_PAGE_SIZE") * 1e-6 for count in pages)
    on_gpu = {"device MB": used_mb()} if device == "cuda" else {}
    files = float(len(os.listdir("/proc/self/fd")))
    return {"step us": step_us, "host MB": resident, "mapped MB": mapped, **on_gpu, "open files": files}


def used_mb() -> float:
    """Return the MB in use on this rank's GPU, whose context is current."""
    from pyrt.driver.cuda import cuda

    free, total = cuda.mem_get_info()
    return float(total - free) * 1e-6


class Watch(Console):
    """A console that prints nothing: it looks at the process where a run tells of an epoch."""

    def __init__(self, options: Options, seconds: float) -> None:
        super().__init__(speaking=False)
        self.looks: list[Look] = []
        self._device = options.device
        self._steps = -(-(options.samples or 1) // options.batch)
        self._end = time.perf_counter() + seconds
        self._epochs, self._since = 0, time.perf_counter()

    def say(self, line: str) -> None:
        """Look, if it is time to; ask the job to stop once its time is up."""
        if not line.startswith("epoch"):
            return
        now = time.perf_counter()
        self._epochs += 1
        if now > self._end:
            self._end = math.inf
            os.kill(os.getpid(), signal.SIGUSR1)
        if now - self._since >= PERIOD:
            us = (now - self._since) / (self._epochs * self._steps) * 1e6
            self.looks.append(look(us, self._device))
            self._epochs, self._since = 0, now


def quarters(looks: Sequence[Look]) -> dict[str, tuple[float, float]]:
    """Medians of each number in the first quarter and in the last one; the first tenth warms up, and does not
    count. UserError where there are too few."""
    count, start = len(looks) // 4, len(looks) // 10
    if not count:
        raise UserError(f"--minutes: only {len(looks)} epochs were long enough to look at: train longer")
    first, last = looks[start : start + count], looks[-count:]
    return {name: (_median(first, name), _median(last, name)) for name in looks[0]}


def _median(looks: Sequence[Look], name: str) -> float:
    return statistics.median(each[name] for each in looks)


def table(found: Mapping[str, tuple[float, float]]) -> str:
    body = [
        [name, first, last, f"{last / first - 1:+.2%}" if first else None]
        for name, (first, last) in found.items()
    ]
    return tabulate(body, headers=["median", "first quarter", "last quarter", "change"], floatfmt=".1f")


def grown(found: Mapping[str, tuple[float, float]]) -> list[str]:
    """List each number that grew too much."""
    return [
        f"{name} grew from {first:.1f} to {last:.1f}"
        for name, (first, last) in found.items()
        if last - first > GROWTH.get(name, math.inf)
    ]


def soak_options(device: str, checkpoints: Path) -> Options:
    """More epochs than any time is for."""
    from nn.app.options import Options

    samples = SAMPLES[device]
    return Options(
        hidden=(512,) if device != "emulated" else (16,),
        batch=samples // STEPS[device],
        samples=samples,
        epochs=10**8,
        lr=0.1,
        momentum=0.0,
        device=device,
        share_gpus=True,
        checkpoint=checkpoints,
        checkpoint_every=f"{50 if device == 'cuda' else 3}ep",
    )


def main(job: Job) -> int:
    from train import train

    with job.agree():
        parser = Parser("soak.py", __doc__)
        parser.add_argument("--minutes", type=float, default=8.0, metavar="X", help="(default: 8)")
        parser.add_argument("--device", choices=tuple(SAMPLES), default="cuda", help="(default: cuda)")
        wanted = parser.parse_args(sys.argv[1:])
        if not 0 < wanted.minutes < 10000:
            raise UserError(f"--minutes {wanted.minutes}: must be above 0")
    with tempfile.TemporaryDirectory() if job.rank == 0 else contextlib.nullcontext("") as folder:
        options = soak_options(wanted.device, Path(job.comm.bcast(folder)) / "checkpoints")
        watch = Watch(options, wanted.minutes * 60)
        train(options, job, console=watch)
    with job.agree():
        found = quarters(watch.looks)
    failures: list[str] = []
    for rank, each in enumerate(job.comm.gather(found) or ()):
        print(f"\nrank {rank}, {wanted.minutes:g} minutes\n{table(each)}", flush=True)
        failures += [f"rank {rank}: {line}" for line in grown(each)]
    for failure in failures:
        print(f"soak.py: error: {failure}", file=sys.stderr)
    return job.comm.bcast(1 if failures else 0)


if __name__ == "__main__":
    run(main)
