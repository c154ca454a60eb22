"""What a network is trained with on this rank: its place in the job, device, streams, phases, kernels, and
what connects it with other ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import DTypeLike

from nn.launch.kernels import Kernels
from nn.parallel.shard import Shard
from nn.train.fork_join import Fork
from pyrt.driver import Driver
from pyrt.exchange.choose import ExchangeChoice
from pyrt.job import Job, agreed_by_some
from pyrt.phases import Phases
from pyrt.redistribute import RedistributionContext, Redistributor
from pyrt.redistribute.registry import create_links
from pyrt.streams import Streams


@dataclass(frozen=True)
class RankGroups:
    """How this rank exchanges what with whom."""

    all: ExchangeChoice
    """Gradients, with all ranks."""
    same_shard: ExchangeChoice
    """Gradients, with the ranks of the same shard: one of each group."""
    group: ExchangeChoice
    """Activations, with the ranks of its group."""

    @classmethod
    def of(cls, choice: ExchangeChoice, shard: Shard) -> RankGroups:
        """Collective."""
        if shard.plan.is_data:
            return cls(choice, choice, replace(choice, name="local", job=choice.job.alone(), made=()))
        return cls(choice, choice.among(shard.index), choice.among(shard.group))

    def close(self) -> None:
        """Free the communicators of these choices. Collective."""
        if self.same_shard is not self.all:
            self.same_shard.close()
        self.group.close()
        self.all.close()

    @property
    def moves(self) -> str:
        """How activations move: one of `pyrt.redistribute`."""
        return self.group.redistribution


@dataclass(frozen=True)
class RankResources:
    """What a network is trained with on this rank; ``kernels`` is None where NumPy computes."""

    job: Job
    driver: Driver
    streams: Streams
    phases: Phases
    kernels: Kernels | None
    groups: RankGroups
    links: Redistributor
    """Of the ranks of a group, whose activations move."""
    fork: Fork | None = None
    """Lets other ranks compute parts of this one's products; None without --plan fork-join."""

    @classmethod
    def make(
        cls,
        job: Job,
        streams: Streams,
        phases: Phases,
        kernels: Kernels | None,
        groups: RankGroups,
        dtype: DTypeLike,
        largest: int,
    ) -> RankResources:
        """Connect the ranks, of which none receives more than ``largest`` elements at once. Collective.

        Raises UserError, on all ranks, where a group cannot be connected so.
        """
        driver = streams.driver
        setting = RedistributionContext(driver, streams, groups.group.job, phases, np.dtype(dtype), largest)
        with job.agree(), agreed_by_some(), driver.ledger.of("moves"):
            links = create_links(groups.moves, setting)
        return cls(job, driver, streams, phases, kernels, groups, links)
