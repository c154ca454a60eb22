"""What a network is trained with on this rank: its place in the job, device, streams, phases, kernels, and
what connects it with other ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import DTypeLike

from nn.launches import Kernels
from nn.plan import RankPart
from pyrt import moves
from pyrt.driver import Driver
from pyrt.exchange.choose import Choice
from pyrt.job import Job, agreed_by_some
from pyrt.moves import Links
from pyrt.phases import Phases
from pyrt.streams import Streams


@dataclass(frozen=True)
class Ways:
    """How this rank exchanges what with whom."""

    all: Choice
    """Gradients, with all ranks."""
    shard: Choice
    """Gradients, with the ranks of the same shard: one of each group."""
    group: Choice
    """Activations, with the ranks of its group."""

    @classmethod
    def of(cls, choice: Choice, part: RankPart) -> Ways:
        """Collective."""
        if part.plan.is_data:
            return cls(choice, choice, replace(choice, name="local", job=choice.job.alone(), made=()))
        return cls(choice, choice.among(part.shard), choice.among(part.group))

    def close(self) -> None:
        """Free the communicators of these choices. Collective."""
        if self.shard is not self.all:
            self.shard.close()
        self.group.close()
        self.all.close()

    @property
    def moves(self) -> str:
        """How activations move: one of `pyrt.moves`."""
        return moves_among(self.group)


@dataclass(frozen=True)
class Machine:
    """What a network is trained with on this rank; ``kernels`` is None where NumPy computes."""

    job: Job
    driver: Driver
    streams: Streams
    phases: Phases
    kernels: Kernels | None
    ways: Ways
    links: Links
    """Of the ranks of a group, whose activations move."""

    @classmethod
    def make(
        cls,
        job: Job,
        driver: Driver,
        phases: Phases,
        kernels: Kernels | None,
        ways: Ways,
        part: RankPart,
        dtype: DTypeLike,
        batch: int,
    ) -> Machine:
        """For steps of this batch under the plan of ``part``. Collective.

        Raises UserError, on all ranks, where a group cannot be connected so.
        """
        streams = Streams(driver)
        largest = part.largest_received(batch)
        setting = moves.Setting(driver, streams, ways.group.job, phases, np.dtype(dtype), largest)
        with job.together(), agreed_by_some(), driver.ledger.of("moves"):
            links = moves.create(ways.moves, setting)
        return cls(job, driver, streams, phases, kernels, ways, links)


def moves_among(group: Choice) -> str:
    """How matrices move among ranks that exchange so: one of `pyrt.moves`."""
    if group.job.size == 1:
        return "local"
    return group.name if group.name in moves.CHOICES else "host"
