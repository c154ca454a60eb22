"""Activations and their gradients on the device: of each matrix the part that the plan gives this rank."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nn.model.layer import Shape
from nn.model.network import LARGEST
from nn.parallel.halos import PoolHalo
from nn.parallel.plan import WHOLE
from nn.parallel.shard import Shard
from pyrt.arrays import Arena, DeviceArray, Empty
from pyrt.errors import UserError
from pyrt.redistribute import Redistribution


@dataclass(frozen=True)
class WithHalo:
    """Arrays of a pool on rows of images: what it takes, makes, and the gradient of this, with their halo."""

    images: DeviceArray
    outputs: DeviceArray
    gradients: DeviceArray

    def of(self, samples: int) -> WithHalo:
        """Return those of so many samples."""
        return WithHalo(*(array.rows(0, samples) for array in (self.images, self.outputs, self.gradients)))


class Activations:
    """Device arrays for the activations of up to ``samples`` samples of a group, and for their gradients.

    Of each matrix (samples, units) this rank has the part that its plan gives it. What a layer ``made`` lies
    where the next one takes it, in the same array or in a part of it, but where it must move; so do
    gradients, the other way round. Where layers without parameters follow it, what is ``made`` is theirs;
    its own outputs, and what each of them makes but the last, are ``between``.
    """

    def __init__(self, parameters: Arena, shard: Shard, samples: int, empty: Empty) -> None:
        """``empty`` makes those that live within a list; see nn/program/step_memory.py."""
        self._shard, self._plan, self._network = shard, shard.plan, shard.network
        self._driver, self._dtype, self._empty = parameters.flat.driver, parameters.flat.dtype, empty
        self.samples = samples
        plan, layers = shard.plan, shard.network.numbers
        spreads = shard.spreads
        moved = [layer for layer in layers if shard.forward_move(layer, samples)]
        moved_back = [layer for layer in layers if _needs_room(shard.backward_move(layer, samples))]
        parts = [layer for layer in (0, *layers) if spreads.takes_part(layer)]
        parts_back = [layer for layer in layers if spreads.makes_part_back(layer)]
        self._made = {layer: self._room(plan.makes(layer), layer) for layer in (0, *layers)}
        self._arrived = {layer: self._room(spreads.arrives(layer), layer) for layer in moved}
        self._taken = {layer: self._room(spreads.taken(layer), layer) for layer in parts}
        self._taken_back = {layer: self._room(spreads.taken_back(layer), layer) for layer in layers[:-1]}
        halos = {layer: shard.halo_move(layer, samples) for layer in layers}
        self._with_halo = {layer: self._target(move) for layer, move in halos.items() if move is not None}
        self._arrived_back = {layer: self._room(spreads.arrives_back(layer), layer) for layer in moved_back}
        self._made_back = {layer: self._room(plan.makes(layer), layer) for layer in parts_back}
        self._between = {layer: self._rooms_between(layer) for layer in (0, *layers)}
        self._between_back = {layer: self._rooms_between(layer) for layer in layers}
        self._pools = {
            (layer, place): self._rooms_with_halo(halo)
            for layer in layers
            for place in range(len(shard.network.stages[layer].followers))
            if (halo := shard.pool_halo(layer, place, samples)) is not None
        }
        self._places = {layer: self._rooms_for_places(layer) for layer in (0, *layers)}
        own, _ = shard.held(plan.takes(shard.network.depth + 1), (samples, 1)).shape
        self._losses = empty((max(1, own),), self._dtype)
        with self._driver.ledger.of("activations", shard.network.depth):
            self.no_bias = DeviceArray.from_host(self._driver, np.zeros(shard.network.classes, self._dtype))
            """Of an output layer whose ranks add the bias, each that of its units, to what they make."""

    def _room(self, spread: str, layer: int) -> DeviceArray:
        return self._matrix(*self._held(spread, layer, self._network.stages[layer].output))

    def _target(self, move: Redistribution) -> DeviceArray:
        return self._matrix(*move.target_of(self._plan.shards, self._shard.index).shape)

    def _matrix(self, rows: int, columns: int) -> DeviceArray:
        if rows * columns > LARGEST:
            raise UserError(
                f"{rows} samples a rank in layers of up to {self._widest} units are more than "
                "2^31 activations: use a smaller --batch or more ranks"
            )
        return self._empty((max(1, rows), columns), self._dtype)

    @property
    def _widest(self) -> int:
        """Units of the widest layer."""
        return max(math.prod(shape) for stage in self._network.stages for shape in stage.shapes)

    def _rooms_between(self, layer: int) -> list[DeviceArray]:
        """Make room for what a layer and those that follow it make, but for the last."""
        shapes = self._network.stages[layer].shapes[-1 - len(self._network.stages[layer].followers) : -1]
        return [self._matrix(*self._held(self._plan.makes(layer), layer, shape)) for shape in shapes]

    def _held(self, spread: str, layer: int, shape: Shape) -> tuple[int, int]:
        """Return rows and columns of this rank's part of what is behind a layer, a row a sample."""
        rows, columns = self._shard.part(spread, layer, self.samples, shape).shape
        return rows, columns * self._shard.spreads.pixels(layer, shape, spread)

    def _rooms_with_halo(self, halo: PoolHalo) -> WithHalo:
        images, gradients = self._target(halo.images), self._target(halo.gradients)
        return WithHalo(images, self._matrix(*gradients.shape), gradients)

    def _rooms_for_places(self, layer: int) -> list[DeviceArray | None]:
        """Make room for what the layers that follow a layer keep for the way back."""
        stage = self._network.stages[layer]
        outputs = stage.shapes[len(stage.shapes) - len(stage.followers) :]
        held = [self._held(self._plan.makes(layer), layer, shape) for shape in outputs]
        for place, _ in enumerate(held):
            if (layer, place) in self._pools:
                rows, columns = self._pools[layer, place].outputs.shape
                held[place] = rows, columns
        return [
            self._empty((max(1, rows), columns), np.uint8) if follower.keeps_places else None
            for follower, (rows, columns) in zip(stage.followers, held, strict=True)
        ]

    def places(self, layer: int, samples: int) -> list[DeviceArray | None]:
        """Return what each layer that follows a layer keeps for the way back; None for one that does not."""
        rows = self.made(layer, samples).shape[0]
        return [room.rows(0, rows) if room is not None else None for room in self._places[layer]]

    def with_pool_halo(self, layer: int, place: int, samples: int) -> WithHalo:
        """Return the arrays of a pool behind a layer, with their halo."""
        return self._pools[layer, place].of(self.made(layer, samples).shape[0])

    def between(self, layer: int, samples: int) -> list[DeviceArray]:
        """Return what a layer makes, then what each that follows it makes; the last is what is ``made``."""
        made = self.made(layer, samples)
        return [*(room.rows(0, made.shape[0]) for room in self._between[layer]), made]

    def between_back(self, layer: int, samples: int) -> list[DeviceArray]:
        """Return the gradients of what is ``between``."""
        made = self.made_back(layer, samples)
        return [*(room.rows(0, made.shape[0]) for room in self._between_back[layer]), made]

    def made(self, layer: int, samples: int) -> DeviceArray:
        """Return this rank's part of a layer's outputs; for layer 0 the images that it gathers, scaled."""
        return self._first(self._made[layer], self._plan.makes(layer), layer, samples)

    def arrived(self, layer: int, samples: int) -> DeviceArray:
        """Return what has come of a layer's outputs: what is ``taken``, or all if that is copied from it."""
        arrives = self._shard.spreads.arrives(layer)
        if layer in self._arrived:
            return self._first(self._arrived[layer], arrives, layer, samples)
        return self._within(self.made(layer, samples), self._plan.makes(layer), arrives, layer, samples)

    def taken(self, layer: int, samples: int) -> DeviceArray:
        """Return the part of a layer's outputs that this rank needs for the next layer, or for the head."""
        if layer in self._taken:
            return self._first(self._taken[layer], self._shard.spreads.taken(layer), layer, samples)
        return self.arrived(layer, samples)

    def taken_back(self, layer: int, samples: int) -> DeviceArray:
        """Return the gradient of what is ``taken``, or this rank's partial sum of it.

        That of the logits lies in their place.
        """
        if layer == self._network.depth:
            return self.taken(layer, samples)
        return self._first(self._taken_back[layer], self._shard.spreads.taken_back(layer), layer, samples)

    def with_halo(self, layer: int, samples: int) -> DeviceArray:
        """Return the gradient of a layer's own outputs, with the halo that its images' gradient takes."""
        dZ = self.between_back(layer, samples)[0]
        return self._with_halo[layer].rows(0, dZ.shape[0]) if layer in self._with_halo else dZ

    def made_back(self, layer: int, samples: int) -> DeviceArray:
        """Return the gradient of what is ``made``."""
        if layer in self._made_back:
            return self._first(self._made_back[layer], self._plan.makes(layer), layer, samples)
        return self.arrived_back(layer, samples)

    def arrived_back(self, layer: int, samples: int) -> DeviceArray:
        """Return what has come of that gradient: all of it if ``made_back`` is copied from it."""
        spreads = self._shard.spreads
        arrives = spreads.arrives_back(layer)
        if layer in self._arrived_back:
            return self._first(self._arrived_back[layer], arrives, layer, samples)
        back = self.taken_back(layer, samples)
        return self._within(back, spreads.taken_back(layer), arrives, layer, samples)

    def losses(self, samples: int) -> DeviceArray:
        """Return a loss for each row of logits that this rank takes."""
        return self._losses.rows(0, self.taken(self._network.depth, samples).shape[0])

    def _first(self, room: DeviceArray, spread: str, layer: int, samples: int) -> DeviceArray:
        rows, _ = self._shard.part(spread, layer, samples, self._network.stages[layer].output).shape
        return room.rows(0, rows)

    def _within(self, array: DeviceArray, has: str, wants: str, layer: int, samples: int) -> DeviceArray:
        """Return this rank's part of a whole array, or the array itself if it is that part."""
        if self._shard.spreads.are_same(has, wants, layer):
            return array
        part = self._shard.part(wants, layer, samples, self._network.stages[layer].output)
        return array.rows(*part.rows).columns(*part.columns)


def _needs_room(move: Redistribution | None) -> bool:
    """Sums that all ranks want are made in place."""
    return move is not None and not (move.sums and move.target == WHOLE)
