"""Bounded staleness: decides which worker may begin another step, and grants the steps of a leg.

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
        self._going = set(range(workers))
        self._lost: set[int] = set()
        self.furthest = 0
        """The most steps that a worker was ahead of the slowest when it began a step."""

    def restart(self) -> None:
        """Begin anew: all ranks have met."""
        self._steps = [0] * len(self._steps)
        self._going = set(range(len(self._steps))) - self._lost

    def count(self, worker: int) -> None:
        """Count a step of a worker."""
        self._steps[worker] += 1

    def set(self, worker: int, steps: int) -> None:
        """Note that a worker has made so many steps."""
        self._steps[worker] = steps

    def is_going(self, worker: int) -> bool:
        """Return whether a worker still makes steps before all ranks meet."""
        return worker in self._going

    def steps(self, worker: int) -> int:
        """Return how many steps a worker has made."""
        return self._steps[worker]

    def leave(self, worker: int) -> None:
        """Stop waiting for this worker: it makes no more steps until all ranks have met."""
        self._going.discard(worker)

    def lose(self, worker: int) -> None:
        """Stop waiting for this worker, in later legs too: it has died."""
        self._lost.add(worker)
        self._going.discard(worker)

    @property
    def living(self) -> list[int]:
        """The workers that have not died."""
        return [worker for worker in range(len(self._steps)) if worker not in self._lost]

    @property
    def have_all_met(self) -> bool:
        return not self._going

    @property
    def is_one_meeting(self) -> bool:
        """Return whether some worker makes no more steps: then none is granted to others either."""
        return len(self._going) + len(self._lost) < len(self._steps)

    def are_even(self) -> bool:
        """Return whether all workers that still make steps have made equally many."""
        return len({self._steps[worker] for worker in self._going}) <= 1

    def may_go_on(self, worker: int) -> bool:
        """Return whether the bound lets a worker begin its next step."""
        return self._lead(worker) <= self._staleness

    def go_on(self, worker: int) -> None:
        """Note that a worker begins its next step."""
        self.furthest = max(self.furthest, self._lead(worker))

    def _lead(self, worker: int) -> int:
        slowest = min((self._steps[one] for one in self._going), default=self._steps[worker])
        return self._steps[worker] - slowest


class Grants:
    """The steps that the first server grants, numbered over all workers; a leg has equally many for each."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._granted = self._limit = 0

    def begin(self, first: int, stop: int, at_once: int) -> None:
        """Begin a leg of the steps ``first`` to ``stop``; ``at_once`` workers begin one without a grant."""
        self._granted, self._limit = first * self._workers + at_once, stop * self._workers

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

    def give_back(self) -> None:
        """Take back the step that a worker had begun when it died."""
        self._granted -= 1

    @property
    def are_over(self) -> bool:
        return self._granted >= self._limit

    @property
    def stop(self) -> int:
        """The step at which the leg ends."""
        return self._limit // self._workers
