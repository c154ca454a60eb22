"""All studies, or some, and the page: python3 -m experiments [STUDY ..]

A study that was stopped goes on where it was, if machine and code are the same; what was measured before
stays on the page. To measure anew, remove its folder.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bench.program import start
from experiments import STUDIES
from experiments.progress import Progress
from experiments.study import FAILED, FULL, MOST_GPUS, SIZES, SMALL, Section, Setup, Study
from pyrt.arguments import Parser
from pyrt.errors import UserError

if TYPE_CHECKING:
    from experiments.page import Part
    from experiments.results import Results


def parser() -> argparse.ArgumentParser:
    parser = Parser("experiments", __doc__)
    parser.add_argument("studies", nargs="*", metavar="STUDY", help=f"{', '.join(STUDIES)} (default: all)")
    parser.add_argument(
        "--size", choices=SIZES, help=f"(default: {FULL} where there is a GPU, else {SMALL}, on the CPU)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("report"), metavar="FOLDER", help="(default: report)"
    )
    parser.add_argument(
        "--draw", action="store_true", help="measure nothing: make the page anew from what was measured"
    )
    return parser


def study_of(name: str) -> Study:
    return cast(Study, importlib.import_module(f"experiments.{name}"))


def measure(name: str, study: Study, setup: Setup, results: Results) -> None:
    """Measure all points that are not there yet; keep what is there, whatever happens."""
    points, started = study.points(setup), time.perf_counter()
    missing = [point for point in points if not results.has(point)]
    kept = len(points) - len(missing)
    with Progress(name, missing, kept) as progress:
        for point, rows in study.take(missing, setup):
            results.add(point, rows)
            progress.passed()
    there = f", {kept} were there" if kept else ""
    print(f"{name:12s} {len(missing)} points in {time.perf_counter() - started:.0f} s{there}", flush=True)


def part_of(name: str, study: Study, folder: Path) -> Part:
    """Draw the study's section from its measurements; without any, the section only says so."""
    from experiments.page import Part
    from experiments.results import Results

    results, section = Results(folder, study.COLUMNS), Section()
    if not results.about:
        return Part(name, study.TITLE, study.QUESTION, section, ["it was not run"], {}, folder)
    setup, frame = Setup(**results.about["setup"], folder=folder), results.frame()
    failed = frame[frame[FAILED].notna()]
    missing = [
        *study.missing(setup),
        *(f"{len(rows)} of its points: {why}" for why, rows in failed.groupby(FAILED)),
    ]
    section = study.section(frame[frame[FAILED].isna()], setup)
    return Part(name, study.TITLE, study.QUESTION, section, missing, results.about["machine"], folder)


def run(name: str, study: Study, folder: Path, size: str | None) -> None:
    """Measure what is not there yet."""
    from experiments import machine
    from experiments.results import Results

    gpus = min(machine.gpus(), MOST_GPUS)
    there_is: dict[str, Any] = {
        "size": size or (FULL if gpus else SMALL),
        "gpus": gpus,
        "cores": machine.cores(),
        "emulates": machine.emulates(),
    }
    results = Results(folder, study.COLUMNS)
    results.begin({"machine": machine.about(), "setup": there_is})
    measure(name, study, Setup(**there_is, folder=folder), results)


def main(arguments: Sequence[str]) -> int:
    wanted = parser().parse_args(arguments)
    for name in wanted.studies:
        if name not in STUDIES:
            raise UserError(f"no study is called {name}: there are {', '.join(STUDIES)}")
    try:
        from experiments import page
    except ImportError as error:
        raise UserError(f"{error.name} is not installed: `make report` installs what it needs") from None
    out = wanted.out.resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through what ends the job that measures
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in () if wanted.draw else wanted.studies or STUDIES:
            run(name, study_of(name), out / name, wanted.size)
    except BrokenPipeError:  # who read the output has left
        raise
    except OSError as error:
        raise UserError(f"--out {wanted.out}: {error.strerror}: name another place") from None
    except KeyboardInterrupt:
        print("\ninterrupted: the same command goes on from here", file=sys.stderr)
        raise
    parts = []
    for name in STUDIES:
        print(f"drawing      {name}", flush=True)
        parts.append(part_of(name, study_of(name), out / name))
    for part in parts:
        if part.machine:
            page.write_markdown(part)
    page.write(out / "index.html", parts)
    print(f"the page is {wanted.out / 'index.html'}")
    return 0


if __name__ == "__main__":
    start("experiments", main)
