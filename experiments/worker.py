"""What the ranks of a study's job run: its points, one after another (started by `experiments.jobs`).

    mpirun -n P python -m experiments.worker MODULE POINTS.json FOLDER

Rank 0 prints the rows of each point as a line of JSON; what else is printed goes to the error output.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

from experiments.study import FAILED, Measuring, Point, Row
from pyrt.job import AgreedError, Job, run


def rows_of(study: Measuring, point: Point, job: Job, folder: Path) -> list[Row]:
    """Measure one point; if all ranks agree that it cannot be done, return a row that says so. Collective."""
    try:
        return study.measure(point, job, folder)
    except AgreedError as error:
        return [{FAILED: str(error)}]


def main(job: Job) -> int:
    # Only now: NumPy, which a study loads, takes the number of threads that the job has set.
    study = importlib.import_module(sys.argv[1])
    points, folder = json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[3])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for point in points:
        rows = rows_of(study, point, job, folder)
        if job.rank == 0:
            print(json.dumps(rows), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    run(main)
