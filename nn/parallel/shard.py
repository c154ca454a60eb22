"""What a plan gives one rank: its samples, its part of the parameters, and what it moves to others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nn.model.network import Network
from nn.parallel.plan import COLUMNS, ROWS, SAMPLES, WHOLE, Plan
from pyrt.redistribute import Redistribution
from pyrt.redistribute.regions import Region, region, share

_WEIGHTS = {SAMPLES: "whole", ROWS: "rows", COLUMNS: "columns"}


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

    @cached_property
    def regions(self) -> dict[str, Region]:
        """Of each parameter, W1, b1, .. as a matrix (biases: of one column), this rank's part.

        A filter of a convolution is a row of its matrix.
        """
        regions = {}
        for layer, split in zip(self.network.numbers, self.plan.splits, strict=True):
            shape = self.network.matrix(layer)
            regions[f"W{layer}"] = self.held(_WEIGHTS[split], shape)
            regions[f"b{layer}"] = self.held("rows" if split == ROWS else "whole", (shape[0], 1))
        return regions

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of this rank's parameters, weights as matrices."""
        return {name: part.shape if name[0] == "W" else part.shape[:1] for name, part in self.regions.items()}

    def cut(self, whole: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Cut this rank's part from all parameters."""
        matrices = {name: as_matrix(array) for name, array in whole.items()}
        return {name: matrices[name][_slices(matrices[name], part)] for name, part in self.regions.items()}

    def forward_move(self, layer: int, samples: int) -> Redistribution | None:
        """Return the redistribution of a layer's outputs to the next layer's inputs, if any is needed."""
        plan, shape = self.plan, (samples, self.network.sizes[layer])
        if layer == 0 or plan.is_data:
            return None
        made, taken = plan.makes(layer), plan.takes(layer + 1)
        if made in (taken, WHOLE):  # a part of what is there
            return None
        return Redistribution(shape, made, taken)

    def sum_move(self, layer: int, samples: int) -> Redistribution | None:
        """Return the redistribution that adds up the partial sums of a layer's outputs, if there are any."""
        if self.plan.is_data or not self.plan.sums_outputs(layer):
            return None
        return Redistribution((samples, self.network.sizes[layer]), WHOLE, WHOLE, sums=True)

    def backward_move(self, layer: int, samples: int) -> Redistribution | None:
        """Return the redistribution of the next layer's input gradient to this layer's outputs."""
        plan, shape = self.plan, (samples, self.network.sizes[layer])
        if plan.is_data:
            return None
        taken, made = plan.takes(layer + 1), plan.makes(layer)
        if layer < self.network.depth and plan.sums_inputs(layer + 1):
            return Redistribution(shape, WHOLE, made, sums=True)
        if taken in (made, WHOLE):
            return None
        return Redistribution(shape, taken, made)

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


def as_matrix(array: np.ndarray) -> np.ndarray:
    """View filters (filters, rows, columns, channels) as rows; other parameters as they are."""
    return array.reshape(len(array), -1) if array.ndim > 2 else array


def _slices(array: np.ndarray, part: Region) -> tuple[slice, ...]:
    return tuple(slice(*span) for span in (part.rows, part.columns)[: array.ndim])


def whole_parameters(
    plan: Plan, network: Network, parts: Sequence[dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Put all parameters together from the parts of a group's ranks, in order."""
    result = {name: np.empty(shape, parts[0][name].dtype) for name, shape in network.shapes.items()}
    for index, arrays in enumerate(parts):
        for name, part in Shard(plan, network, index).regions.items():
            matrix = as_matrix(result[name])
            matrix[_slices(matrix, part)] = arrays[name]
    return result
