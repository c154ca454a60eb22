"""The layers without parameters behind a layer in a step's list, forward and back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from nn.launch.dropout import Draw
from nn.model.layer import Layer
from nn.parallel.halos import PoolHalo
from nn.parallel.shard import Shard
from nn.program import operations
from nn.program.activations import Activations, WithHalo
from nn.program.dropout import Draws
from nn.program.layer_operations import FollowerOperations, follower_operations
from nn.program.moves import Moved
from nn.program.operations import BACKWARD, FORWARD, Item
from nn.program.pool import PoolOperations
from pyrt.arrays import DeviceArray


@dataclass(frozen=True)
class Followers:
    """What follows the layers of a network, and does something in a pass."""

    shard: Shard
    activations: Activations
    draws: Draws | None
    """What layers draw from; None where nothing trains."""

    def between(self, layer: int, samples: int) -> list[DeviceArray]:
        """Return what a layer makes, then what each that follows it makes; the last is what the stage makes.

        A follower that does nothing here makes what it takes: then the one before it makes that in its place.
        """
        arrays = self.activations.between(layer, samples)
        works = [self._works(one) for one in self.shard.network.stages[layer].followers]
        return [array for array, is_read in zip(arrays, [*works, True], strict=True) if is_read]

    def forward(self, layer: int, samples: int) -> list[Item]:
        """List their operations behind a layer, or behind the input."""
        between, items = self.between(layer, samples), list[Item]()
        for one, A, output in zip(self._all(layer, samples), between, between[1:], strict=False):
            items += one.forward(A, output)
        return items

    def backward(self, layer: int, samples: int) -> list[Item]:
        """List the way back, from the gradient of what the last of them makes to that of the layer's own."""
        between, back = (
            of(layer, samples) for of in (self.activations.between, self.activations.between_back)
        )
        items: list[Item] = []
        for place, one in reversed(list(enumerate(self._all(layer, samples)))):
            items += one.backward(back[place], back[place + 1], between[place + 1])
        return items

    def _works(self, follower: Layer) -> bool:
        """Return whether a layer does something in this pass."""
        return self.draws is not None or not follower.only_trains

    def _all(self, layer: int, samples: int) -> list[_Follower]:
        """Return all that do something."""
        stage = self.shard.network.stages[layer]
        places = range(len(stage.followers))
        return [self._at(layer, place, samples) for place in places if self._works(stage.followers[place])]

    def _at(self, layer: int, place: int, samples: int) -> _Follower:
        """Return the one at a place behind a layer."""
        stage, kept = self.shard.network.stages[layer], self.activations.places(layer, samples)[place]
        halo = self.shard.pool_halo(layer, place, samples)
        if halo is not None:
            pool = PoolOperations(halo.window, halo.window_back, layer)
            return _PoolWithHalo(pool, kept, halo, self.activations.with_pool_halo(layer, place, samples))
        shape = self.shard.made(layer, stage.shapes[place - len(stage.followers) - 1])
        draw = self._draw(layer, place, samples)
        return _Plain(follower_operations(stage.followers[place], shape, layer, draw), kept)

    def _draw(self, layer: int, place: int, samples: int) -> Draw | None:
        """Return what decides for the layer at this place behind a layer."""
        if self.draws is None:
            return None
        shard, stage = self.shard, self.shard.network.stages[layer]
        shape, spread = stage.shapes[place - len(stage.followers)], shard.spreads.made(layer)
        part, pixels = shard.part(spread, layer, samples, shape), shard.spreads.pixels(layer, shape, spread)
        return self.draws.of(stage.place + 1 + place, part, pixels, math.prod(shape) // pixels)


class _Follower(Protocol):
    """One of them on a rank."""

    def forward(self, A: DeviceArray, output: DeviceArray) -> list[Item]: ...

    def backward(self, dA: DeviceArray, gradient: DeviceArray, made: DeviceArray) -> list[Item]: ...


@dataclass(frozen=True)
class _Plain:
    """One that needs nothing of other ranks."""

    operations: FollowerOperations
    places: DeviceArray | None

    def forward(self, A: DeviceArray, output: DeviceArray) -> list[Item]:
        return [self.operations.forward(A, output, self.places)]

    def backward(self, dA: DeviceArray, gradient: DeviceArray, made: DeviceArray) -> list[Item]:
        return [self.operations.backward(dA, gradient, self.places, made)]


@dataclass(frozen=True)
class _PoolWithHalo:
    """A pool whose windows overlap, on rows of images: with those beside them, forward and back."""

    operations: PoolOperations
    places: DeviceArray | None
    halo: PoolHalo
    arrays: WithHalo

    def forward(self, A: DeviceArray, output: DeviceArray) -> list[Item]:
        images, outputs, number = self.arrays.images, self.arrays.outputs, self.operations.number
        own = outputs.columns(*self.halo.own)
        return [
            *Moved.of(f"halo of pooling {number}", FORWARD, self.halo.images, A, images).at_once,
            self.operations.forward(images, outputs, self.places),
            operations.take_columns(f"take part of pooling {number}", FORWARD, own, output),
        ]

    def backward(self, dA: DeviceArray, gradient: DeviceArray, made: DeviceArray) -> list[Item]:
        gradients, name = self.arrays.gradients, f"halo of pooling gradient {self.operations.number}"
        return [
            *Moved.of(name, BACKWARD, self.halo.gradients, gradient, gradients).at_once,
            self.operations.backward(dA, gradients, self.places, self.arrays.outputs),
        ]
