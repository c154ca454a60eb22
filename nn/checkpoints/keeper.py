"""When checkpoints are made: every so many steps, at the end, and where the job is asked to stop."""

from __future__ import annotations

from collections.abc import Callable

from nn.checkpoints.folder import FINISHED, PREEMPTED
from nn.checkpoints.state import Checkpoint
from nn.checkpoints.stopping import Stopping
from nn.checkpoints.writer import Writer
from nn.console import Console
from nn.options import STOP, WARN
from nn.progress import Progress
from pyrt.errors import UserError
from pyrt.job import Job

Snapshot = Callable[[Progress], Checkpoint | None]
"""A checkpoint of now on rank 0, None on the others. Collective."""


class Keeper:
    """Of a run, on every rank; rank 0 has the writer. All calls are collective, at the same steps."""

    def __init__(
        self, job: Job, writer: Writer | None, every: int, errors: str, start: int, console: Console
    ) -> None:
        """``every`` steps; the run begins after ``start`` of them."""
        self.every = every
        self.is_preempted = False
        self._job, self._writer, self._errors, self._console = job, writer, errors, console
        self._stopping = Stopping(job, start)
        self._kept = start
        self._snapshot: Snapshot = lambda progress: None

    def use(self, snapshot: Snapshot) -> None:
        """What makes checkpoints from here on."""
        self._snapshot = snapshot

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint is made after so many steps; also where the run is to stop then."""
        if self._stopping.is_agreed(step):
            self.is_preempted = True
        return self.is_preempted or step % self.every == 0

    def keep(self, progress: Progress) -> None:
        """A checkpoint of now is written from here on. UserError, on all ranks, where the one before could
        not be written and that stops the run."""
        self._settle()
        checkpoint = self._snapshot(progress)
        self._kept = progress.step
        if self._writer is not None and checkpoint is not None:
            self._writer.start(checkpoint)

    def end(self, progress: Progress) -> None:
        """The run is over, or stops: its last checkpoint is on the disk, and state.json says how it ended."""
        if progress.step != self._kept:
            self.keep(progress)
        self._settle()
        error = ""
        if self._writer is not None:
            try:
                self._writer.folder.end(PREEMPTED if self.is_preempted else FINISHED)
            except UserError as failed:
                error = str(failed)
        self._tell(error)

    def close(self) -> None:
        """After `end`, or an exception."""
        if self._writer is not None:
            self._writer.close()

    def _settle(self) -> None:
        """What was started is written, or told."""
        self._tell(self._writer.wait() if self._writer is not None else "")

    def _tell(self, error: str) -> None:
        """Of rank 0: what could not be written, if anything."""
        message: str = self._job.comm.bcast(error)
        if not message:
            return
        if self._errors == STOP:
            with self._job.together():
                raise UserError(f"{message} (--checkpoint-errors {WARN} goes on without)")
        self._console.say(f"warning: {message}; training goes on")
