"""What a plan gives one rank: its samples, its part of the parameters, and what it moves to others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from nn.model.layer import Shape
from nn.model.network import Network
from nn.model.window import Window
from nn.parallel import space
from nn.parallel.halos import PoolHalo, gradient_halo, pool_halo
from nn.parallel.plan import (
    BY_PLACES,
    BY_SAMPLES,
    COLUMNS,
    ROWS,
    SAMPLES,
    SPACE,
    WHOLE,
    WITH_HALO,
    Plan,
)
from nn.parallel.spreads import Spreads
from pyrt.redistribute import Redistribution
from pyrt.redistribute.regions import Region, Spans, region, share

_WEIGHTS = {SAMPLES: "whole", ROWS: "rows", COLUMNS: "columns", SPACE: "whole"}


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
    def works(self) -> bool:
        """Return whether it computes: parameter servers are numbered behind all ranks of the plan."""
        return self.rank < self.plan.ranks

    @property
    def group(self) -> int:
        return self.rank // self.plan.shards

    @property
    def index(self) -> int:
        return self.rank % self.plan.shards

    def held(self, spread: str | Spans, shape: tuple[int, int]) -> Region:
        """Return the region that this rank has of a group's matrix with this spread."""
        return region(spread, shape, self.plan.shards, self.index)

    def group_samples(self, batch: int) -> tuple[int, int]:
        """Start and stop of the group's part of so many samples; none for a parameter server."""
        return share(batch, self.plan.groups, self.group) if self.works else (batch, batch)

    def rows(self, layer: int, samples: int) -> tuple[int, int]:
        """Start and stop of those of the group's samples of which this rank takes inputs of a layer (of
        layer L + 1: logits)."""
        by_samples = self.plan.takes(layer) == BY_SAMPLES
        return share(samples, self.plan.shards, self.index) if by_samples else (0, samples)

    def own_samples(self, batch: int) -> tuple[int, int]:
        """Start and stop of the batch's samples whose images this rank takes."""
        start, stop = self.group_samples(batch)
        first, last = self.rows(1, stop - start)
        return start + first, start + last

    @cached_property
    def spreads(self) -> Spreads:
        """Return how the ranks of a group hold what is behind each layer."""
        return Spreads(self.plan, self.network)

    def part(self, spread: str, layer: int, samples: int, shape: Shape) -> Region:
        """Return which samples, and which units, channels or rows of each, this rank has behind a layer."""
        matrix = samples, math.prod(shape) // self.spreads.pixels(layer, shape, spread)
        return self.held(self.spreads.resolved(spread, layer, shape), matrix)

    def made(self, layer: int, shape: Shape) -> Shape:
        """Return the shape of this rank's part of such a sample that a layer, or one behind it, makes."""
        spread = self.spreads.made(layer)
        if spread == BY_PLACES:
            start, stop = self.spreads.rows(layer, shape[0])[self.index]
            return (stop - start, *shape[1:])
        return (*shape[:-1], self.held(spread, (1, shape[-1])).shape[1])

    def window(self, layer: int) -> Window:
        """Return a convolution's window on the part of its images that this rank takes."""
        window, taken = self.spreads.window(layer), self.plan.takes(layer)
        if taken == WITH_HALO:
            made = self.spreads.rows_made(layer)[self.index]
            return space.local(window, space.seen(window, made), made)
        return replace(window, channels=self.held(taken, (1, window.channels)).shape[1])

    def window_back(self, layer: int) -> Window:
        """Return the same for the gradient of its images: from that of the outputs, with their halo."""
        if self.plan.takes(layer) != WITH_HALO:
            return self.window(layer)
        window, rows = (
            self.spreads.window(layer),
            self.spreads.rows(layer - 1, self.spreads.window(layer).height),
        )
        return space.local(window, rows[self.index], self.spreads.rows_seeing(layer)[self.index])

    @cached_property
    def cuts(self) -> dict[str, Cut]:
        """Of each parameter, W1, b1, .., this rank's part."""
        cuts = {}
        for layer, split in zip(self.network.numbers, self.plan.splits, strict=True):
            rows, columns = self.network.matrix(layer)
            view = rows, columns
            if self.spreads.splits_channels(layer - 1) and split == COLUMNS:
                channels = self.network.stages[layer].input[-1]
                view = rows * columns // channels, channels
            part = self.held(self._weights(layer), view)
            biases = self.held("rows" if split == ROWS else "whole", (rows, 1))
            units = biases.shape[0]
            cuts[f"W{layer}"] = Cut(view, part, (units, part.size // units))
            cuts[f"b{layer}"] = Cut((rows, 1), biases, (units,))
        return cuts

    def _weights(self, layer: int) -> str | Spans:
        """Return the spread of a layer's W."""
        if self.spreads.taken(layer - 1) == BY_PLACES:  # columns, of these inputs
            return self.spreads.resolved(BY_PLACES, layer - 1, self.network.stages[layer].input)
        return _WEIGHTS[self.plan.splits[layer - 1]]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of this rank's parameters, weights as matrices."""
        return {name: cut.shape for name, cut in self.cuts.items()}

    def cut(self, whole: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Cut this rank's part from all parameters."""
        return {name: cut.of(whole[name]) for name, cut in self.cuts.items()}

    def forward_move(self, layer: int, samples: int) -> Redistribution | None:
        """Return the redistribution of a layer's outputs to the next layer's inputs, if any is needed."""
        made, arrives = self.spreads.made(layer), self.spreads.arrives(layer)
        if layer == 0 or self.plan.is_data or made == WHOLE:  # a part of what is there
            return None
        same = self.spreads.are_same(made, arrives, layer)
        return None if same else self.spreads.move(layer, samples, made, arrives)

    def halo_move(self, layer: int, samples: int) -> Redistribution | None:
        """Return the redistribution of dZ of a convolution that brings its halo, if it has one."""
        if layer == 1 or self.plan.takes(layer) != WITH_HALO:
            return None
        return gradient_halo(self.spreads, layer, samples)

    def pool_halo(self, layer: int, place: int, samples: int) -> PoolHalo | None:
        """Return the halo of the layer at this place behind a layer, if it is a pool that needs one."""
        return pool_halo(self.spreads, self.index, layer, place, samples)

    def sum_move(self, layer: int, samples: int) -> Redistribution | None:
        """Return the redistribution that adds up the partial sums of a layer's outputs, if there are any."""
        if self.plan.is_data or not self.plan.sums_outputs(layer):
            return None
        made = math.prod(self.network.stages[layer].made)
        return Redistribution((samples, made), WHOLE, WHOLE, sums=True)

    def backward_move(self, layer: int, samples: int) -> Redistribution | None:
        """Return the redistribution of the next layer's input gradient to this layer's outputs."""
        if self.plan.is_data:
            return None
        taken, arrives = self.spreads.taken_back(layer), self.spreads.arrives_back(layer)
        if layer < self.network.depth and self.plan.sums_inputs(layer + 1):
            return self.spreads.move(layer, samples, WHOLE, arrives, sums=True)
        if taken in (arrives, WHOLE):
            return None
        return self.spreads.move(layer, samples, taken, arrives)

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
            for move in (self.sum_move, self.forward_move, self.backward_move, self.halo_move)
        ]
        pools = [
            halo
            for layer in self.network.numbers
            for place in range(len(self.network.stages[layer].followers))
            if (halo := self.pool_halo(layer, place, samples)) is not None
        ]
        found += [move for halo in pools for move in (halo.images, halo.gradients)]
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
