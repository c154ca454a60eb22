"""The options --timeline and --timeline-steps: checks them, and makes the recorder that they ask for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from nn.train.recorded_steps import RecordedSteps, chosen
from pyrt.errors import UserError, shown
from pyrt.job import Job
from pyrt.phases import Phases
from pyrt.timeline import Timeline

if TYPE_CHECKING:  # options are read before most of the program is imported
    from nn.app.options import Options
    from nn.train.trainer import Trainer


def require(path: Path | None, steps: str | None, trains: bool) -> None:
    """Raise UserError for values that make no sense, or for a run that makes no steps."""
    if steps is not None:
        if path is None:
            raise UserError("--timeline-steps: goes with --timeline FILE")
        if not re.fullmatch("[1-9][0-9]{0,14}:[1-9][0-9]{0,14}", steps):
            raise UserError(f"--timeline-steps {shown(steps)}: must be the first and the last step, as 10:14")
        first, last = _read(steps)
        if last < first:
            raise UserError(f"--timeline-steps {shown(steps)}: the last step comes before the first")
    if path is not None and not trains:
        raise UserError("--timeline: records steps, and the run has none: leave it out")


def _read(steps: str) -> tuple[int, int]:
    first, last = map(int, steps.split(":"))
    return first, last


def with_timeline(options: Options, job: Job, phases: Phases) -> Job:
    """Return the job; with --timeline one whose communicators tell a timeline of their calls."""
    if options.timeline is None:
        return job
    phases.timeline = Timeline()
    return phases.timeline.traced_job(job)


def recorded_steps(options: Options, trainer: Trainer, done: int) -> RecordedSteps | None:
    """Return the recorder of the steps to record, after ``done`` steps of the run; None without --timeline.

    Raises UserError, on all ranks, if the run has no such steps.
    """
    runtime = trainer.runtime
    timeline = runtime.phases.timeline
    if options.timeline is None or timeline is None:
        return None
    asked = _read(options.timeline_steps) if options.timeline_steps is not None else None
    steps = chosen(asked, done, trainer.problem.schedule.steps)
    return RecordedSteps(timeline, options.timeline, steps, runtime.job, runtime.streams, runtime.phases)
