"""Who may begin another step: bounded staleness, and how many steps are granted until all ranks meet.

Ho et al., More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server, 2013: a worker's
clock counts the steps that it has made; the fastest may begin a step while the slowest has made at most K
fewer. Clocks begin anew where all ranks have met, and no update is on its way.
"""

from __future__ import annotations

import math


class Clocks:
    """The clocks of all workers, as one server knows them."""

    def __init__(self, workers: int, staleness: float) -> None:
        """``staleness`` is K: a whole number, or inf for no bound."""
        self._staleness = staleness
        self._steps = [0] * workers
        self._has_met = [False] * workers
        self.furthest = 0
        """The most steps that a worker was ahead of the slowest when it was let go on."""

    def restart(self) -> None:
        """Begin anew: all ranks have met."""
        for worker in range(len(self._steps)):
            self._steps[worker], self._has_met[worker] = 0, False

    def advance(self, worker: int) -> None:
        """Count a step of a worker."""
        self._steps[worker] += 1

    def leave(self, worker: int) -> None:
        """Wait for this worker no more: it makes no more steps until all ranks have met."""
        self._has_met[worker] = True

    @property
    def have_all_met(self) -> bool:
        return all(self._has_met)

    @property
    def is_one_meeting(self) -> bool:
        """Return whether some worker makes no more steps: then none is granted to others either."""
        return any(self._has_met)

    def steps(self, worker: int) -> int:
        """Return how many steps a worker has made."""
        return self._steps[worker]

    def are_even(self) -> bool:
        """Return whether all workers have made as many steps."""
        return min(self._steps) == max(self._steps)

    def may_go_on(self, worker: int) -> bool:
        """Return whether the bound lets a worker begin its next step."""
        return self._lead(worker) <= self._staleness

    def go_on(self, worker: int) -> None:
        """Note that a worker begins its next step."""
        self.furthest = max(self.furthest, self._lead(worker))

    def _lead(self, worker: int) -> int:
        going = (steps for steps, met in zip(self._steps, self._has_met, strict=True) if not met)
        return self._steps[worker] - min(going, default=self._steps[worker])


class Grants:
    """The steps over all workers that the first server lets them make: a leg has so many for each worker."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._granted = self._limit = 0

    def begin(self, first: int, stop: int) -> None:
        """Begin a leg of the steps ``first`` to ``stop``, of which each worker has one at once."""
        self._granted, self._limit = (first + 1) * self._workers, stop * self._workers

    def end_early(self) -> None:
        """Let the leg end after whole steps of all workers, as soon as it can."""
        whole = math.ceil(self._granted / self._workers) * self._workers
        self._limit = min(self._limit, whole)

    def take(self) -> int | None:
        """Grant a step: return its number; None where there are no more."""
        if self._granted >= self._limit:
            return None
        self._granted += 1
        return self._granted - 1

    @property
    def are_over(self) -> bool:
        return self._granted >= self._limit

    @property
    def stop(self) -> int:
        """The step at which the leg ends."""
        return self._limit // self._workers
