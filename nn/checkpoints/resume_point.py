"""What a run goes on from: a checkpoint, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

import numpy as np

from nn.checkpoints.checkpointer import Checkpointer
from nn.checkpoints.folder import Folder, InUse
from nn.checkpoints.metadata import Checkpoint, Metadata, digest_of_data
from nn.checkpoints.writer import Writer
from nn.files.digest import digest
from nn.model.network import Network
from nn.parallel import plan_files
from nn.parallel.plan import Plan
from nn.problem.problem import Problem
from nn.problem.progress import Progress
from nn.problem.settings import STOP, Settings
from pyrt.driver import Driver
from pyrt.errors import UserError
from pyrt.exchange.registry import choices
from pyrt.job import Job
from pyrt.phases import Phases


@dataclass(frozen=True)
class ResumePoint:
    """The same on every rank; rank 0 alone has the folder."""

    job: Job
    folder: Folder | None = None
    checkpoint: Checkpoint | None = None
    data: str = ""
    """Digest of the training and validation data, on rank 0, where checkpoints are kept."""
    initial: str = ""
    """Digest of the parameters of --init at step 0, on rank 0, where checkpoints are kept."""

    @property
    def metadata(self) -> Metadata | None:
        return self.checkpoint.metadata if self.checkpoint is not None else None

    @property
    def progress(self) -> Progress:
        return self.metadata.progress if self.metadata is not None else Progress()

    @property
    def parameters(self) -> dict[str, np.ndarray] | None:
        """Whole ones; None at the start of a run."""
        return self.checkpoint.parameters if self.checkpoint is not None else None

    @property
    def states(self) -> dict[str, dict[str, np.ndarray]]:
        """What the optimiser keeps of whole parameters; empty at the start of a run."""
        return self.checkpoint.states if self.checkpoint is not None else {}

    def of(self, problem: Problem) -> ResumePoint:
        """Complete it by the digest of a run's data.

        Collective. Raises UserError on all ranks if the checkpoint does not fit.
        """
        data, schedule, dtype = "", problem.schedule, problem.settings.dtype
        with self.job.agree():
            if self.folder is not None:
                data = problem.dataset.digest or digest_of_data(
                    problem.dataset, schedule.used, schedule.available
                )
                if self.checkpoint is not None:
                    self.checkpoint.metadata.require_fits(
                        problem.description, problem.optimiser, schedule, data
                    )
                    self.checkpoint.require_arrays(problem.network, dtype, problem.optimiser.states)
        return replace(self, data=data)

    def begun_at(self, initial: Mapping[str, np.ndarray] | None, checks: bool) -> ResumePoint:
        """Complete it by a run's initial parameters; None if they were drawn from the seed.

        Collective; UserError on all ranks where a run that ``checks`` would train the reference from others
        than those of the run that it goes on from.
        """
        found = ""
        with self.job.agree():
            if self.folder is not None:
                if initial is not None and (self.metadata is None or checks):
                    found = digest(initial.values())
                if self.metadata is not None:
                    if checks:
                        self.metadata.require_start(found)
                    found = self.metadata.initial
        return replace(self, initial=found)

    def exchange(self, settings: Settings, driver: Driver) -> str:
        """Return the exchange asked for or, for ``auto``, chosen before in the same place. Collective."""
        if self.metadata is None or settings.exchange != "auto" or not self._chose_here("exchange", driver):
            return settings.exchange
        before = self.metadata.environment.get("exchange")
        same_nodes = self.metadata.options.get("ranks_per_node") == settings.ranks_per_node
        return before if before in choices() and same_nodes else settings.exchange

    def plan(self, network: Network, driver: Driver) -> Plan | None:
        """Return the plan that was chosen before in the same place, if any. Collective."""
        if self.metadata is None or not self._chose_here("plan", driver):
            return None
        with self.job.agree():
            plan = plan_files.parsed(self.metadata.plan, "--resume: the checkpoint's plan")
            plan.require_fits(network, self.job.size)
        return plan

    def _chose_here(self, option: str, driver: Driver) -> bool:
        """Return whether the checkpoint's run chose this by itself, on as many ranks of the same devices."""
        assert self.metadata is not None
        comm = self.job.comm
        devices, nodes = comm.allgather(driver.device_name), comm.allreduce(int(self.job.node.rank == 0))
        return (
            comm.size > 1 and self.metadata.is_of(comm.size, nodes, devices) and self.metadata.chose(option)
        )

    def checkpointer(
        self, settings: Settings, every: int, warn: Callable[[str], None], phases: Phases
    ) -> Checkpointer | None:
        """Make the run's checkpointer; None if no checkpoints are to be kept. Collective."""
        if settings.checkpoint is None:
            return None
        writer = Writer(self.folder) if self.folder is not None else None
        start, errors = self.progress.step, settings.checkpoint_errors
        return Checkpointer(self.job, writer, every, errors, start, warn, phases)

    def close(self) -> None:
        """Release the folder at the end: another run may keep its checkpoints there."""
        if self.folder is not None:
            self.folder.close()


def open_resume_point(
    settings: Settings, job: Job, warn: Callable[[str], None], may_write: bool = True
) -> ResumePoint:
    """Find what there is to go on from in the folder for checkpoints, if there is one.

    It is this run's alone until the resume point is closed. Collective; UserError on all ranks where none can
    be kept. Nothing there is changed unless it ``may_write``.
    """
    if settings.checkpoint is None:
        return ResumePoint(job)
    folder, checkpoint = None, None
    with ExitStack() as opened:
        with job.agree():
            if job.rank == 0:
                folder = opened.enter_context(closing(Folder(settings.checkpoint, settings.keep)))
                folder.require_readable()
                if may_write:
                    _prepare(folder, settings, warn)
                if not settings.resume:
                    folder.require_unused()
                checkpoint = folder.newest(warn) if settings.resume else None
        found = ResumePoint(job, folder, job.comm.bcast(checkpoint))
        opened.pop_all()
    return found


def _prepare(folder: Folder, settings: Settings, warn: Callable[[str], None]) -> None:
    try:
        folder.prepare()
    except InUse:
        raise
    except UserError as error:
        if settings.checkpoint_errors == STOP:
            raise
        warn(f"{error}; training goes on")
