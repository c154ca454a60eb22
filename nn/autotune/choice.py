"""The plan of a run: what the user asked for by a word or by a file, or what should be fastest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nn.autotune.listed_step import Task
from nn.model.network import Network
from nn.parallel import plan_files
from nn.parallel.plan import FORK_JOIN, Plan, by_samples
from nn.problem.settings import Settings
from pyrt.driver import Driver
from pyrt.errors import UserError
from pyrt.exchange.choose import ExchangeChoice
from pyrt.job import Job

AUTO = "auto"
"""The word for the plan that should be fastest: `fastest_plan`."""


def fastest_plan(job: Job, driver: Driver, way: ExchangeChoice, task: Task) -> Plan:
    """Choose by the cost model, for a step of that task on this job's machine. Collective."""
    # A start without --plan auto does not wait for these to be loaded.
    from nn.autotune.probe import ProbeContext, measured
    from nn.autotune.search import Search

    rates, plan = measured(ProbeContext(job, driver, way, task)), None
    with job.agree():
        if job.rank == 0:
            search = Search(task, job.size, rates)
            best = search.best()
            costs = search.cost(best), search.cost(search.data)
            us, data_us = (f"{cost.seconds * 1e6:.0f} us" if cost else "impossible" for cost in costs)
            plan = replace(best, why=f"predicted {us} a step; data: {data_us}")
    agreed: Plan = job.comm.bcast(plan)
    return agreed


def choose_plan(settings: Settings, network: Network, ranks: int) -> Plan:
    """Return the plan that is named; UserError where it does not fit the network or the ranks."""
    plan = _named(settings, network, ranks)
    plan.require_fits(network, ranks)
    return plan


def _named(settings: Settings, network: Network, ranks: int) -> Plan:
    if settings.plan == "data":
        return Plan.data(ranks, network.depth)
    if settings.plan == "model":
        groups, shards = map(int, settings.grid.split("x")) if settings.grid else (1, ranks)
        if groups * shards != ranks:
            raise UserError(f"--grid {settings.grid}: is for {groups * shards} ranks, not {ranks}")
        return Plan.model(groups, shards, network.depth, by_samples(network))
    if settings.plan == FORK_JOIN:
        if ranks > 1:
            raise UserError(f"--plan {FORK_JOIN}: is train.py's; in a program use another plan")
        return Plan.data(1, network.depth)
    return plan_files.load(Path(settings.plan))
