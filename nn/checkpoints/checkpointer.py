"""When checkpoints are made: every so many steps, at the end, and where the job is asked to stop."""

from __future__ import annotations

from collections.abc import Callable

from nn.checkpoints.folder import FINISHED, PREEMPTED, Folder
from nn.checkpoints.metadata import Checkpoint
from nn.checkpoints.stopping import Stopping
from nn.checkpoints.writer import Writer
from nn.problem.progress import Progress
from nn.problem.settings import STOP, WARN
from pyrt.errors import UserError
from pyrt.job import Job
from pyrt.phases import Phases

SNAPSHOT, WAIT = "checkpoint snapshot", "wait for checkpoint"
"""Phases of what training waits for: parameters and velocities on their way to rank 0's host memory; the
disk, where that has not taken the checkpoint before, or is all there is left to wait for."""

Snapshot = Callable[[Progress], Checkpoint | None]
"""A checkpoint of now on rank 0, None on the others. Collective."""


class Checkpointer:
    """Of a run, on every rank; rank 0 has the writer. All calls but `close` are collective, at the same
    steps, and raise UserError on all ranks where something cannot be written and that stops the run."""

    def __init__(
        self,
        job: Job,
        writer: Writer | None,
        every: int,
        errors: str,
        start: int,
        warn: Callable[[str], None],
        phases: Phases,
    ) -> None:
        """``every`` steps; the run begins after ``start`` of them."""
        self.is_preempted = self.is_over = False
        self.written = start
        """Steps of which a checkpoint is known to be on the disk."""
        self._job, self._writer, self._errors, self._warn = job, writer, errors, warn
        self._every = every
        self._stopping = Stopping(job, start)
        self._kept = start
        self._snapshot: Snapshot = lambda progress: None
        self._snapping, self._waiting = phases.phase(SNAPSHOT), phases.phase(WAIT)

    def begin(self, snapshot: Snapshot) -> None:
        """Begin the run; ``snapshot`` makes its checkpoints."""
        self._snapshot = snapshot
        self._change(Folder.begin)

    def is_due(self, step: int, done: int) -> bool:
        """Return whether to make a checkpoint after so many steps, of which ``done`` are known to be over.

        A run that is to stop then makes one, too.
        """
        if self._stopping.is_agreed(step, done):
            self.is_preempted = True
        return self.is_preempted or step % self._every == 0

    def is_due_where_all_meet(self, step: int) -> bool:
        """Return whether a checkpoint is due after so many steps, where all ranks have met. Collective."""
        if self._stopping.is_agreed_now():
            self.is_preempted = True
        return self.is_preempted or step % self._every == 0

    def keep(self, progress: Progress) -> None:
        """Start to write a checkpoint of now, once the one before it is written."""
        self._settle()
        with self._snapping:
            checkpoint = self._snapshot(progress)
        self._kept = progress.step
        if self._writer is not None and checkpoint is not None:
            self._writer.start(checkpoint)

    def end(self, progress: Progress) -> None:
        """Write the checkpoint of the last step, and wait for it; record a preempted run as such."""
        if progress.step != self._kept:
            self.keep(progress)
        self._settle()
        if self.is_preempted:
            self._end_as(PREEMPTED)

    def finish(self) -> None:
        """Record that the run is finished."""
        self._end_as(FINISHED)

    def close(self) -> None:
        """Close it after `finish` or an exception."""
        self._stopping.close()
        if self._writer is not None:
            self._writer.close()

    def _end_as(self, state: str) -> None:
        self._change(lambda folder: folder.end(state))
        self.is_over = True

    def _settle(self) -> None:
        """Wait until the snapshot is written, or its failure reported."""
        with self._waiting:
            error = self._writer.wait() if self._writer is not None else ""
            self._job.wait_for_all()
            if self._agree(error):
                self.written = self._kept

    def _change(self, change: Callable[[Folder], None]) -> None:
        """Change the folder, on rank 0."""
        error = ""
        if self._writer is not None:
            try:
                change(self._writer.folder)
            except UserError as failed:
                error = str(failed)
        self._agree(error)

    def _agree(self, error: str) -> bool:
        """Warn of rank 0's error, or raise UserError to stop; return whether there is none."""
        message: str = self._job.comm.bcast(error)
        if message and self._errors == STOP:
            with self._job.agree():
                raise UserError(f"{message} (--checkpoint-errors {WARN} goes on without)")
        if message:
            self._warn(f"{message}; training goes on")
        return not message
