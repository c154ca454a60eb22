"""Who does what: how ranks are grouped, and which dimension of each layer's products is cut over a group.

Ranks form a grid of groups and shards. Each group takes a part of every batch; the ranks of a group, its
shards, cut the products of a layer in one of three ways:

    samples   each its part of the group's samples, with all of W
    rows      each some units: rows of W, from all that comes in
    columns   each what some of the inputs contribute: columns of W; contributions are summed

So a layer takes its inputs, and makes its outputs, in parts (`pyrt.regions`) that may differ from layer to
layer; where they do, activations move between the ranks of the group, forward, and their gradients back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from nn.network import Network
from pyrt.errors import UserError
from pyrt.moves import Move
from pyrt.regions import Region, region, share

SAMPLES, ROWS, COLUMNS = SPLITS = ("samples", "rows", "columns")
"""Which dimension of a layer's products is cut."""

BY_SAMPLES, BY_UNITS, WHOLE = "rows", "columns", "whole"
"""How a matrix (samples, units) is spread over the ranks of a group."""

_TAKES = {SAMPLES: BY_SAMPLES, ROWS: WHOLE, COLUMNS: BY_UNITS}
_MAKES = {SAMPLES: BY_SAMPLES, ROWS: BY_UNITS, COLUMNS: WHOLE}
_WEIGHTS = {SAMPLES: "whole", ROWS: "rows", COLUMNS: "columns"}


@dataclass(frozen=True)
class Plan:
    """A grid of ``groups`` of ``shards`` ranks, consecutive ones, and the split of each layer, 1 to L."""

    groups: int
    shards: int
    splits: tuple[str, ...]
    why: str = field(default="", compare=False)
    """Empty where the user named it."""

    @classmethod
    def data(cls, ranks: int, layers: int) -> Plan:
        """Every rank has all parameters and a part of each batch."""
        return cls(ranks, 1, (SAMPLES,) * layers)

    @classmethod
    def model(cls, groups: int, shards: int, layers: int) -> Plan:
        """No rank of a group has weights of another: rows, then columns, and so on; the last by columns."""
        if shards == 1:
            return cls.data(groups, layers)
        splits = [ROWS if layer % 2 else COLUMNS for layer in range(1, layers)]
        return cls(groups, shards, (*splits, COLUMNS))

    @property
    def ranks(self) -> int:
        return self.groups * self.shards

    @property
    def is_data(self) -> bool:
        """Whether there are no shards: nothing but gradients moves."""
        return self.shards == 1

    def takes(self, layer: int) -> str:
        """How the inputs of a layer are spread; of layer L + 1, the head, the logits."""
        if layer <= len(self.splits):
            return _TAKES[self.splits[layer - 1]]
        # Labels come with images: where these are each rank's own, so are those.
        return BY_SAMPLES if SAMPLES in (self.splits[0], self.splits[-1]) else WHOLE

    def makes(self, layer: int) -> str:
        """How the outputs of a layer are spread; of layer 0 the images, gathered where they are wanted."""
        if layer == 0:
            return BY_SAMPLES if self.splits[0] == SAMPLES else WHOLE
        return _MAKES[self.splits[layer - 1]]

    def sums_inputs(self, layer: int) -> bool:
        """Whether each rank has but its part of the sum that is the gradient of a layer's inputs."""
        return self.splits[layer - 1] == ROWS

    def sums_outputs(self, layer: int) -> bool:
        """Whether each rank has but its part of the sum that a layer makes."""
        return self.splits[layer - 1] == COLUMNS

    def over_all(self, layer: int) -> bool:
        """Whether a layer's gradients are summed over all ranks, not over those of one shard alone."""
        return self.splits[layer - 1] == SAMPLES

    @property
    def loss_over_all(self) -> bool:
        """The same of the loss."""
        return self.takes(len(self.splits) + 1) == BY_SAMPLES

    def largest_group(self, batch: int) -> int:
        """The most samples of a batch that a group gets."""
        start, stop = share(batch, self.groups, 0)
        return stop - start

    def require_fits(self, network: Network, ranks: int) -> None:
        """UserError where it is for other ranks or another network, or leaves a rank without weights."""
        if self.ranks != ranks:
            raise UserError(
                f"a plan of {self.groups} x {self.shards} ranks: start {self.ranks} ranks, not {ranks}"
            )
        if len(self.splits) != network.depth:
            raise UserError(f"a plan of {len(self.splits)} layers: {network} has {network.depth}")
        for layer, split in zip(network.layers, self.splits, strict=True):
            size = network.sizes[layer if split == ROWS else layer - 1]
            if split != SAMPLES and size < self.shards:
                raise UserError(
                    f"a plan that splits the {size} {split} of W{layer} over {self.shards} ranks: one would "
                    "get none; use fewer shards or wider layers"
                )

    def __str__(self) -> str:
        why = f" ({self.why})" if self.why else ""
        if self.is_data:
            return f"data: {self.groups} part(s) of each batch{why}"
        splits = ", ".join(f"W{layer} by {split}" for layer, split in enumerate(self.splits, 1))
        return f"{self.groups} group(s) of {self.shards} shards: {splits}{why}"


@dataclass(frozen=True)
class RankPart:
    """What a plan gives one rank."""

    plan: Plan
    network: Network
    rank: int

    @classmethod
    def alone(cls, network: Network) -> RankPart:
        """Of a rank that does all."""
        return cls(Plan.data(1, network.depth), network, 0)

    @property
    def group(self) -> int:
        return self.rank // self.plan.shards

    @property
    def shard(self) -> int:
        return self.rank % self.plan.shards

    def held(self, spread: str, shape: tuple[int, int]) -> Region:
        """What this rank has of a matrix of the group that is spread so."""
        return region(spread, shape, self.plan.shards, self.shard)

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
        """Of each parameter, W1, b1, .. as a matrix (biases: of one column), this rank's part."""
        regions = {}
        for layer, split in zip(self.network.layers, self.plan.splits, strict=True):
            shape = self.network.sizes[layer], self.network.sizes[layer - 1]
            regions[f"W{layer}"] = self.held(_WEIGHTS[split], shape)
            regions[f"b{layer}"] = self.held("rows" if split == ROWS else "whole", (shape[0], 1))
        return regions

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of this rank's parameters."""
        return {name: part.shape if name[0] == "W" else part.shape[:1] for name, part in self.regions.items()}

    def cut(self, whole: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """This rank's part of all parameters."""
        return {name: whole[name][_slices(whole[name], part)] for name, part in self.regions.items()}

    def forward_move(self, layer: int, samples: int) -> Move | None:
        """What brings the outputs of a layer to where the next one takes them, if anything must move."""
        plan, shape = self.plan, (samples, self.network.sizes[layer])
        if layer == 0 or plan.is_data:
            return None
        made, taken = plan.makes(layer), plan.takes(layer + 1)
        if made in (taken, WHOLE):  # a part of what is there
            return None
        return Move(shape, made, taken)

    def sum_move(self, layer: int, samples: int) -> Move | None:
        """What adds up the parts of a sum that ranks make of the outputs of a layer."""
        if self.plan.is_data or not self.plan.sums_outputs(layer):
            return None
        return Move((samples, self.network.sizes[layer]), WHOLE, WHOLE, sums=True)

    def backward_move(self, layer: int, samples: int) -> Move | None:
        """What brings the gradient of the next layer's inputs to where this one made its outputs."""
        plan, shape = self.plan, (samples, self.network.sizes[layer])
        if plan.is_data:
            return None
        taken, made = plan.takes(layer + 1), plan.makes(layer)
        if layer < self.network.depth and plan.sums_inputs(layer + 1):
            return Move(shape, WHOLE, made, sums=True)
        if taken in (made, WHOLE):
            return None
        return Move(shape, taken, made)

    def largest_received(self, batch: int) -> int:
        """The most elements that this rank receives in a move of a step with such a batch."""
        ranks = self.plan.shards
        moves = self.moves(self.plan.largest_group(batch))
        return max((move.received(ranks, self.shard) for move in moves), default=0)

    def moves(self, samples: int) -> list[Move]:
        """All of a step, for so many samples of the group."""
        found = [
            move(layer, samples)
            for layer in self.network.layers
            for move in (self.sum_move, self.forward_move, self.backward_move)
        ]
        return [move for move in found if move is not None]


def _slices(array: np.ndarray, part: Region) -> tuple[slice, ...]:
    return tuple(slice(*span) for span in (part.rows, part.columns)[: array.ndim])


def whole_parameters(
    plan: Plan, network: Network, parts: Sequence[dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """All parameters, put together from those of the ranks of a group, in order."""
    result = {name: np.empty(shape, parts[0][name].dtype) for name, shape in network.shapes.items()}
    for shard, arrays in enumerate(parts):
        for name, part in RankPart(plan, network, shard).regions.items():
            result[name][_slices(result[name], part)] = arrays[name]
    return result
