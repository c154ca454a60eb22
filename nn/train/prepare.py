"""Decides, before training allocates anything: exchange, plan, placement; checks that memory suffices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from nn.autotune.choice import AUTO, choose_plan, fastest_plan
from nn.autotune.listed_step import Task
from nn.checkpoints.resume_point import ResumePoint
from nn.launch.conv.versions import common_convolution, runs_convolution
from nn.launch.gemm.mma import MMA_COMPONENTS
from nn.launch.gemm.versions import common_gemm, fastest_gemm, runs_gemm
from nn.launch.kernels import Kernels
from nn.parallel.plan import FORK_JOIN, Plan
from nn.parallel.shard import Shard
from nn.problem.problem import Problem
from nn.problem.settings import Settings
from nn.train.fork_join import Fork
from nn.train.memory_needs import Rehearsal, choose_placement
from nn.train.rank_resources import RankGroups, RankResources
from nn.train.slow_rank import require_worker
from nn.train.workers import require_asynchronous, roles_of
from pyrt.driver import Driver
from pyrt.errors import UserError
from pyrt.exchange.choose import ExchangeChoice
from pyrt.kernels import KernelLibrary
from pyrt.runtime import Runtime

S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class Prepared:
    """The decisions, the same on every rank but for the rank's own part."""

    problem: Problem
    resume_point: ResumePoint
    shard: Shard
    groups: RankGroups
    rehearsal: Rehearsal
    fork: Fork | None = None
    """Lets other ranks compute parts of products; None without --plan fork-join."""


def prepare(
    problem: Problem, runtime: Runtime, resume_point: ResumePoint, fork: Fork | None = None
) -> Prepared:
    """Decide all that is left open. Collective; UserError on all ranks for what cannot be."""
    settings, driver, phases = problem.settings, runtime.driver, runtime.phases
    resume_point = resume_point.of(problem)
    choice = runtime.choose_exchange(resume_point.exchange(settings, driver), settings.ranks_per_node)
    with runtime.job.agree():
        roles = roles_of(problem, choice.name, runtime.job.size)
        if problem.trains:
            require_asynchronous(choice.name, roles, problem)
            require_worker(settings, roles)
    plan = _choose_plan(problem, runtime, choice, resume_point, roles.workers)
    if fork is not None:
        plan = replace(plan, why=f"each product is forked to {fork.helpers} more")
    # Plans number the ranks that compute from 0, so servers, the first ranks of the job, come last here.
    shard = Shard(plan, problem.network, (runtime.job.rank - roles.servers) % roles.ranks)
    groups = RankGroups.of(choice, shard)
    with phases.phase("count memory"):
        rehearsal = choose_placement(problem, shard, groups, runtime.job, driver, fork)
    return Prepared(problem, resume_point, shard, groups, rehearsal, fork)


def _choose_plan(
    problem: Problem, runtime: Runtime, choice: ExchangeChoice, resume_point: ResumePoint, workers: int
) -> Plan:
    """Return the plan named, else the one chosen before, else the one that should be fastest.

    It is for ``workers`` ranks: all but parameter servers.
    """
    settings, network, job, plan = problem.settings, problem.network, runtime.job, None
    if settings.plan == AUTO:
        plan = resume_point.plan(network, runtime.driver)
    else:
        with job.agree():
            if job.rank == 0:  # a file may be on this rank's node alone
                plan = choose_plan(settings, network, workers)
        plan = job.comm.bcast(plan)
    if plan is not None:
        return plan
    task = Task(
        network,
        problem.schedule.batch,
        settings.dtype,
        problem.optimiser,
        settings.gemm,
        settings.math,
        settings.conv,
    )
    with runtime.phases.phase("choose plan"):
        return fastest_plan(job, runtime.driver, choice, task)


def open_resources(prepared: Prepared, runtime: Runtime) -> RankResources:
    """Compile and load kernels, connect the ranks of a group. Collective; UserError on all ranks."""
    problem, job, driver = prepared.problem, runtime.job, runtime.driver
    kernels = _kernels(prepared, runtime) if any(job.comm.allgather(driver.has_kernels)) else None
    largest = prepared.shard.largest_received(problem.schedule.batch)
    resources = RankResources.make(
        job, runtime.streams, runtime.phases, kernels, prepared.groups, problem.settings.dtype, largest
    )
    return replace(resources, fork=prepared.fork)


def _kernels(prepared: Prepared, runtime: Runtime) -> Kernels | None:
    """Make the project's kernels; one rank a node compiles what the node's ranks will load. Collective.

    A parameter server may be on the CPU beside workers on GPUs: it has none.
    """
    settings, job, driver = prepared.problem.settings, runtime.job, runtime.driver
    with job.agree():
        kernels = None
        if driver.has_kernels:
            library = KernelLibrary(driver)
            kernels = Kernels(library, settings.dtype, settings.gemm, settings.math, settings.conv)
    with runtime.phases.phase("compile kernels"), job.agree():
        told = job.node.allgather((driver.has_kernels, prepared.rehearsal.sources))
        first = next((rank for rank, (has_kernels, _) in enumerate(told) if has_kernels), None)
        if kernels is not None and job.node.rank == first:
            library.compile_sources(source for _, sources in told for source in sources)
    return kernels


def replays_graphs(settings: Settings, driver: Driver) -> bool:
    """Return whether graphs replay the steps; with some settings the host waits within a step."""
    waits = settings.profile or settings.check_each is not None or settings.plan == FORK_JOIN
    return settings.graph and not waits and driver.has_kernels


def with_common_versions(settings: S, runtime: Runtime) -> S:
    """Set the product and the convolution that all ranks' devices run, if they differ: all compute alike.

    What is not auto stays.

    Collective. Raises UserError on all ranks if a device does not run what is asked for.
    """
    architectures = set(runtime.job.comm.allgather(runtime.driver.architecture))
    computes = runtime.driver.has_kernels or architectures == {""}
    if len(architectures) > 1:
        architectures.discard("")  # parameter servers on the CPU, which compute no products
    if settings.gemm == "auto" and len(architectures) > 1:
        settings = replace(settings, gemm=common_gemm(settings.dtype, architectures))
    if settings.conv == "auto" and len(architectures) > 1:
        settings = replace(settings, conv=common_convolution(settings.dtype, architectures))
    with runtime.job.agree():
        if computes:
            _require_gemm(settings, runtime.driver)
            _require_convolution(settings, runtime.driver)
    return settings


def _require_gemm(settings: Settings, driver: Driver) -> None:
    what, gemm, math = f"{driver.name}, {driver.device_name}", settings.gemm, settings.math
    if gemm != "auto" and not driver.has_kernels:
        raise UserError(
            f"--gemm {gemm}: needs kernels, and {what}, runs none: use --device cuda or emulated, "
            "or leave it out"
        )
    if driver.has_kernels and not runs_gemm(gemm, driver.architecture):
        raise UserError(f"--gemm {gemm}: {what}, has no such tensor cores: use --gemm auto")
    version = gemm_version(settings, driver)
    if version == "mma" and driver.has_kernels and math not in MMA_COMPONENTS:
        raise UserError(
            f"--math {math}: needs --gemm wgmma, and {what}, takes mma for --gemm {gemm}: use --math tf32, "
            "or leave it out"
        )
    if math != "float32" and (version not in ("mma", "wgmma") or not driver.has_kernels):
        raise UserError(
            f"--math {math}: goes with tensor cores, and {what}, takes none for --gemm {gemm}: leave it out"
        )


def _require_convolution(settings: Settings, driver: Driver) -> None:
    what, conv = f"{driver.name}, {driver.device_name}", settings.conv
    if conv == "auto":
        return
    if not driver.has_kernels:
        raise UserError(
            f"--conv {conv}: needs kernels, and {what}, runs none: use --device cuda or emulated, "
            "or leave it out"
        )
    if not runs_convolution(conv, settings.dtype, driver.architecture):
        raise UserError(f"--conv {conv}: {what}, does not run it in {settings.dtype}: use --conv auto")


def gemm_version(settings: Settings, driver: Driver) -> str:
    """Return the version of the matrix product for large sizes."""
    return settings.gemm if settings.gemm != "auto" else fastest_gemm(settings.dtype, driver.architecture)
