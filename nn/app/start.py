"""Prepares a run: compares the ranks, finds the checkpoint to resume from, tests files, opens the device."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from nn.app.console import Console
from nn.app.options import Options
from nn.checkpoints import resume_point
from nn.checkpoints.folder import is_own_file
from nn.checkpoints.resume_point import ResumePoint
from nn.files import onnx, parameters
from nn.files.write import require_writable
from nn.problem.option import flag
from pyrt.devices import open_device
from pyrt.errors import UserError, shown
from pyrt.job import AgreedError, Job
from pyrt.job.consistency import require_alike as require_alike_on_ranks
from pyrt.job.consistency import sources
from pyrt.phases import Phases
from pyrt.runtime import Runtime

_PROJECT = Path(__file__).resolve().parents[2]


def require_alike(options: Options, job: Job) -> None:
    """Raise UserError on all ranks unless they have the same options and versions. Collective."""
    if job.size > 1:
        versions = {"Python": platform.python_version(), "NumPy": np.__version__}
        files_of_ours = sources(*(_PROJECT / place for place in ("train.py", "pyrt", "nn", "kernels")))
        require_alike_on_ranks(job, {**versions, **files_of_ours}, "install the same version on all nodes")
        require_alike_on_ranks(job, options.common, "give all ranks the same options")


def require_ranks(options: Options, job: Job) -> None:
    """Raise UserError on all ranks for options that go with other numbers of ranks. Collective."""
    if options.stats is not None and options.stats is not True and options.stats >= job.size:
        raise AgreedError(f"--stats {options.stats}: the last rank is {job.size - 1}; without N: all ranks")
    if options.latency and job.size > 1:
        raise AgreedError(f"--latency: times a network on one rank, and there are {job.size}: start one")
    if options.timeline is not None and options.exchange == "server" and job.size > 1:
        raise AgreedError("--timeline: records the steps of all ranks, and servers make none: leave it out")


def open_resume_point(
    options: Options, job: Job, phases: Phases, console: Console
) -> AbstractContextManager[ResumePoint]:
    """Find the checkpoint to resume from. Collective. With --memory nothing in its folder is changed."""
    if options.checkpoint is None:
        return closing(ResumePoint(job))
    with phases.phase("load checkpoint"):
        return closing(
            resume_point.open_resume_point(options, job, console.warn, may_write=not options.memory)
        )


def require_files(options: Options, job: Job) -> None:
    """Raise UserError on all ranks where a file cannot be written, or its format is unknown. Collective."""
    with job.agree():
        if job.rank == 0:
            _require_files(options)


def _require_files(options: Options) -> None:
    for name in ("init", "save"):
        path = getattr(options, name)
        if path is not None:
            parameters.require_format(flag(name), path)
    if options.export is not None:
        onnx.require_installed(options.export)
    for name, path in options.written.items():
        option = flag(name)
        if options.checkpoint is not None and is_own_file(options.checkpoint, path):
            raise UserError(f"{option} {shown(path)}: belongs to --checkpoint: name another place")
        require_writable(option, path)


@contextmanager
def open_runtime(options: Options, job: Job, phases: Phases, console: Console) -> Iterator[Runtime]:
    """Open this rank's device, and close it on the way out. Collective."""
    with phases.phase("start device"):
        device = open_device(
            options.device,
            job,
            options.share_gpus,
            options.sanitize,
            options.order_seed,
            options.asynchrony.servers,
        )
    for warning in device.warnings:
        console.warn(warning)
    if phases.timeline is not None:
        device = replace(device, driver=phases.timeline.traced_driver(device.driver))
    try:
        phases.use_device(device.driver)
        if options.profile:
            # With parameter servers ranks make as many steps as they come to: they have no common ones.
            barrier = (lambda: None) if options.asynchrony.servers else job.comm.Dup().Barrier
            phases.use_profile(barrier)  # no order with the sums to keep
        yield Runtime(job, device, phases)
        phases.settle()
    finally:
        with phases.phase("close device"):
            device.driver.close()
