"""What a run goes on from: a checkpoint, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nn.checkpoints.folder import Folder, InUse
from nn.checkpoints.keeper import Keeper
from nn.checkpoints.state import Checkpoint, Story, digest, digest_of_data
from nn.checkpoints.writer import Writer
from nn.console import Console
from nn.network import Network
from nn.options import STOP, Options
from nn.plan import Plan, files
from nn.problem import Problem
from nn.progress import Progress
from pyrt.driver import Driver
from pyrt.errors import UserError
from pyrt.exchange import CHOICES
from pyrt.job import Job
from pyrt.phases import Phases


@dataclass(frozen=True)
class Past:
    """The same on every rank; rank 0 alone has the folder."""

    job: Job
    folder: Folder | None = None
    checkpoint: Checkpoint | None = None
    data: str = ""
    """Digest of the training and validation data, on rank 0, where checkpoints are kept."""
    initial: str = ""
    """Digest of the parameters of --init at step 0, on rank 0, where checkpoints are kept."""

    @property
    def story(self) -> Story | None:
        return self.checkpoint.story if self.checkpoint is not None else None

    @property
    def progress(self) -> Progress:
        return self.story.progress if self.story is not None else Progress()

    @property
    def parameters(self) -> dict[str, np.ndarray] | None:
        """Whole ones; None at the start of a run."""
        return self.checkpoint.parameters if self.checkpoint is not None else None

    @property
    def velocity(self) -> dict[str, np.ndarray]:
        """Of the parameters; empty at the start of a run."""
        return self.checkpoint.velocity if self.checkpoint is not None else {}

    def of(self, problem: Problem) -> Past:
        """The past of this run. Collective; UserError on all ranks where it is not its own."""
        data, options, schedule = "", problem.options, problem.schedule
        with self.job.together():
            if self.folder is not None:
                data = digest_of_data(problem.dataset, schedule.used, schedule.available)
                if self.checkpoint is not None:
                    self.checkpoint.story.require_fits(options, schedule, data)
                    self.checkpoint.require_arrays(problem.network, options.dtype, options.momentum > 0)
        return replace(self, data=data)

    def begun_at(self, initial: Mapping[str, np.ndarray], options: Options) -> Past:
        """Of a run whose initial parameters these are. Collective; UserError on all ranks where --check would
        begin at others than those of the run that it goes on from."""
        found = ""
        with self.job.together():
            if self.folder is not None:
                if options.init is not None and (self.story is None or options.check):
                    found = digest(initial.values())
                if self.story is not None:
                    if options.check:
                        self.story.require_start(found)
                    found = self.story.initial
        return replace(self, initial=found)

    def exchange(self, options: Options, driver: Driver) -> str:
        """The exchange that was asked for, or chosen before in the same place. Collective."""
        if self.story is None or options.exchange != "auto" or not self._chose_here("exchange", driver):
            return options.exchange
        before = self.story.environment.get("exchange")
        same_nodes = self.story.options.get("ranks_per_node") == options.ranks_per_node
        return before if before in CHOICES and same_nodes else options.exchange

    def plan(self, network: Network, driver: Driver) -> Plan | None:
        """The plan that was chosen before in the same place. Collective."""
        if self.story is None or not self._chose_here("plan", driver):
            return None
        with self.job.together():
            plan = files.parsed(self.story.plan, "--resume: the checkpoint's plan")
            plan.require_fits(network, self.job.size)
        return plan

    def _chose_here(self, option: str, driver: Driver) -> bool:
        """Whether what a measurement has chosen before was measured on as many ranks of such devices."""
        assert self.story is not None
        comm = self.job.comm
        devices, nodes = comm.allgather(driver.device_name), comm.allreduce(int(self.job.node.rank == 0))
        return comm.size > 1 and self.story.is_of(comm.size, nodes, devices) and self.story.chose(option)

    def keeper(self, options: Options, every: int, console: Console, phases: Phases) -> Keeper | None:
        """Who keeps checkpoints of the run, if any are to be kept. Collective."""
        if options.checkpoint is None:
            return None
        writer = Writer(self.folder) if self.folder is not None else None
        start, errors = self.progress.step, options.checkpoint_errors
        return Keeper(self.job, writer, every, errors, start, console, phases)

    def close(self) -> None:
        """The run is over: another one may keep its checkpoints in the folder."""
        if self.folder is not None:
            self.folder.close()


def open_past(path: Path, options: Options, job: Job, warn: Callable[[str], None]) -> Past:
    """Find what there is to go on from in that folder, which is this run's alone until the past is closed.

    Collective; UserError on all ranks where none can be kept. With --memory nothing there is changed.
    """
    folder, checkpoint = None, None
    with ExitStack() as opened:
        with job.together():
            if job.rank == 0:
                folder = opened.enter_context(closing(Folder(path, options.keep)))
                folder.require_readable()
                if not options.memory:
                    _prepare(folder, options, warn)
                if not options.resume:
                    folder.require_unused()
                checkpoint = folder.newest(warn) if options.resume else None
        past = Past(job, folder, job.comm.bcast(checkpoint))
        opened.pop_all()
    return past


def _prepare(folder: Folder, options: Options, warn: Callable[[str], None]) -> None:
    try:
        folder.prepare()
    except InUse:
        raise
    except UserError as error:
        if options.checkpoint_errors == STOP:
            raise
        warn(f"{error}; training goes on")
