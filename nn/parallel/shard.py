"""What a plan gives one rank: its samples, its part of the parameters, and what it moves to others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nn.model.layer import Shape
from nn.model.network import Network
from nn.parallel.plan import BY_UNITS, COLUMNS, ROWS, SAMPLES, WHOLE, Plan
from pyrt.redistribute import Redistribution
from pyrt.redistribute.regions import Region, region, share

_WEIGHTS = {SAMPLES: "whole", ROWS: "rows", COLUMNS: "columns"}


@dataclass(frozen=True)
class Cut:
    """A rank's part of a parameter: a region of it, viewed as a matrix."""

    view: tuple[int, int]
    """Weights have a row a unit or filter; where channels are split a row a pixel of each of these."""
    part: Region
    shape: tuple[int, ...]
    """Of the part as the rank has it: weights a row a unit or filter."""

    def of(self, whole: np.ndarray) -> np.ndarray:
        """View or copy the part."""
        return self._within(whole).reshape(self.shape)

    def put(self, part: np.ndarray, whole: np.ndarray) -> None:
        """Copy the part to its place."""
        self._within(whole)[:] = part.reshape(self.part.shape)

    def _within(self, whole: np.ndarray) -> np.ndarray:
        return whole.reshape(self.view)[slice(*self.part.rows), slice(*self.part.columns)]


@dataclass(frozen=True)
class Shard:
    """What a plan gives one rank."""

    plan: Plan
    network: Network
    rank: int

    @classmethod
    def alone(cls, network: Network) -> Shard:
        """Return the shard of a rank that does all."""
        return cls(Plan.data(1, network.depth), network, 0)

    @property
    def group(self) -> int:
        return self.rank // self.plan.shards

    @property
    def index(self) -> int:
        return self.rank % self.plan.shards

    def held(self, spread: str, shape: tuple[int, int]) -> Region:
        """Return the region that this rank has of a group's matrix with this spread."""
        return region(spread, shape, self.plan.shards, self.index)

    def group_samples(self, batch: int) -> tuple[int, int]:
        """Start and stop of the group's part of so many samples."""
        return share(batch, self.plan.groups, self.group)

    def rows(self, layer: int, samples: int) -> tuple[int, int]:
        """Start and stop of those of the group's samples of which this rank takes inputs of a layer (of
        layer L + 1: logits)."""
        return self.held(self.plan.takes(layer), (samples, self.network.sizes[layer - 1])).rows

    def own_samples(self, batch: int) -> tuple[int, int]:
        """Start and stop of the batch's samples whose images this rank takes."""
        start, stop = self.group_samples(batch)
        first, last = self.rows(1, stop - start)
        return start + first, start + last

    def splits_channels(self, layer: int) -> bool:
        """Return whether a rank has some channels of the images that a layer makes, or the next one takes.

        `BY_UNITS` means these there, and else units in memory order.
        """
        plan, stages = self.plan, self.network.stages
        if plan.makes(layer) == BY_UNITS and stages[layer].makes_images:
            return True
        return (
            layer < self.network.depth
            and plan.takes(layer + 1) == BY_UNITS
            and stages[layer + 1].makes_images
        )

    def pixels(self, layer: int, shape: Shape) -> int:
        """Count the rows of a sample of this shape behind a layer: a pixel each where channels are split."""
        return math.prod(shape[:-1]) if self.splits_channels(layer) else 1

    def part(self, spread: str, layer: int, samples: int, shape: Shape) -> Region:
        """Return which samples, and which channels or units of each, this rank has behind a layer."""
        return self.held(spread, (samples, math.prod(shape) // self.pixels(layer, shape)))

    def made(self, layer: int, shape: Shape) -> Shape:
        """Return the shape of this rank's part of such a sample that a layer, or one behind it, makes."""
        return (*shape[:-1], self.held(self.plan.makes(layer), (1, shape[-1])).shape[1])

    def taken(self, layer: int) -> Shape:
        """Return the shape of this rank's part of a sample that a layer takes, if these are images."""
        shape = self.network.stages[layer].input
        if not self.splits_channels(layer - 1):
            return shape
        return (*shape[:-1], self.held(self.plan.takes(layer), (1, shape[-1])).shape[1])

    def takes_channels(self, layer: int) -> bool:
        """Return whether the next layer takes some channels of images that this rank has whole."""
        if layer == self.network.depth or not self.network.stages[layer + 1].makes_images:
            return False
        return (self.plan.makes(layer), self.plan.takes(layer + 1)) == (WHOLE, BY_UNITS)

    @cached_property
    def cuts(self) -> dict[str, Cut]:
        """Of each parameter, W1, b1, .., this rank's part."""
        cuts = {}
        for layer, split in zip(self.network.numbers, self.plan.splits, strict=True):
            rows, columns = self.network.matrix(layer)
            view = rows, columns
            if split == COLUMNS and self.splits_channels(layer - 1):
                channels = self.network.stages[layer].input[-1]
                view = rows * columns // channels, channels
            part = self.held(_WEIGHTS[split], view)
            biases = self.held("rows" if split == ROWS else "whole", (rows, 1))
            units = biases.shape[0]
            cuts[f"W{layer}"] = Cut(view, part, (units, part.size // units))
            cuts[f"b{layer}"] = Cut((rows, 1), biases, (units,))
        return cuts

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of this rank's parameters, weights as matrices."""
        return {name: cut.shape for name, cut in self.cuts.items()}

    def cut(self, whole: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Cut this rank's part from all parameters."""
        return {name: cut.of(whole[name]) for name, cut in self.cuts.items()}

    def forward_move(self, layer: int, samples: int) -> Redistribution | None:
        """Return the redistribution of a layer's outputs to the next layer's inputs, if any is needed."""
        plan = self.plan
        if layer == 0 or plan.is_data:
            return None
        made, taken = plan.makes(layer), plan.takes(layer + 1)
        if made in (taken, WHOLE):  # a part of what is there
            return None
        return self._redistribution(layer, samples, made, taken)

    def _redistribution(
        self, layer: int, samples: int, source: str, target: str, sums: bool = False
    ) -> Redistribution:
        """Of what lies between a layer and the next, with a row a sample, or a pixel."""
        shape = self.network.stages[layer].output
        pixels = self.pixels(layer, shape)
        matrix = samples * pixels, math.prod(shape) // pixels
        return Redistribution(matrix, source, target, sums, together=pixels)

    def sum_move(self, layer: int, samples: int) -> Redistribution | None:
        """Return the redistribution that adds up the partial sums of a layer's outputs, if there are any."""
        if self.plan.is_data or not self.plan.sums_outputs(layer):
            return None
        made = math.prod(self.network.stages[layer].made)
        return Redistribution((samples, made), WHOLE, WHOLE, sums=True)

    def backward_move(self, layer: int, samples: int) -> Redistribution | None:
        """Return the redistribution of the next layer's input gradient to this layer's outputs."""
        plan = self.plan
        if plan.is_data:
            return None
        taken, made = plan.takes(layer + 1), plan.makes(layer)
        if layer < self.network.depth and plan.sums_inputs(layer + 1):
            return self._redistribution(layer, samples, WHOLE, made, sums=True)
        if taken in (made, WHOLE):
            return None
        return self._redistribution(layer, samples, taken, made)

    def largest_received(self, batch: int) -> int:
        """Return the most elements that this rank receives in one move of a step with such a batch."""
        ranks = self.plan.shards
        moves = self.moves(self.plan.largest_group(batch))
        return max((move.received(ranks, self.index) for move in moves), default=0)

    def moves(self, samples: int) -> list[Redistribution]:
        """List all moves of a step for so many samples of the group."""
        found = [
            move(layer, samples)
            for layer in self.network.numbers
            for move in (self.sum_move, self.forward_move, self.backward_move)
        ]
        return [move for move in found if move is not None]


def whole_parameters(
    plan: Plan, network: Network, parts: Sequence[dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Put all parameters together from the parts of a group's ranks, in order."""
    result = {name: np.empty(shape, parts[0][name].dtype) for name, shape in network.shapes.items()}
    for index, arrays in enumerate(parts):
        for name, cut in Shard(plan, network, index).cuts.items():
            cut.put(arrays[name], result[name])
    return result
