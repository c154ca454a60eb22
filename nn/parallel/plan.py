"""Who does what: how ranks are grouped, and which dimension of each layer's products is cut over a group.

Ranks form a grid of groups and shards. Each group takes a part of every batch; the ranks of a group, its
shards, cut the products of a layer in one of three ways:

    samples   each its part of the group's samples, with all of W
    rows      each some units or filters: rows of W, from all that comes in
    columns   each what some of the inputs contribute: columns of W; contributions are summed
    space     each some rows of all images, with all of W; neighbours exchange rows at the edges, halos

So a layer takes its inputs, and makes its outputs, in parts (`pyrt.redistribute.regions`) that may differ
from layer to layer. Where they do, activations move between the ranks of the group in the forward pass, and
their gradients in the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby

from nn.model.network import Network
from pyrt.errors import UserError
from pyrt.redistribute.regions import share

SAMPLES, ROWS, COLUMNS = SPLITS = ("samples", "rows", "columns")
"""Which dimension of a layer's products is cut, of any layer;"""

SPACE = "space"
"""of a convolution also this one."""

BY_SAMPLES, BY_UNITS, WHOLE = "rows", "columns", "whole"
"""How a matrix (samples, units) is spread over the ranks of a group;"""

BY_PLACES, WITH_HALO = "places", "halo"
"""images also by their rows, without and with those beside them (nn/parallel/space.py)."""

FORK_JOIN = "fork-join"
"""No plan: rank 0 has everything, and others compute parts of its products (nn/train/fork_join.py)."""

_TAKES = {SAMPLES: BY_SAMPLES, ROWS: WHOLE, COLUMNS: BY_UNITS, SPACE: WITH_HALO}
_MAKES = {SAMPLES: BY_SAMPLES, ROWS: BY_UNITS, COLUMNS: WHOLE, SPACE: BY_PLACES}


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
    def model(cls, groups: int, shards: int, layers: int, by_samples: int = 0) -> Plan:
        """Split the layers' weights over a group: by rows, then columns, and so on; the last by columns.

        The first ``by_samples`` of them are split by samples: convolutions, whose filters are few and whose
        images are many (Krizhevsky 2014, "One weird trick").
        """
        if shards == 1:
            return cls.data(groups, layers)
        splits = [ROWS if layer % 2 else COLUMNS for layer in range(1, layers - by_samples)]
        return cls(groups, shards, (SAMPLES,) * by_samples + (*splits, COLUMNS))

    @property
    def ranks(self) -> int:
        return self.groups * self.shards

    @property
    def is_data(self) -> bool:
        """Whether there are no shards: nothing but gradients moves."""
        return self.shards == 1

    def takes(self, layer: int) -> str:
        """Return the spread of a layer's inputs; layer L + 1 is the head, its inputs the logits."""
        if layer <= len(self.splits):
            return _TAKES[self.splits[layer - 1]]
        # Labels come with images: where these are each rank's own, so are those.
        return BY_SAMPLES if SAMPLES in (self.splits[0], self.splits[-1]) else WHOLE

    def makes(self, layer: int) -> str:
        """Return the spread of a layer's outputs; layer 0 is the images, gathered where they are needed."""
        if layer == 0:
            return BY_SAMPLES if self.splits[0] == SAMPLES else WHOLE
        return _MAKES[self.splits[layer - 1]]

    def sums_inputs(self, layer: int) -> bool:
        """Return whether a rank has only a partial sum of the gradient of a layer's inputs."""
        return self.splits[layer - 1] == ROWS

    def sums_outputs(self, layer: int) -> bool:
        """Return whether a rank has only a partial sum of a layer's outputs."""
        return self.splits[layer - 1] == COLUMNS

    def over_all(self, layer: int) -> bool:
        """Return whether a layer's gradients are summed over all ranks, not over those of one shard alone."""
        return self.splits[layer - 1] in (SAMPLES, SPACE)

    @property
    def loss_over_all(self) -> bool:
        """The same of the loss."""
        return self.takes(len(self.splits) + 1) == BY_SAMPLES

    def largest_group(self, batch: int) -> int:
        """Return the most samples of a batch that a group gets."""
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
        for layer, split in zip(network.numbers, self.splits, strict=True):
            if split not in network.layer(layer).splits:
                raise UserError(
                    f"a plan that splits W{layer} by {split}: {network.layer(layer)} is split by "
                    f"{', '.join(network.layer(layer).splits)}"
                )
            if split == SPACE:
                self._require_rows(network, layer)
            elif split != SAMPLES:
                self._require_shares(network, layer, split)

    def _require_shares(self, network: Network, layer: int, split: str) -> None:
        """UserError where a rank would get no row, or no column, of a layer's W."""
        stage = network.stages[layer]
        if split == ROWS:
            size, what = network.matrix(layer)[0], split
        elif stage.makes_images:
            size, what = stage.input[-1], "channels"
        else:
            size, what = network.sizes[layer - 1], split
        if size < self.shards:
            raise UserError(
                f"a plan that splits the {size} {what} of W{layer} over {self.shards} ranks: one would "
                "get none; use fewer shards or wider layers"
            )

    def _require_rows(self, network: Network, layer: int) -> None:
        """UserError where a layer's images cannot be split by their rows."""
        stage, where = network.stages[layer], f"a plan that splits W{layer} by {SPACE}"
        size = min(stage.input[0], stage.output[0])
        if size < self.shards:
            raise UserError(
                f"{where}: of {size} rows of images one of {self.shards} ranks would get none; "
                "use fewer shards"
            )

    def __str__(self) -> str:
        why = f" ({self.why})" if self.why else ""
        if self.is_data:
            return f"data: {self.groups} part(s) of each batch{why}"
        return f"{self.groups} group(s) of {self.shards} shards: {', '.join(self._words())}{why}"

    def _words(self) -> Iterator[str]:
        """Say how layers are split; of three or more of one split, side by side, the first and the last."""
        first = 1
        for split, alike in groupby(self.splits):
            last = first + len(list(alike)) - 1
            if last - first < 2:
                yield from (f"W{layer} by {split}" for layer in range(first, last + 1))
            else:
                yield f"W{first} to W{last} by {split}"
            first = last + 1


def by_samples(network: Network) -> int:
    """Count the first layers whose weights the plan ``model`` does not split: convolutions."""
    return sum(network.stages[number].makes_images for number in network.numbers)
