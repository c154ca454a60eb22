"""Tells a watcher how a training goes on: steps that are queued, losses, ranks that have died."""

from __future__ import annotations

from nn.input.schedule import Schedule
from nn.train.workers import LostRank


class Watcher:
    """Is told what goes on while a network trains; this one keeps it to itself."""

    def queued(self, steps: int) -> None:
        """Note that so many more steps are queued."""

    def loss(self, step: int, epoch: int, loss: float) -> None:
        """Note the loss of a step that ``print_every`` asks for; step and epoch count from 1."""

    def lost(self, rank: LostRank) -> None:
        """Note that a rank has died, and training goes on."""


class Announcer:
    """Tells a watcher how a training goes on; keeps the losses that were told, and the ranks that died."""

    def __init__(self, watcher: Watcher, schedule: Schedule, every: int | None) -> None:
        """The losses of each ``every``-th step are told; None: of no step."""
        self._watcher, self._schedule, self._every = watcher, schedule, every
        self.printed: list[tuple[int, float]] = []
        """The steps whose losses were told, counted from 1, and these losses."""
        self.lost_ranks: list[LostRank] = []

    def tells_loss(self, step: int) -> bool:
        """Return whether the loss of this step, counted from 0, is to be told."""
        return self._every is not None and (step + 1) % self._every == 0

    def queued(self, steps: int) -> None:
        """Tell that so many more steps are queued."""
        self._watcher.queued(steps)

    def loss(self, step: int, loss: float) -> None:
        """Tell the loss of this step, counted from 0, if it is to be told."""
        if self.tells_loss(step):
            self.printed.append((step + 1, loss))
            self._watcher.loss(step + 1, self._schedule.epoch(step) + 1, loss)

    def lost(self, rank: LostRank) -> None:
        """Tell that a rank has died."""
        self.lost_ranks.append(rank)
        self._watcher.lost(rank)
