"""What a run goes on from: a checkpoint, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from nn.batches import split
from nn.checkpoints.folder import Folder
from nn.checkpoints.keeper import Keeper
from nn.checkpoints.state import Story, digest
from nn.checkpoints.writer import Writer
from nn.console import Console
from nn.data import Dataset
from nn.options import Options
from nn.plan import Plan, files
from nn.progress import Progress
from pyrt.driver import Driver
from pyrt.job import Job


@dataclass(frozen=True)
class Past:
    """The same on every rank; rank 0 alone has the folder."""

    job: Job
    folder: Folder | None = None
    story: Story | None = None
    parameters: dict[str, np.ndarray] | None = None
    velocity: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def progress(self) -> Progress:
        return self.story.progress if self.story is not None else Progress()

    def begin(self, options: Options, dataset: Dataset) -> str:
        """See that this run may go on from it, and say so in the folder; the digest of the training data.
        Collective; UserError on all ranks where it may not."""
        found = ""
        with self.job.together():
            if self.folder is not None:
                found = digest(dataset, split(len(dataset.images), options.val_fraction))
                if self.story is not None:
                    self.story.require_fits(options, found)
                self.folder.begin(options.resume)
        return found

    def exchange(self, options: Options, driver: Driver) -> str:
        """The exchange that was asked for, or chosen before on as many ranks of such devices. Collective."""
        if options.exchange != "auto" or self.story is None or not self._was_here(self.story, driver):
            return options.exchange
        return str(self.story.environment["exchange"])

    def plan(self, driver: Driver) -> Plan | None:
        """The plan of before, if it was for as many ranks on such devices. Collective."""
        if self.story is None or not self._was_here(self.story, driver):
            return None
        return files.parsed(self.story.plan, "--resume")

    def _was_here(self, story: Story, driver: Driver) -> bool:
        devices = self.job.comm.allgather(driver.device_name)
        return self.job.size > 1 and story.is_of(self.job.size, devices)

    def keeper(self, options: Options, every: int, console: Console) -> Keeper | None:
        """Who keeps checkpoints of the run, if any are to be kept. Collective."""
        if options.checkpoint is None:
            return None
        writer = Writer(self.folder) if self.folder is not None else None
        return Keeper(self.job, writer, every, options.checkpoint_errors, self.progress.step, console)


def open_past(options: Options, job: Job, warn: Callable[[str], None]) -> Past:
    """Find what there is to go on from. Collective; UserError on all ranks where none can be kept."""
    if options.checkpoint is None:
        return Past(job)
    folder, checkpoint = None, None
    with job.together():
        if job.rank == 0:
            folder = Folder(options.checkpoint, options.keep)
            folder.prepare()
            checkpoint = folder.newest(warn) if options.resume else None
    found = job.comm.bcast(checkpoint)
    if found is None:
        return Past(job, folder)
    return Past(job, folder, found.story, found.parameters, found.velocity)
