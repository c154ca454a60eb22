"""What a step costs under some plans, as a table for people."""

from __future__ import annotations

from collections.abc import Iterator

from nn.autotune import asynchronous
from nn.autotune.asynchronous import AsynchronousCost
from nn.autotune.cost import Cost, Costing
from nn.autotune.listed_step import on_null
from nn.autotune.search import Search
from nn.parallel.plan import Plan, by_samples
from pyrt import tables
from pyrt.errors import shown

MOST_GRIDS = 6
"""Of groups and shards, beside the plainest two, that are shown."""

FORK_AND_JOIN = "fork and join"

NO_PROMISE = (
    "server, hogwild: asynchronous. In the time of a batch each worker makes one update by its own part, "
    "with parameters that may be stale: these rows promise no synchronous result"
)


def table(search: Search, best: Plan, width: int | None = None) -> str:
    """Lay out a row for each `named` plan, for a fork and join around every product, and for asynchronous
    training; name the best plan.

    ``width``: see `pyrt.tables.table`.
    """
    found = list(costs(search, best))
    rows = [_row(search, name, cost) for name, cost in found]
    headers = [
        *("plan", "GFLOP", "MB sent", "messages", "weights, gradients MB", "activations MB"),
        *("us", "most of it"),
    ]
    formats = ("", ".2f", ".2f", ".0f", ".1f", ".1f", ".0f", "")
    dispensable = ["messages", "GFLOP", "activations MB", "weights, gradients MB", "MB sent"]
    task, rates = search.task, search.rates
    lines = [
        f"A step of {task.network}, batch {task.batch}, {task.dtype}, on {search.ranks} rank(s) of "
        f"{shown(rates.device.name)}: predicted, of the rank that has most to do",
        f"rates: {shown(rates.about)}",
        tables.table(headers, rows, formats, dispensable, width),
        *([NO_PROMISE] if any(isinstance(cost, AsynchronousCost) for _, cost in found) else []),
        f"best: {best}",
    ]
    return "\n".join(lines)


def operations_table(search: Search, plan: Plan, width: int | None = None) -> str:
    """Lay out the step of the busiest rank: its work, and with whom. ``width``: as for `table`."""
    lines = Costing(
        on_null(search.task, plan, search.rates.device, exchange=search.rates.exchange), search.rates
    ).lines
    body = [
        [
            line.name,
            line.flops * 1e-9,
            line.traffic * 1e-6,
            line.sent * 1e-6,
            line.messages,
            line.seconds * 1e6,
        ]
        for line in lines
    ]
    headers = ["operation", "GFLOP", "MB read, written", "MB sent", "messages", "us by itself"]
    formats = ("", ".3f", ".2f", ".2f", ".0f", ".1f")
    return tables.table(headers, body, formats, ["messages", "MB read, written", "GFLOP", "MB sent"], width)


def costs(search: Search, best: Plan) -> Iterator[tuple[str, Cost]]:
    """Yield the cost of each row; leave out plans and exchanges that cannot be."""
    for name, plan in named(search, best).items():
        cost = search.cost(plan)
        if cost is not None:
            yield name, cost
    forked = search.fork_and_join()
    if forked is not None:
        yield FORK_AND_JOIN, forked
    yield from asynchronous.costs(search)


def named(search: Search, best: Plan) -> dict[str, Plan]:
    """Name the plans that people would think of; add ``best`` if it is none of them."""
    plans = {"data": search.data}
    plans.update({f"model, {plan.groups} x {plan.shards}": plan for plan in _grids(search)})
    return plans if best in plans.values() else {**plans, "best": best}


def _grids(search: Search) -> list[Plan]:
    """Model plans: of one group, and some of several, the smallest groups first."""
    network, ranks = search.task.network, search.ranks
    widest, first = max(network.sizes), by_samples(network)
    sizes = [shards for shards in range(2, min(ranks, widest + 1)) if ranks % shards == 0]
    step = -(-len(sizes) // MOST_GRIDS) or 1
    chosen = [*sizes[::step], *([ranks] if ranks > 1 else [])]
    return [Plan.model(ranks // shards, shards, network.depth, first) for shards in chosen]


def _row(search: Search, name: str, cost: Cost) -> list[object]:
    memory = cost.memory
    return [
        name,
        cost.flops * 1e-9,
        cost.sent * 1e-6,
        cost.messages,
        (memory.weights + memory.gradients) * 1e-6,
        memory.activations * 1e-6,
        cost.seconds * 1e6,
        cost.bound if search.fits(cost) else f"{cost.bound}; more memory than there is",
    ]
