"""Train a fully connected network on many GPUs: mpirun -n 4 python train.py --hidden 512 --batch 3000

The story of a run: start the job, read the options, train (nn/app/run.py), say what came out.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING

from pyrt.job import Job, run
from pyrt.job.process_times import launch_start, process_start
from pyrt.phases import Phases

if TYPE_CHECKING:  # at run time only once MPI has started, see main
    from nn.app.console import Console
    from nn.app.report import Report


def main(job: Job) -> int:
    """Exit code of one rank: 0, or 1 where the check failed."""
    phases = Phases(launch_start())
    phases.charge("start mpirun", process_start())
    phases.charge("start Python and MPI", time.perf_counter())
    with phases.phase("import packages"):
        # Only now: NumPy's BLAS takes the number of threads that the job has set.
        from nn.app.command_line import parse
        from nn.files.write import STDOUT
        from pyrt.devices import wake
    with contextlib.ExitStack() as stack:
        if job.rank > 0:  # only rank 0 prints
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
        with job.agree():
            options = parse(sys.argv[1:])
        if STDOUT in options.written.values() and job.rank == 0:
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))  # what the run says
        with phases.phase("import packages"):
            wake(options.device)  # CUDA starts beside the imports
            from nn.app.console import Console
            from nn.app.run import run as train
        console = Console(speaking=job.rank == 0, quiet=options.quiet)
        report = train(options, job, phases, console)
        with job.agree():
            if job.rank == 0:
                if not options.memory:
                    conclude(report, console)
                if options.json is not None:
                    report.write_json(options.json)
    return 0 if report.passed else 1


def conclude(report: Report, console: Console) -> None:
    """Print the results, then where the time went."""
    from nn.app.report import phase_table

    if report.check is not None:
        show = console.say if report.check.passed else console.tell
        show(f"\n{report.check}")
    console.say(f"\n{phase_table(report.phases, console.width)}\n")
    if report.test is not None:
        if report.options["evaluate"]:
            console.say(report.test.table())
        console.tell(f"test precision {report.test.precision:.4f}")


if __name__ == "__main__":
    run(main)
