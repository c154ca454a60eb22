"""Which rows of the data make which batch: the repeated samples, the shuffled order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


class Schedule:
    """The batches of a whole run, the same on every rank.

    Batches are consecutive slices of an epoch's order; the last of an epoch may be short. How ranks
    share a batch: `Shard.own_samples` (nn/parallel/shard.py). Steps are numbered from 0 through all epochs.
    """

    def __init__(self, rows: int, samples: int, batch: int, epochs: int, shuffle: bool, seed: int) -> None:
        """``samples`` of the first ``rows`` rows, repeated where there are fewer; shuffled anew each epoch
        by PCG64 seeded with (seed, 1, epoch)."""
        self._made_of = rows, samples, batch, epochs, shuffle, seed
        self.available = rows
        """How many of the data set's first rows are for training; the others are held out."""
        self._rows = np.arange(samples) % rows
        self.batch = min(batch, samples)
        self.samples = samples
        self.batches = -(-samples // self.batch)
        self.epochs = epochs
        self._shuffle = shuffle
        self._seed = seed
        self._epoch = -1
        self._order = self._rows

    def longer(self, times: int) -> Schedule:
        """Return the same batches over ``times`` as many epochs."""
        rows, samples, batch, epochs, shuffle, seed = self._made_of
        return Schedule(rows, samples, batch, times * epochs, shuffle, seed)

    @property
    def used(self) -> int:
        """How many of the first rows are used."""
        return min(self.available, self.samples)

    @property
    def steps(self) -> int:
        return self.epochs * self.batches

    @property
    def sizes(self) -> set[int]:
        """The sizes that batches have: the full one, and that of a short last one."""
        return {self.size(step) for step in (0, self.batches - 1)}

    def epoch(self, step: int) -> int:
        """Return the epoch of a step, from 0."""
        return step // self.batches

    def size(self, step: int) -> int:
        """Samples in the batch of a step."""
        return min(self.batch, self.samples - step % self.batches * self.batch)

    def samples_between(self, first: int, stop: int) -> int:
        """Count the samples of the steps from ``first`` to ``stop``."""
        return self._before(stop) - self._before(first)

    def _before(self, step: int) -> int:
        epochs, batches = divmod(step, self.batches)
        return epochs * self.samples + batches * self.batch

    def order(self, epoch: int) -> np.ndarray:
        """Return the row numbers of an epoch in the order in which batches take them; drawn at each call."""
        if not self._shuffle:
            return self._rows
        order = self._rows.copy()  # permutation() does the same, twice as slowly
        np.random.default_rng((self._seed, 1, epoch)).shuffle(order)
        return order

    def coverage(self, step: int) -> np.ndarray:
        """Count how often each of the first `used` rows is in the batches before a step, (used,) integers."""
        epochs, batches = divmod(step, self.batches)
        counts = epochs * np.bincount(self._rows, minlength=self.used)
        if batches:
            counts += np.bincount(self.order(epochs)[: batches * self.batch], minlength=self.used)
        return counts

    def coverage_of(self, part: Callable[[int], tuple[int, int]], first: int, stop: int) -> np.ndarray:
        """Count the same for one rank's parts of the batches from step ``first`` to ``stop``.

        ``part`` takes the size of a batch and returns start and stop of the part.
        """
        counts = np.zeros(self.used, int)
        for epoch in range(self.epoch(first), self.epoch(max(first, stop - 1)) + 1):
            order, begin = self.order(epoch), epoch * self.batches
            for step in range(max(first, begin), min(stop, begin + self.batches)):
                start, end = part(self.size(step))
                np.add.at(counts, order[self.first(step) + start : self.first(step) + end], 1)
        return counts

    def first(self, step: int) -> int:
        """Return the place in its epoch's order where the batch of a step begins."""
        return step % self.batches * self.batch

    def rows(self, step: int) -> np.ndarray:
        """Return the row numbers of the batch of a step."""
        if self.epoch(step) != self._epoch:
            self._epoch = self.epoch(step)
            self._order = self.order(self._epoch)
        return self._order[self.first(step) : self.first(step) + self.batch]
