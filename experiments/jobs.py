"""Jobs that measure: ranks under mpirun which take one point after another, and runs of programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from threading import Thread
from typing import Any

from experiments.study import FAILED, Point, Row, Setup, Taken

ROOT = Path(__file__).resolve().parents[1]

TIMEOUT = 300
"""Seconds that a run of a program may take."""

_BLAS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def measured(study: str, points: Sequence[Point], setup: Setup) -> Iterator[Taken]:
    """Let `experiments.worker` take the points of a study, a module's name: one job for all that have as many
    ranks and threads and follow each other. A point that ends its job is told, and the next ones get a new
    one."""
    for _, group in groupby(points, key=lambda point: (point.get("ranks", 1), point.get("threads"))):
        waiting = list(group)
        while waiting:
            for taken in _job(study, tuple(waiting), setup):
                waiting.pop(0)
                yield taken


def _job(study: str, points: Sequence[Point], setup: Setup) -> Iterator[Taken]:
    """Take points in one job: all of them, or up to the point that ends the job."""
    with tempfile.TemporaryDirectory() as scratch, (setup.folder / "log.txt").open("a") as log:
        asked = Path(scratch) / "points.json"
        asked.write_text(json.dumps(points))
        words = ["-m", "experiments.worker", study, str(asked), str(setup.folder)]
        ranks = points[0].get("ranks", 1)
        with _started(ranks, words, blas(points[0].get("threads")), log) as job:
            assert job.stdout is not None
            number = 0
            for number, line in enumerate(job.stdout, 1):
                yield points[number - 1], json.loads(line)
            code = job.wait()
    if number < len(points):
        last = _last_line(setup.folder / "log.txt")
        yield points[number], [{FAILED: f"its job ended with {code}: {last}"}]


def train(
    ranks: int, words: Sequence[str], setup: Setup, variables: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run `train.py`: return what `report_of` says of it. ``variables`` are for its environment."""
    return report_of("train.py", ranks, ["train.py", *words], setup, variables or {})


def compress(
    words: Sequence[str], setup: Setup, variables: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run `python -m nn.compress` on one rank: return what `report_of` says of it."""
    return report_of("nn.compress", 1, ["-m", "nn.compress", *words], setup, variables or {})


def report_of(
    name: str, ranks: int, command: Sequence[str], setup: Setup, variables: Mapping[str, str]
) -> dict[str, Any]:
    """Run a program of Python; return its --json report, or a dict with FAILED alone if it does not end well.

    Beside the report: ``shell``, seconds from the start of the command to its end, and ``lines``, what it
    printed, each line with the seconds after which it came.
    """
    lines: list[tuple[float, str]] = []
    with tempfile.TemporaryDirectory() as scratch, (setup.folder / "log.txt").open("a") as log:
        report = Path(scratch) / "report.json"
        begin = time.perf_counter()
        try:
            with _started(ranks, [*command, "--json", str(report)], variables, log) as job:
                listener = Thread(target=_listen, args=(job, begin, lines), daemon=True)
                listener.start()
                job.wait(TIMEOUT)
                shell = time.perf_counter() - begin
                listener.join(TIMEOUT)
        except subprocess.TimeoutExpired:
            return {FAILED: f"{name} was not done after {TIMEOUT} s"}
        if job.returncode != 0:
            last = _last_line(setup.folder / "log.txt")
            return {FAILED: f"{name} ended with {job.returncode}: {last}"}
        content: dict[str, Any] = json.loads(report.read_text())
        return {**content, "shell": shell, "lines": lines}


def _listen(job: subprocess.Popen[str], begin: float, lines: list[tuple[float, str]]) -> None:
    """Note what a job prints until it ends, and when."""
    assert job.stdout is not None
    for line in job.stdout:
        lines.append((time.perf_counter() - begin, line.rstrip("\n")))


def blas(threads: int | None) -> dict[str, str]:
    """Return the variables that give BLAS so many threads a rank; None: as many as it takes."""
    return dict.fromkeys(_BLAS, str(threads)) if threads is not None else {}


@contextmanager
def _started(
    ranks: int, words: Sequence[str], variables: Mapping[str, str], log: Any
) -> Iterator[subprocess.Popen[str]]:
    """Start a job in the project's folder; end it if this process does not wait for its end."""
    launch = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables}
    job = subprocess.Popen(
        [*launch, sys.executable, *words],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    try:
        yield job
    finally:
        if job.poll() is None:
            job.terminate()
            try:
                job.wait(10)
            except subprocess.TimeoutExpired:
                job.kill()
                job.wait()


def _last_line(log: Path) -> str:
    """Find what a job said last: the last error of ours, if there is one."""
    lines = [line.strip() for line in log.read_text().splitlines()[-40:] if line.strip()]
    ours = [line for line in lines if ": error: " in line]
    return (ours or lines or ["it said nothing"])[-1]


def failed_rows(report: dict[str, Any]) -> list[Row]:
    """Return the row of a run that did not end well; none if it did."""
    return [{FAILED: report[FAILED]}] if FAILED in report else []
