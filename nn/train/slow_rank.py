"""Makes the steps of one rank take longer, as on a slower machine: to see what that costs the others."""

from __future__ import annotations

import time
from collections.abc import Callable

from nn.problem.settings import Settings
from nn.train.rank_resources import RankResources
from pyrt.errors import UserError
from pyrt.exchange.server.roles import Roles


def require_worker(settings: Settings, roles: Roles) -> None:
    """Raise UserError where the rank that is to be slow is none of the workers."""
    if settings.slowed is not None and not roles.servers <= settings.slowed[0] < roles.ranks:
        workers = f"{roles.servers} to {roles.ranks - 1}"
        raise UserError(
            f"--slow-rank {settings.slow_rank}: the ranks that compute are {workers}: name one of them"
        )


class SlowRank:
    """Waits before each step for a multiple of what the last one took."""

    def __init__(self, factor: float, resources: RankResources) -> None:
        self._factor, self._driver = factor, resources.driver
        self._stream = resources.streams.compute
        self._phase = resources.phases.phase("slow rank")
        self._seconds = 0.0
        """The time of the last step."""

    @classmethod
    def of(cls, settings: Settings, resources: RankResources) -> SlowRank | None:
        """Return what slows this rank down; None where nothing does."""
        if settings.slowed is None:
            return None
        rank, factor = settings.slowed
        return cls(factor, resources) if rank == resources.job.rank else None

    def make(self, steps: int, queue: Callable[[], object]) -> None:
        """Wait, then make so many ``steps``, which ``queue`` queues, and measure their time."""
        with self._phase:
            time.sleep((self._factor - 1) * self._seconds * steps)
        begun = time.perf_counter()
        queue()
        self._driver.synchronize_stream(self._stream)
        self._seconds = (time.perf_counter() - begun) / steps
