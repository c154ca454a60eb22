"""Redistributions in a step's list, and copies of parts of what a rank has whole."""

from __future__ import annotations

from dataclasses import dataclass, field

from nn.parallel.shard import Shard
from nn.program import operations
from nn.program.operations import FinishRedistribution, Item, Operation, StartRedistribution
from pyrt.arrays import DeviceArray
from pyrt.redistribute import Redistribution


@dataclass(frozen=True)
class Moved:
    """What starts a move, and what ends it."""

    start: list[Item] = field(default_factory=list)
    finish: list[Item] = field(default_factory=list)

    @classmethod
    def of(
        cls, name: str, part: str, move: Redistribution | None, source: DeviceArray, target: DeviceArray
    ) -> Moved:
        """Make the two items of a redistribution; without one there is nothing to do."""
        if move is None:
            return cls()
        start = StartRedistribution(name, part, move, *(_rows_of(array, move) for array in (source, target)))
        return cls([start], [FinishRedistribution(start)])

    @property
    def at_once(self) -> list[Item]:
        return [*self.start, *self.finish]


def _rows_of(array: DeviceArray, move: Redistribution) -> DeviceArray:
    """View a matrix of a row a sample with as many rows a sample as stay together in a move."""
    if move.together == 1:
        return array
    samples, units = array.shape
    return array.reshape(samples * move.together, units // move.together)


@dataclass(frozen=True)
class Copied:
    """The copy of the part with a ``spread`` of what a rank has whole behind a layer."""

    shard: Shard
    layer: int
    spread: str

    def operation(self, name: str, part: str, whole: DeviceArray, own: DeviceArray) -> Operation:
        """Return it for these arrays, of a row a sample."""
        samples, shape = whole.shape[0], self.shard.network.stages[self.layer].output
        pixels = self.shard.spreads.pixels(self.layer, shape, self.spread)
        columns = self.shard.part(self.spread, self.layer, samples, shape).columns
        X = whole.reshape(samples * pixels, whole.shape[1] // pixels).columns(*columns)
        return operations.take_columns(name, part, X, own.reshape(*X.shape))
