"""The plan of a run: what the user asked for by a word or by a file, or what should be fastest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nn.network import Network
from nn.options import Options
from nn.plan import Plan, files
from nn.plan.paper import Task
from pyrt.driver import Driver
from pyrt.errors import UserError
from pyrt.exchange.choose import Choice
from pyrt.job import Job

AUTO = "auto"
"""The word for the plan that should be fastest: `fastest_plan`."""


def fastest_plan(job: Job, driver: Driver, way: Choice, task: Task) -> Plan:
    """By the cost model, for a step of that task on this job's machine. Collective."""
    # A start without --plan auto does not wait for these to be loaded.
    from nn.plan.probe import Setting, measured
    from nn.plan.search import Search

    rates, plan = measured(Setting(job, driver, way, task)), None
    with job.together():
        if job.rank == 0:
            search = Search(task, job.size, rates)
            best = search.best()
            costs = search.cost(best), search.cost(search.data)
            us, data_us = (f"{cost.seconds * 1e6:.0f} us" if cost else "impossible" for cost in costs)
            plan = replace(best, why=f"predicted {us} a step; data: {data_us}")
    agreed: Plan = job.comm.bcast(plan)
    return agreed


def choose_plan(options: Options, network: Network, ranks: int) -> Plan:
    """Of ``--plan`` and ``--grid``. UserError where it does not fit the network or the ranks."""
    plan = _asked(options, network, ranks)
    plan.require_fits(network, ranks)
    return plan


def _asked(options: Options, network: Network, ranks: int) -> Plan:
    if options.plan == "data":
        return Plan.data(ranks, network.depth)
    if options.plan == "model":
        groups, shards = map(int, options.grid.split("x")) if options.grid else (1, ranks)
        if groups * shards != ranks:
            raise UserError(f"--grid {options.grid}: is for {groups * shards} ranks, not {ranks}")
        return Plan.model(groups, shards, network.depth)
    return files.load(Path(options.plan))
