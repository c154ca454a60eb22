"""Training by workers that do not wait for each other: where they meet, what their losses add up to.

Each worker, a rank, takes its part of each batch, a function of seed, worker and step, and updates shared
parameters with the gradients of that part's mean loss: docs/explain/asynchronous.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from nn.input.schedule import Schedule
from nn.parallel.shard import Shard
from nn.problem.problem import Problem
from nn.program.rank_model import Role
from nn.train.rank_resources import RankResources
from pyrt.errors import UserError
from pyrt.exchange import Asynchronous, Exchange
from pyrt.exchange.registry import exchanges
from pyrt.exchange.server.leg import ServerCounts, ServerSide
from pyrt.exchange.server.roles import Roles
from pyrt.job import Job


@dataclass(frozen=True)
class LostRank:
    """A rank that has died, and the step at which that was noticed."""

    rank: int
    is_server: bool
    step: int
    """The number of steps over all workers that were made by then."""

    @property
    def line(self) -> str:
        """Say it in a line."""
        return (
            f"rank {self.rank}, a {'server' if self.is_server else 'worker'}, has died after step {self.step}"
        )


@dataclass(frozen=True)
class AsynchronousReport:
    """Holds what asynchronous training tells behind its last step."""

    workers: int
    updates: int
    """Updates of all workers, in this run."""
    lost: float
    """The share of the updates that are not in the parameters, counted on words that are updated alike."""
    samples: int
    """Training samples that there are."""
    seen: int
    """Those of them that were in a batch of some worker, since step 0."""
    least: int
    """The fewest times that a sample was in a batch."""
    most: int
    staleness: list[list[int]] = field(default_factory=list)
    """Lists the numbers of updates that were stale by 0, 1, .. versions: one list for each parameter server,
    of its shard. Without servers there is one list, counted on words that are updated alike."""
    furthest: int | None = None
    """The most steps that a worker was ahead of the slowest when it began one; None without servers."""
    lost_ranks: list[LostRank] = field(default_factory=list)
    """The ranks that have died, in the order in which the first server noticed it."""

    @classmethod
    def of(
        cls,
        workers: int,
        updates: int,
        coverage: np.ndarray,
        lost: float = 0.0,
        servers: ServerCounts | None = None,
        lost_ranks: Sequence[LostRank] = (),
    ) -> AsynchronousReport:
        """Make it from how often each training sample was in a batch, (samples,) integers."""
        seen, least, most = int((coverage > 0).sum()), int(coverage.min()), int(coverage.max())
        counted = workers, updates, lost, len(coverage), seen, least, most
        if servers is None:
            return cls(*counted)
        return cls(*counted, servers.staleness, servers.furthest, list(lost_ranks))

    @property
    def lines(self) -> list[str]:
        """Say it in lines."""
        times = f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"
        made = f"{self.workers} worker(s) made {self.updates} updates"
        if self.furthest is None:
            made += f", of which {self.lost:.2%} were lost (estimated)"
        seen = f"{self.seen} of {self.samples} training samples were seen, each {times} times"
        return [f"{made}; {seen}", *self._of_staleness(), *(one.line for one in self.lost_ranks)]

    def _of_staleness(self) -> list[str]:
        """Say how stale updates were, all shards together."""
        counts = np.sum(self.staleness, axis=0)
        total, places = max(1, int(counts.sum())), np.arange(len(counts))
        mean = float(counts @ places) / total
        median = int(np.searchsorted(np.cumsum(counts), total / 2))
        shares = ", ".join(f"{first}: {share:.1%}" for first, share in binned(counts / total))
        line = f"staleness in versions: mean {mean:.2f}, median {median}, most {len(counts) - 1} ({shares})"
        if self.furthest is not None:
            line += f"; a worker was up to {self.furthest} step(s) ahead of the slowest"
        return [line]


def binned(shares: np.ndarray) -> list[tuple[str, float]]:
    """Put shares (n,) of staleness 0, 1, .. into bins whose width doubles, named 0, 1, 2-3, 4-7, .."""
    found, start = [], 0
    while start < len(shares):
        stop = max(1, 2 * start)
        name = f"{start}" if stop - start == 1 else f"{start}-{stop - 1}"
        found.append((name, float(shares[start:stop].sum())))
        start = stop
    return found


class Workers:
    """The workers of a training, as one of them sees them."""

    def __init__(self, exchange: Asynchronous, job: Job, shard: Shard, schedule: Schedule) -> None:
        self._exchange, self._job, self._shard, self._schedule = exchange, job, shard, schedule

    @classmethod
    def of(
        cls, exchange: Exchange, resources: RankResources, shard: Shard, schedule: Schedule
    ) -> Workers | None:
        """Return those of a training with this exchange; None where its ranks wait for each other.

        With parameter servers `nn.train.legs` does this work.
        """
        if not exchanges()[resources.groups.all.name].asynchronous or isinstance(exchange, ServerSide):
            return None
        return cls(cast(Asynchronous, exchange), resources.job, shard, schedule)

    def begin(self) -> None:
        """Begin with the parameters that all have. Collective."""
        self._exchange.begin()

    def meet(self) -> None:
        """Let all have the same parameters. Collective."""
        self._exchange.meet()

    def part(self, step: int, loss: float) -> float:
        """Turn the mean loss of this worker's samples of a step into its part of that of the batch."""
        size = self._schedule.size(step)
        start, stop = self._shard.own_samples(size)
        return loss * (stop - start) / size

    def kept(self, total: float) -> float:
        """Return what this worker keeps of a sum that all know: so that it counts once."""
        return total if self._job.rank == 0 else 0.0

    def total(self, part: float) -> float:
        """Add up all workers' parts. Collective."""
        total: float = self._job.comm.allreduce(part)
        return total

    def report(self, step: int) -> AsynchronousReport:
        """Tell of the training up to this step, where all have met. Collective."""
        counts = self._exchange.count()
        lost = 1 - counts.kept / counts.made if counts.made else 0.0
        told = AsynchronousReport.of(self._job.size, counts.made, self._schedule.coverage(step), lost)
        return replace(told, staleness=[counts.stale])


def roles_of(problem: Problem, name: str, ranks: int) -> Roles:
    """Return the roles of ranks with this exchange; raise UserError where no worker would be left."""
    servers = problem.settings.asynchrony.servers if problem.trains and name == "server" else 0
    if servers >= ranks:
        raise UserError(
            f"--servers {servers}: leaves no worker among {ranks} ranks: start more of them, or use fewer "
            "servers"
        )
    return Roles(ranks, servers)


def role_of(problem: Problem, name: str, shard: Shard) -> Role:
    """Return the role of the rank with this shard."""
    is_alone = exchanges()[name].asynchronous and not problem.settings.asynchrony.is_synchronous
    return Role(is_alone, updates=name != "server" or not shard.works)


def own_schedule(problem: Problem, name: str, shard: Shard) -> Schedule:
    """Return the batches that a rank may take: with parameter servers one worker may make all steps."""
    return problem.schedule.longer(shard.plan.ranks) if name == "server" else problem.schedule


def require_asynchronous(name: str, roles: Roles, problem: Problem) -> None:
    """Raise UserError where such workers cannot train with this exchange, if it is asynchronous."""
    if not exchanges()[name].asynchronous:
        return
    smallest = min(problem.schedule.sizes)
    if smallest < roles.workers and not problem.settings.asynchrony.is_synchronous:
        raise UserError(
            f"--exchange {name}: each of {roles.workers} workers needs a sample of each batch, and one has "
            f"{smallest}: choose another --batch, or fewer ranks"
        )
    if problem.constraint is not None:
        raise UserError(f"--exchange {name}: keeps no constraint on weights: use another exchange")
