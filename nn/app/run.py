"""A whole run in process: device, data, network, what they need, then training or evaluation; its report."""

from __future__ import annotations

import platform
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nn.app.console import Console
from nn.app.load import load, problem_of
from nn.app.memory_table import memory_table
from nn.app.network_of_file import NAMES, options_of_file
from nn.app.options import Options
from nn.app.pipeline import ConsoleWatcher, Pipeline
from nn.app.report import Report, gather_phases, header
from nn.checkpoints.folder import is_own_file
from nn.checkpoints.resume_point import ResumePoint, open_resume_point
from nn.files import onnx, parameters
from nn.files.write import require_writable
from nn.input import Dataset
from nn.parallel import plan_files
from nn.problem.settings import flag
from nn.train.fit import Fitted, largest
from nn.train.prepare import Prepared, gemm_version, prepare, replays_graphs, with_common_gemm
from nn.train.trainer import Trainer
from pyrt.devices import gather_devices, open_device
from pyrt.errors import UserError, shown
from pyrt.job import Job, join
from pyrt.job.consistency import require_alike, sources
from pyrt.job.cores import blas_threads
from pyrt.job.signals import defer_stops
from pyrt.phases import Phases
from pyrt.runtime import Runtime
from pyrt.workers import Early

_PROJECT = Path(__file__).resolve().parents[2]


def run(
    options: Options, job: Job | None = None, phases: Phases | None = None, console: Console | None = None
) -> Report:
    """Do what the options say, on all ranks of the job (default: all of MPI's); silent without a console.

    Collective. Raises UserError, on all ranks, for what cannot be done; Diverged for a loss that is not
    finite.
    """
    job = job or join()
    phases = phases or Phases(time.perf_counter())
    console = console or Console(speaking=False)
    if options.checkpoint is not None:
        defer_stops()
    _require_alike(options, job)
    with console.saying_log(), closing(_open_resume_point(options, job, phases, console)) as resume_point:
        with job.agree():
            if job.rank == 0:
                _require_files(options)
        return _run_from(resume_point, options, job, phases, console)


def _with_network_of_file(options: Options, job: Job) -> Options:
    """Complete the options of --evaluate by what the file of --init tells of its network. Collective."""
    if not options.evaluate or options.init is None:
        return options
    found = None
    with job.agree():
        if job.rank == 0:  # the file may be on this rank's node alone
            given = {name: getattr(options, name) for name in NAMES if name in options.given}
            found = options_of_file(options.init, given)
    told: dict[str, Any] = job.comm.bcast(found)
    if "hidden" in told:
        told["hidden"] = tuple(told["hidden"])
    return replace(options, **told)


def _open_resume_point(options: Options, job: Job, phases: Phases, console: Console) -> ResumePoint:
    """Find the checkpoint to resume from. Collective. With --memory nothing in its folder is changed."""
    if options.checkpoint is None:
        return ResumePoint(job)
    with phases.phase("load checkpoint"):
        return open_resume_point(options, job, console.warn, may_write=not options.memory)


def _run_from(
    resume_point: ResumePoint, options: Options, job: Job, phases: Phases, console: Console
) -> Report:
    """All but what is asked of the options alone. Collective."""
    options = _with_network_of_file(options, job)
    # Read beside the start of the device, which takes longer.
    reading = Early(partial(load, options)) if job.rank == 0 else None
    with phases.phase("start device"):
        device = open_device(options.device, job, options.share_gpus, options.sanitize, options.order_seed)
    for warning in device.warnings:
        console.warn(warning)
    runtime = Runtime(job, device, phases)
    try:
        phases.use_device(device.driver)
        if options.profile:
            phases.use_profile(job.comm.Dup().Barrier)  # no order with the sums to keep
        dataset = _load(reading, runtime, console)
        options = with_common_gemm(options, runtime)
        with job.agree():
            problem = problem_of(options, dataset)
            if options.export is not None and job.rank == 0:
                onnx.require_exportable(options.export, problem.network)
        prepared = prepare(problem, runtime, resume_point)
        report = _run_prepared(prepared, options, runtime, console)
        phases.settle()
    finally:
        with phases.phase("close device"):
            device.driver.close()
    return replace(report, phases=gather_phases(job, phases.times()))


def _run_prepared(prepared: Prepared, options: Options, runtime: Runtime, console: Console) -> Report:
    """Show the memory, or train, or evaluate. Collective."""
    job = runtime.job
    with job.agree():
        if job.rank == 0 and options.save_plan is not None:
            plan_files.save(options.save_plan, prepared.part.plan)
    needs, environment = largest(prepared.memory.needs, job), _environment(prepared, runtime)
    report = Report(options.as_json(), environment, memory=needs)
    if options.memory:
        _show(report, prepared.memory, console)
        with job.agree():
            prepared.memory.require_room(options.placement)
        prepared.ways.close()
        return report
    # NumPy's warnings of overflow would come from every rank: a loss that is not finite says it once.
    with closing(Trainer.of(prepared, runtime)) as trainer, np.errstate(all="ignore"):
        return _run_trainer(trainer, options, report, console)


def _run_trainer(trainer: Trainer, options: Options, report: Report, console: Console) -> Report:
    """Give the trainer its parameters, then train or evaluate. Collective."""
    problem = trainer.problem
    initial = _initial_parameters(options, trainer)
    watcher = ConsoleWatcher(console, problem.schedule.steps, trainer.resumed.progress.step)
    with closing(watcher.bar):
        trainer.start(initial, options.check, watcher)
        for line in report.environment["header"]:
            console.say(line)
        pipeline = Pipeline(options, trainer, trainer.resumed, report, console)
        return pipeline.evaluate() if options.evaluate else pipeline.train()


def _initial_parameters(options: Options, trainer: Trainer) -> dict[str, np.ndarray] | None:
    """The parameters of --init on all ranks; None without it. Collective."""
    if options.init is None:
        return None
    job, values = trainer.runtime.job, None
    with trainer.runtime.phases.phase("train setup"):
        with job.agree():
            if job.rank == 0:  # the file may be on this rank's node alone
                values = parameters.load(options.init, trainer.problem.network, options.dtype)
        found: dict[str, np.ndarray] = job.comm.bcast(values)
    return found


def _require_alike(options: Options, job: Job) -> None:
    if job.size > 1:
        versions = {"Python": platform.python_version(), "NumPy": np.__version__}
        files_of_ours = sources(*(_PROJECT / folder for folder in ("pyrt", "nn", "kernels")))
        require_alike(job, {**versions, **files_of_ours}, "install the same version on all nodes")
        require_alike(job, options.common, "give all ranks the same options")


def _require_files(options: Options) -> None:
    """UserError where a file cannot be written, or nothing here reads or writes its format."""
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


def _load(reading: Early[tuple[Dataset, list[str]]] | None, runtime: Runtime, console: Console) -> Dataset:
    """The data set, read by rank 0 (which alone touches files and the network) and sent to all."""
    dataset = None
    with runtime.phases.phase("load data"), runtime.job.agree():
        if reading is not None:
            dataset, warnings = reading.take()
            for line in warnings:
                console.warn(line)
    with runtime.phases.phase("distribute data"):
        return _broadcast(dataset, runtime.job)


def _broadcast(dataset: Dataset | None, job: Job) -> Dataset:
    """Rank 0's data set on every rank: the description as an object, the arrays as buffers."""
    fields = vars(dataset) if dataset is not None else {}
    arrays = {name: value for name, value in fields.items() if isinstance(value, np.ndarray)}
    description = job.comm.bcast(
        (
            {name: value for name, value in fields.items() if name not in arrays},
            {name: (array.shape, array.dtype) for name, array in arrays.items()},
        )
    )
    received: dict[str, Any] = {}
    for name, (shape, dtype) in description[1].items():
        received[name] = arrays[name] if job.rank == 0 else np.empty(shape, dtype)
        job.comm.Bcast(received[name].reshape(-1).view(np.uint8))
    return Dataset(**description[0], **received)


def _environment(prepared: Prepared, runtime: Runtime) -> dict[str, Any]:
    """Collect what the run uses, and the lines that say so. Collective."""
    problem, part, ways = prepared.problem, prepared.part, prepared.ways
    driver, job, settings, network = runtime.driver, runtime.job, problem.settings, problem.network
    devices = gather_devices(driver, job)
    nodes = job.comm.allreduce(job.node.rank == 0)
    environment = {
        "ranks": job.size,
        "nodes": int(nodes),
        "device": driver.name,
        "devices": [name for _, name in devices],
        "device_counts": dict(Counter(name for _, name in dict.fromkeys(devices))),
        "device_why": runtime.device.why,
        "mpi": job.library,
        "blas_threads": blas_threads(),
        "plan": str(part.plan),
        "exchange": ways.all.name,
        "exchange_why": ways.all.why,
        "placement": prepared.memory.placement,
        "graphs": replays_graphs(settings, driver),
        "gemm": gemm_version(settings, driver) if driver.has_kernels else "numpy",
        "network": str(network),
        "parameters": network.parameter_count,
        "data": problem.dataset.name,
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    return {**environment, "header": header(environment, problem)}


def _show(report: Report, memory: Fitted, console: Console) -> None:
    """Print what --memory is for."""
    assert report.memory is not None
    for line in report.environment["header"]:
        console.say(line)
    table = memory_table(report.memory, console.width)
    console.tell(f"\nmemory of rank {report.memory.rank}, of those that need most\n\n{table}\n")
    for pool in memory.pools:
        console.tell(pool.said())
