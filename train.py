"""Train a network on many GPUs: mpirun -n 4 python train.py --hidden 512 --batch 3000

`main` reads the options and says what came out. `train` is the story of a run: find what it resumes from,
open the device, read the data, make the network and its optimiser, decide how ranks share the work, train.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pyrt.job import Job, join, run
from pyrt.job.process_times import launch_start, process_start
from pyrt.job.signals import defer_stops
from pyrt.phases import Phases

if TYPE_CHECKING:  # imported once MPI has started: NumPy's BLAS fixes its threads at import
    from nn.app.console import Console
    from nn.app.load import Reading
    from nn.app.options import Options
    from nn.app.report import Report
    from nn.checkpoints.resume_point import ResumePoint
    from nn.train.fork_join import Fork
    from pyrt.runtime import Runtime


def main(job: Job) -> int:
    """Run the command line; return the exit code of one rank: 0, or 1 where the check failed."""
    phases = Phases(launch_start())
    phases.charge("start mpirun", process_start())
    phases.charge("start Python and MPI", time.perf_counter())
    with phases.phase("import packages"):
        from nn.app.command_line import parse
        from nn.files.write import STDOUT
        from pyrt.devices import wake
    with contextlib.ExitStack() as stack:
        if job.rank > 0:  # only rank 0 prints
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
        with job.agree():
            options = parse(sys.argv[1:])
        if options.elastic:
            job = job.surviving("--elastic")
        if STDOUT in options.written.values() and job.rank == 0:
            # Standard output gets a result; messages go to standard error.
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        with phases.phase("import packages"):
            wake(options.device)  # CUDA starts beside the imports
            from nn.app import load, pipeline, start  # noqa: F401 (they import the rest)
            from nn.app.console import Console
        console = Console(speaking=job.rank == 0, quiet=options.quiet)
        report = train(options, job, phases, console)
        with job.agree():
            if job.rank == 0:
                if not options.memory:
                    conclude(report, console)
                if options.json is not None:
                    report.write_json(options.json)
    return 0 if report.passed else 1


def train(
    options: Options, job: Job | None = None, phases: Phases | None = None, console: Console | None = None
) -> Report:
    """Do what the options say, on all ranks of the job (default: all of MPI's); silent without a console.

    Collective. Raises UserError, on all ranks, for what cannot be done; Diverged for a loss that is not
    finite.
    """
    from nn.app import load, start
    from nn.app.console import Console
    from nn.app.network_of_file import with_network_of_file
    from nn.app.recording import with_timeline
    from nn.app.report import gather_phases
    from nn.parallel.plan import FORK_JOIN
    from nn.train import fork_join

    job, phases = job or join(), phases or Phases(time.perf_counter())
    console = console or Console(speaking=False)
    job = with_timeline(options, job, phases)
    if options.checkpoint is not None:
        defer_stops()  # a signal now asks for a last checkpoint
    start.require_alike(options, job)
    start.require_ranks(options, job)
    forks = options.plan == FORK_JOIN and job.size > 1
    of_training = job.alone() if forks else job
    with console.saying_log(), start.open_resume_point(options, of_training, phases, console) as resume_point:
        start.require_files(options, job)
        options = with_network_of_file(options, job)
        reading = load.begin(options, job)
        with start.open_runtime(options, job, phases, console) as runtime:
            work = partial(on_devices, options, reading, resume_point, console)
            # In a fork and join rank 0 works, and the others help.
            report = fork_join.run(options, runtime, work) if forks else work(runtime)
    return replace(report, phases=gather_phases(job, phases.times()))


def on_devices(
    options: Options,
    reading: Reading | None,
    resume_point: ResumePoint,
    console: Console,
    runtime: Runtime,
    fork: Fork | None = None,
) -> Report:
    """Train or evaluate on the devices that are open; return the report but for its phases. Collective."""
    from nn.app import load, pipeline
    from nn.app.memory_table import show_memory
    from nn.app.report import report_of
    from nn.train.prepare import prepare, with_common_versions
    from nn.train.trainer import Trainer

    data = load.finish(reading, options, runtime, console)
    options = with_common_versions(load.with_layers(options, data, runtime.job), runtime)
    # The network, its optimiser and its batches; then exchange, plan, place of the data, memory.
    problem = load.make_problem(options, data, runtime.job)
    problem = load.with_light_weights(options, problem, runtime)
    prepared = prepare(problem, runtime, resume_point, fork)
    pipeline.save_plan(options, prepared.shard.plan, runtime.job)
    report = report_of(options, prepared, runtime)
    if options.memory:
        show_memory(report, prepared, console, runtime.job)
        return report
    with Trainer.of(prepared, runtime) as trainer:
        return pipeline.Pipeline(options, trainer, report, console).run()


def conclude(report: Report, console: Console) -> None:
    """Print the results, then where the time went."""
    from nn.app.report import phase_table, stats_table
    from nn.train.latency import latency_table

    if report.check is not None:
        show = console.say if report.check.passed else console.tell
        show(f"\n{report.check}")
    console.say(f"\n{phase_table(report.phases, console.width)}\n")
    stats = report.options["stats"]
    if stats is not None:
        rank = None if stats is True else stats
        console.say(f"{stats_table(report.phases, rank, console.width)}\n")
    if report.test is not None:
        if report.options["evaluate"]:
            console.say(report.test.table())
        if report.latency:
            console.say(f"\n{latency_table(report.latency, console.width)}\n")
        console.tell(f"test precision {report.test.precision:.4f}")


if __name__ == "__main__":
    run(main)
