"""A whole run in process: device, data, network, plan, memory and kernels, then the pipeline; its report."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from nn.ahead import Early
from nn.checkpoints.folder import is_own_file
from nn.checkpoints.past import Past, open_past
from nn.console import Console
from nn.data import Dataset
from nn.files import require_writable
from nn.gemm_versions import common_gemm, fastest_gemm, runs_gemm
from nn.launches import Kernels
from nn.machine import Machine, Ways
from nn.memory import Needs, Pool, fit, largest
from nn.mma import MMA_TERMS
from nn.model import initial_parameters
from nn.options import Options, flag
from nn.pipeline import Pipeline
from nn.plan import Plan, RankPart, files
from nn.plan.choice import AUTO, choose_plan, fastest_plan
from nn.plan.paper import Task
from nn.problem import Problem, load
from nn.report import Report, gather_phases, header
from nn.required import is_apart, required
from nn.setup import set_up
from pyrt.alike import require_alike, sources
from pyrt.cores import blas_threads
from pyrt.devices import Device, gather_devices, open_device
from pyrt.driver import Driver
from pyrt.errors import UserError, shown
from pyrt.exchange.choose import Choice, choose
from pyrt.job import Job, defer_stops, join
from pyrt.kernels import KernelLibrary
from pyrt.phases import Phases

_PROJECT = Path(__file__).resolve().parents[1]


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
    with console.saying_log(), closing(_past(options, job, phases, console)) as past:
        with job.together():
            if job.rank == 0:
                _require_writable_files(options)
        return _run_from(past, options, job, phases, console)


def _past(options: Options, job: Job, phases: Phases, console: Console) -> Past:
    """What the run goes on from. Collective."""
    if options.checkpoint is None:
        return Past(job)
    with phases.phase("load checkpoint"):
        return open_past(options.checkpoint, options, job, console.warn)


def _run_from(past: Past, options: Options, job: Job, phases: Phases, console: Console) -> Report:
    """All but what is asked of the options alone. Collective."""
    # Read beside the start of the device, which takes longer.
    reading = Early(partial(load, options)) if job.rank == 0 else None
    with phases.phase("start device"):
        device = open_device(options.device, job, options.share_gpus, options.sanitize, options.order_seed)
    for warning in device.warnings:
        console.warn(warning)
    try:
        phases.use_device(device.driver)
        if options.profile:
            phases.use_profile(job.comm.Dup().Barrier)  # no order with the sums to keep
        dataset = _load(options, reading, job, phases, console)
        options = _with_common_gemm(options, job, device.driver)
        with job.together():
            _require_gemm(options, device.driver)
            problem = Problem.of(options, dataset)
        past = past.of(problem)
        network, batch = problem.network, problem.schedule.batch
        way = choose(past.exchange(options, device.driver), device.driver, job, options.ranks_per_node)
        task = Task(network, batch, options.dtype, options.momentum > 0, options.gemm, options.math)
        part = _part(options, job, phases, device.driver, way, task, past.plan(network, device.driver))
        ways = Ways.of(way, part)
        with phases.phase("count memory"):
            memory = fit(problem, part, ways, job, device.driver)
            needs = largest(memory.needs, job)
        environment = _environment(problem, job, device, part, ways, memory.placement)
        if options.memory:
            _show(environment, needs, memory.pools, console)
        with job.together():
            memory.require_room(options.placement)
        report = Report(options.as_json(), environment, memory=needs)
        if not options.memory:
            kernels = _kernels(options, job, phases, device.driver, part, dataset.images.dtype, ways)
            machine = Machine.make(job, device.driver, phases, kernels, ways, part, options.dtype, batch)
            # NumPy's warnings of overflow would come from every rank: a loss that is not finite says it once.
            with closing(machine.links), np.errstate(all="ignore"):
                report = _run(problem, part, machine, past, report, console)
        ways.close()
        phases.settle()
    finally:
        with phases.phase("close device"):
            device.driver.close()
    return replace(report, phases=gather_phases(job, phases.times()))


def _require_alike(options: Options, job: Job) -> None:
    if job.size > 1:
        versions = {"Python": platform.python_version(), "NumPy": np.__version__}
        files_of_ours = sources(*(_PROJECT / folder for folder in ("pyrt", "nn", "kernels")))
        require_alike(job, {**versions, **files_of_ours}, "install the same version on all nodes")
        require_alike(job, options.common, "give all ranks the same options")


def _require_writable_files(options: Options) -> None:
    for name, path in options.written.items():
        option = flag(name)
        if options.checkpoint is not None and is_own_file(options.checkpoint, path):
            raise UserError(f"{option} {shown(path)}: belongs to --checkpoint: name another place")
        require_writable(option, path)


def _load(
    options: Options,
    reading: Early[tuple[Dataset, list[str]]] | None,
    job: Job,
    phases: Phases,
    console: Console,
) -> Dataset:
    """The data set, read by rank 0 (which alone touches files and the network) and sent to all."""
    dataset = None
    with phases.phase("load data"), job.together():
        if reading is not None:
            dataset, warnings = reading.take()
            for line in warnings:
                console.warn(line)
    with phases.phase("distribute data"):
        return _broadcast(dataset, job)


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


def _part(
    options: Options,
    job: Job,
    phases: Phases,
    driver: Driver,
    way: Choice,
    task: Task,
    chosen: Plan | None,
) -> RankPart:
    """What the plan that was asked for, or ``chosen`` before, or the fastest, gives this rank."""
    plan = chosen
    with job.together():
        if job.rank == 0 and options.plan != AUTO:  # a file may be on this rank's node alone
            plan = choose_plan(options, task.network, job.size)
    if options.plan == AUTO and plan is None:
        with phases.phase("choose plan"):
            plan = fastest_plan(job, driver, way, task)
    with job.together():
        if job.rank == 0 and options.save_plan is not None:
            assert plan is not None
            files.save(options.save_plan, plan)
    return RankPart(job.comm.bcast(plan), task.network, job.rank)


def _environment(
    problem: Problem, job: Job, device: Device, part: RankPart, ways: Ways, placement: str
) -> dict[str, Any]:
    """What the run stands on, and the lines that say so. Collective."""
    driver, options, network = device.driver, problem.options, problem.network
    devices = gather_devices(driver, job)
    nodes = job.comm.allreduce(job.node.rank == 0)
    environment = {
        "ranks": job.size,
        "nodes": int(nodes),
        "device": driver.name,
        "devices": [name for _, name in devices],
        "device_counts": dict(Counter(name for _, name in dict.fromkeys(devices))),
        "device_why": device.why,
        "mpi": job.library,
        "blas_threads": blas_threads(),
        "plan": str(part.plan),
        "exchange": ways.all.name,
        "exchange_why": ways.all.why,
        "placement": placement,
        "graphs": _replays_graphs(options, driver),
        "gemm": _gemm_version(options, driver) if driver.has_kernels else "numpy",
        "network": str(network),
        "parameters": network.parameter_count,
        "data": problem.dataset.name,
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    return {**environment, "header": header(environment, problem)}


def _replays_graphs(options: Options, driver: Driver) -> bool:
    """Under --profile the host waits for the end of every phase."""
    return options.graph and not options.profile and driver.has_kernels


def _show(environment: dict[str, Any], needs: Needs, pools: Sequence[Pool], console: Console) -> None:
    """What --memory is for."""
    for line in environment["header"]:
        console.say(line)
    console.tell(f"\nmemory of rank {needs.rank}, of those that need most\n\n{needs.table(console.width)}\n")
    for pool in pools:
        console.tell(pool.said())


def _kernels(
    options: Options,
    job: Job,
    phases: Phases,
    driver: Driver,
    part: RankPart,
    pixel: DTypeLike,
    ways: Ways,
) -> Kernels | None:
    """The project's kernels, compiled by one rank a node; None where NumPy computes."""
    if not driver.has_kernels:
        return None
    with job.together():
        kernels = Kernels(KernelLibrary(driver), options.dtype, options.gemm, options.math)
    with phases.phase("compile kernels"), job.together():
        if job.node.rank == 0:
            rows, classes = options.batch // job.size, part.network.classes
            apart = not part.plan.is_data or is_apart(kernels, options.hidden, classes, rows, options.profile)
            network = options.activation, options.head, classes, pixel, apart
            exchanges = {(way.name, way.node.size) for way in (ways.all, ways.shard)}
            wanted = [
                required(kernels, *network, *exchange, ways.moves, ways.group.job.size)
                for exchange in exchanges
            ]
            kernels.library.compile([file for files in wanted for file in files])
    return kernels


def _with_common_gemm(options: Options, job: Job, driver: Driver) -> Options:
    """Where ranks have GPUs of different kinds: with the product that all of them run, so that all compute
    alike. Collective."""
    architectures = set(job.comm.allgather(driver.architecture))
    if options.gemm != "auto" or len(architectures) == 1:
        return options
    return replace(options, gemm=common_gemm(options.dtype, architectures))


def _require_gemm(options: Options, driver: Driver) -> None:
    what = f"{driver.name}, {driver.device_name}"
    if options.gemm != "auto" and not driver.has_kernels:
        raise UserError(
            f"--gemm {options.gemm}: needs kernels, and {what}, runs none: use --device cuda or "
            "emulated, or leave it out"
        )
    if driver.has_kernels and not runs_gemm(options.gemm, driver.architecture):
        raise UserError(f"--gemm {options.gemm}: {what}, has no such tensor cores: use --gemm auto")
    version = _gemm_version(options, driver)
    if version == "mma" and driver.has_kernels and options.math not in MMA_TERMS:
        raise UserError(
            f"--math {options.math}: needs --gemm wgmma, and {what}, takes mma for --gemm {options.gemm}: "
            "use --math tf32, or leave it out"
        )
    if options.math != "float32" and (version not in ("mma", "wgmma") or not driver.has_kernels):
        raise UserError(
            f"--math {options.math}: goes with tensor cores, and {what}, takes none for "
            f"--gemm {options.gemm}: leave it out"
        )


def _gemm_version(options: Options, driver: Driver) -> str:
    return options.gemm if options.gemm != "auto" else fastest_gemm(options.dtype, driver.architecture)


def _run(
    problem: Problem, part: RankPart, machine: Machine, past: Past, report: Report, console: Console
) -> Report:
    """Train or evaluate; the report with what came out. Collective."""
    job, phases, options = machine.job, machine.phases, problem.options
    graphs = _replays_graphs(options, machine.driver)
    where = report.environment["placement"]
    with phases.phase("train setup"):
        setup = set_up(problem, part, machine, where, graphs)
    with closing(setup):
        with phases.phase("train setup"):
            initial = initial_parameters(options, problem.network, job)
            past = past.begun_at(initial, options)
            with job.together():
                setup.model.start(past.parameters or initial)
                if setup.training is not None:
                    setup.training.set_velocity(past.velocity)
        for line in report.environment["header"]:
            console.say(line)
        pipeline = Pipeline(problem, setup, initial, machine, past, report, console)
        return pipeline.evaluate() if options.evaluate else pipeline.train()
