"""The predicted cost of asynchronous training: with parameter servers, and with shared parameters (hogwild).

No rank waits for all others, so there is no step of all ranks. The time of a batch is the time of as many
updates as there are workers, each from a worker's part of the batch. A worker computes, pushes, pulls, and
begins again. All workers share the servers, or the memory of rank 0, and queue there. This is a closed queue,
and its throughput has two bounds (Denning and Buzen, The Operational Analysis of
Queueing Network Models, 1978; the asymptotic bounds of Lazowska et al., Quantitative System Performance,
1984, chapter 5): p workers that take T seconds for an update when they are alone, of which what is shared
takes s, make

    X(p) <= min(p / T, 1 / s)  updates a second

The bound is taken as the throughput. docs/explain/plans.md derives the terms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nn.autotune.cost import Cost, Costing, kind
from nn.autotune.listed_step import ListedStep, on_null
from nn.autotune.rates import GATHER, Link, Rates
from nn.parallel.plan import Plan
from pyrt.errors import UserError

if TYPE_CHECKING:
    from nn.autotune.search import Search

SERVER, HOGWILD = "server", "hogwild"
"""Names of exchanges."""


@dataclass(frozen=True)
class Cycle:
    """The seconds of an update: T of a worker that is alone, and s of what workers share."""

    alone: float
    shared: float

    def batch_seconds(self, workers: int, sharing: int) -> float:
        """Return the seconds in which each worker makes an update; ``sharing`` of them use what is shared."""
        return max(self.alone, sharing * self.shared)


@dataclass
class AsynchronousCost(Cost):
    """The cost of a batch. ``exchange`` has the seconds in which a worker neither computes nor updates."""

    limit: str = ""
    """The shared resource that is always busy, if workers queue; else empty."""

    @property
    def bound(self) -> str:
        return f"{super().bound}{f'; {self.limit} always busy' if self.limit else ''}"


class _Worker:
    """The predicted step of a worker: its operations, and the bytes that it pushes and pulls."""

    def __init__(self, search: Search, exchange: str, workers: int) -> None:
        """Raises UserError where the step would not fit kernels' indices."""
        task, rates = search.task, replace(search.rates, exchange=exchange)
        plan = Plan.data(workers, task.network.depth)
        self._step: ListedStep = on_null(task, plan, rates.device, exchange=exchange)
        self._cost, self._rates = Costing(self._step, rates).cost, rates
        self._update = self._step.update(over_all=True)
        self.nbytes = self._step.bucket_elements * self._step.itemsize
        """The bytes of a push of all gradients, and of a pull of all parameters."""

    @property
    def compute(self) -> float:
        """Return the seconds from the images to the gradients."""
        return self._cost.products + self._cost.convolutions + self._cost.passes

    def apply(self, part: float = 1.0) -> float:
        """Return the seconds of the update of a part of the parameters."""
        return self._rates.pass_seconds(kind(self._update), int(part * self._update.bytes))

    def cost(self, seconds: float, updates: bool, sent: float, messages: float, limit: str) -> Cost:
        """Return the cost of a batch that takes ``seconds``; flops, bytes and memory are a worker's."""
        one, update = self._cost, self._update
        elsewhere = (0, 0) if updates else (update.flops, update.bytes)
        memory = one.memory if updates else replace(one.memory, momentum=0)
        passes = one.passes + (self.apply() if updates else 0.0)
        return AsynchronousCost(
            one.what,
            flops=one.flops - elsewhere[0],
            traffic=one.traffic - elsewhere[1],
            sent=sent,
            messages=messages,
            memory=memory,
            products=one.products,
            convolutions=one.convolutions,
            passes=passes,
            exchange=seconds - one.products - one.convolutions - passes,
            limit=limit,
        )


def costs(search: Search) -> Iterator[tuple[str, Cost]]:
    """Yield the names and costs of a batch for `SERVER`, with the best number of servers, and for `HOGWILD`.

    Leaves out what cannot be: one rank, a batch with fewer samples than workers, `HOGWILD` over nodes.
    """
    found = [(cost.seconds, servers, cost) for servers, cost in _with_servers(search)]
    if found:
        _, servers, cost = min(found, key=lambda one: one[:2])
        yield f"{SERVER}, {servers} of {search.ranks}", cost
    if 1 < search.ranks <= min(search.rates.ranks_per_node, search.task.batch):
        try:
            yield HOGWILD, hogwild(search)
        except UserError:
            return


def _with_servers(search: Search) -> Iterator[tuple[int, Cost]]:
    """Yield powers of two up to half of the ranks as numbers of servers, and their costs."""
    servers = 1
    while 2 * servers <= search.ranks:
        if search.ranks - servers <= search.task.batch:
            try:
                yield servers, with_servers(search, servers)
            except UserError:
                return
        servers *= 2


def with_servers(search: Search, servers: int) -> Cost:
    """Return the cost of a batch with so many parameter servers; all other ranks are workers.

    A push goes to all servers at once, an S-th of the bytes to each; a server updates its shard, and answers
    with it. So, with n bytes of parameters and a link's time of k messages t(n, k),

        T = compute + 2 t(n, S) + apply(n / S)        s = max(t(n / S, 1), apply(n / S))

    as a server receives, applies and sends at the same time. Raises UserError where the step would not fit
    kernels' indices.
    """
    workers = search.ranks - servers
    worker, link = _Worker(search, SERVER, workers), _link(search.rates, search.ranks)
    apply, shard = worker.apply(1 / servers), worker.nbytes / servers
    alone = worker.compute + 2 * link.seconds(worker.nbytes, servers) + apply
    cycle = Cycle(alone, max(link.seconds(shard, 1), apply))
    seconds = cycle.batch_seconds(workers, workers)
    limit = "servers" if seconds > alone else ""
    return worker.cost(seconds, False, workers * shard, workers, limit)


def hogwild(search: Search) -> Cost:
    """Return the cost of a batch where the ranks of a node share parameters.

    Push and pull are one kernel, that reads and writes each shared number once over the link of rank 0, in
    both directions at once; rank 0 has them in its own memory:

        T = compute + apply(n) + t(n, 1)        s = n / bandwidth, of p - 1 workers

    Raises UserError where the step would not fit kernels' indices.
    """
    worker, link = _Worker(search, HOGWILD, search.ranks), search.rates.node[GATHER]
    alone = worker.compute + worker.apply() + link.seconds(worker.nbytes, 1)
    others = search.ranks - 1
    seconds = Cycle(alone, worker.nbytes / link.gb_s * 1e-9).batch_seconds(search.ranks, others)
    limit = "rank 0's link" if seconds > alone else ""
    return worker.cost(seconds, True, others * worker.nbytes, others, limit)


def _link(rates: Rates, ranks: int) -> Link:
    """Return the link to servers: that across nodes if there are several."""
    return (rates.node if ranks <= rates.ranks_per_node else rates.network)[GATHER]
