"""Training by workers that do not wait for each other: where they meet, what their losses add up to.

Each worker, a rank, takes its part of each batch, a function of seed, worker and step, and updates shared
parameters with the gradients of that part's mean loss: docs/explain/asynchronous.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from nn.input.schedule import Schedule
from nn.parallel.shard import Shard
from nn.train.rank_resources import RankResources
from pyrt.errors import UserError
from pyrt.exchange import Asynchronous, Exchange
from pyrt.exchange.registry import exchanges
from pyrt.job import Job


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

    @property
    def line(self) -> str:
        """Say it in a line."""
        times = f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"
        return (
            f"{self.workers} workers made {self.updates} updates, of which {self.lost:.2%} were lost "
            f"(estimated); {self.seen} of {self.samples} training samples were seen, each {times} times"
        )


class Workers:
    """The workers of a training, as one of them sees them."""

    def __init__(self, exchange: Asynchronous, job: Job, shard: Shard, schedule: Schedule) -> None:
        self._exchange, self._job, self._shard, self._schedule = exchange, job, shard, schedule

    @classmethod
    def of(
        cls, exchange: Exchange, resources: RankResources, shard: Shard, schedule: Schedule
    ) -> Workers | None:
        """Return those of a training with this exchange; None where its ranks wait for each other."""
        if not exchanges()[resources.groups.all.name].asynchronous:
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
        updates, found = self._exchange.count()
        coverage = self._schedule.coverage(step)
        return AsynchronousReport(
            self._job.size,
            updates,
            1 - found / updates if updates else 0.0,
            len(coverage),
            int((coverage > 0).sum()),
            int(coverage.min()),
            int(coverage.max()),
        )


def require_asynchronous(name: str, ranks: int, schedule: Schedule, is_constrained: bool) -> None:
    """Raise UserError where so many ranks cannot train with this exchange, if it is asynchronous."""
    if not exchanges()[name].asynchronous:
        return
    smallest = min(schedule.sizes)
    if smallest < ranks:
        raise UserError(
            f"--exchange {name}: each of {ranks} workers needs a sample of each batch, and one has "
            f"{smallest}: choose another --batch, or fewer ranks"
        )
    if is_constrained:
        raise UserError(f"--exchange {name}: keeps no constraint on weights: use another exchange")
