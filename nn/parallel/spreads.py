"""How the ranks of a group hold what is behind a layer: by samples, units, channels, rows, or whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nn.model.conv2d import Conv2d
from nn.model.layer import Shape
from nn.model.network import Network
from nn.model.window import Window
from nn.parallel import space
from nn.parallel.plan import BY_PLACES, BY_UNITS, WHOLE, WITH_HALO, Plan
from pyrt.redistribute import Redistribution
from pyrt.redistribute.regions import Spans, share


@dataclass(frozen=True)
class Spreads:
    """The spreads of a plan behind each layer, 0 to L, of a network: of a matrix of a row a sample.

    Where a layer makes images, or the next one takes them, `BY_UNITS` is by their channels: then the matrix
    has a row a pixel, and a rank's channels are some columns of it.
    """

    plan: Plan
    network: Network

    def made(self, layer: int) -> str:
        """Return the spread of a layer's outputs; of layer 0 of the images."""
        return self.plan.makes(layer)

    def taken(self, layer: int) -> str:
        """Return the spread in which the next layer takes them, or the head.

        A dense layer by columns takes rows of images, at all their places, as they are.
        """
        taken = self.plan.takes(layer + 1)
        if taken == BY_UNITS and self.made(layer) == BY_PLACES and not self._feeds_images(layer):
            return BY_PLACES
        return taken

    def arrives(self, layer: int) -> str:
        """Return the spread in which they arrive where they are taken: whole where a part is copied there."""
        return WHOLE if self.takes_part(layer) else self.taken(layer)

    def takes_part(self, layer: int) -> bool:
        """Return whether the next layer takes some channels, or rows, of images that each rank has whole.

        Of rows that become channels, or channels that become rows, each rank gets all first.
        """
        made, taken = self.made(layer), self.taken(layer)
        if not self._feeds_images(layer) or taken not in (BY_UNITS, WITH_HALO):
            return False
        return made == WHOLE or (made, taken) in ((BY_UNITS, WITH_HALO), (BY_PLACES, BY_UNITS))

    def taken_back(self, layer: int) -> str:
        """Return the spread of the gradient of what the next layer takes, which has no halo."""
        taken = self.taken(layer)
        return BY_PLACES if taken == WITH_HALO else taken

    def arrives_back(self, layer: int) -> str:
        """Return the spread in which it arrives at this layer."""
        return WHOLE if self.makes_part_back(layer) else self.made(layer)

    def makes_part_back(self, layer: int) -> bool:
        """Return whether this layer takes a part of it that each rank has whole."""
        return {self.made(layer), self.taken_back(layer)} == {BY_UNITS, BY_PLACES}

    def _feeds_images(self, layer: int) -> bool:
        return layer < self.network.depth and self.network.stages[layer + 1].makes_images

    def pixels(self, layer: int, shape: Shape, *spreads: str) -> int:
        """Count the rows of a sample of this shape: a pixel each where one of the spreads is by channels."""
        by_channels = BY_UNITS in spreads and self.splits_channels(layer)
        return math.prod(shape[:-1]) if by_channels else 1

    def splits_channels(self, layer: int) -> bool:
        """Return whether `BY_UNITS` is by channels behind a layer."""
        made = self.made(layer) == BY_UNITS and self.network.stages[layer].makes_images
        return made or self._feeds_images(layer)

    def resolved(self, spread: str, layer: int, shape: Shape) -> str | Spans:
        """Return a spread, of samples of this shape, as a redistribution knows it."""
        if spread == BY_PLACES:
            rows = self.rows(layer, shape[0])
        elif spread == WITH_HALO:
            window = self.window(layer + 1)
            rows = [space.seen(window, own) for own in self.rows_made(layer + 1)]
        else:
            return spread
        return space.flattened(rows, math.prod(shape[1:]))

    def are_same(self, one: str, other: str, layer: int) -> bool:
        """Return whether two spreads of what is behind a layer are one, as with a halo of no rows."""
        shape = self.network.stages[layer].output
        return self.resolved(one, layer, shape) == self.resolved(other, layer, shape)

    def move(self, layer: int, samples: int, source: str, target: str, sums: bool = False) -> Redistribution:
        """Return the redistribution of what is behind a layer."""
        shape = self.network.stages[layer].output
        pixels = self.pixels(layer, shape, source, target)
        matrix = samples * pixels, math.prod(shape) // pixels
        has, gets = (self.resolved(spread, layer, shape) for spread in (source, target))
        return Redistribution(matrix, has, gets, sums, together=pixels)

    def rows(self, layer: int, height: int) -> Sequence[space.Span]:
        """Return each rank's rows of images of this height that a layer, or one behind it, makes."""
        if layer > 0 and self.made(layer) == BY_PLACES:
            return space.rows_of(self.network.stages[layer], self.plan.shards)[height]
        return [share(height, self.plan.shards, rank) for rank in range(self.plan.shards)]

    def rows_made(self, layer: int) -> Sequence[space.Span]:
        """Return each rank's rows of what a convolution itself makes."""
        return self.rows(layer, self.network.stages[layer].made[0])

    def rows_seeing(self, layer: int) -> list[space.Span]:
        """Return the rows of a convolution's outputs that see each rank's rows of its images."""
        window = self.window(layer)
        return [space.seeing(window, rows) for rows in self.rows(layer - 1, window.height)]

    def window(self, layer: int) -> Window:
        """Return a convolution's window on whole images."""
        convolution = self.network.layer(layer)
        assert isinstance(convolution, Conv2d), "others have no window"
        return convolution.window(self.network.stages[layer].input)
