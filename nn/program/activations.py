"""Activations and their gradients on the device: of each matrix the part that the plan gives this rank."""

from __future__ import annotations

import numpy as np

from nn.model.network import LARGEST
from nn.parallel.plan import WHOLE
from nn.parallel.shard import Shard
from pyrt.arrays import Arena, DeviceArray
from pyrt.errors import UserError
from pyrt.redistribute import Redistribution


class Activations:
    """Device arrays for the activations of up to ``samples`` samples of a group, and for their gradients.

    Of each matrix (samples, units) this rank has the part that its plan gives it. What a layer ``made`` lies
    where the next one takes it, in the same array or in a part of it, but where it must move; so do
    gradients, the other way round.
    """

    def __init__(self, parameters: Arena, shard: Shard, samples: int) -> None:
        self._shard, self._plan, self._network = shard, shard.plan, shard.network
        self._driver, self._dtype = parameters.flat.driver, parameters.flat.dtype
        self.samples = samples
        plan, layers = shard.plan, shard.network.numbers
        moved = [layer for layer in layers if shard.forward_move(layer, samples)]
        moved_back = [layer for layer in layers if _needs_room(shard.backward_move(layer, samples))]
        self._made = {layer: self._room(plan.makes(layer), layer) for layer in (0, *layers)}
        self._taken = {layer: self._room(plan.takes(layer + 1), layer) for layer in moved}
        self._taken_back = {layer: self._room(plan.takes(layer + 1), layer) for layer in layers[:-1]}
        self._made_back = {layer: self._room(plan.makes(layer), layer) for layer in moved_back}
        own, _ = shard.held(plan.takes(shard.network.depth + 1), (samples, 1)).shape
        with self._driver.ledger.of("activations", shard.network.depth):
            self._losses = DeviceArray.empty(self._driver, (max(1, own),), self._dtype)
            self.no_bias = DeviceArray.from_host(self._driver, np.zeros(shard.network.classes, self._dtype))
            """Of an output layer whose ranks add the bias, each that of its units, to what they make."""

    def _room(self, spread: str, layer: int) -> DeviceArray:
        rows, columns = self._shard.held(spread, (self.samples, self._network.sizes[layer])).shape
        if rows * columns > LARGEST:
            raise UserError(
                f"{rows} samples a rank in layers of up to {max(self._network.sizes)} units are more than "
                "2^31 activations: use a smaller --batch or more ranks"
            )
        with self._driver.ledger.of("activations", layer):
            return DeviceArray.empty(self._driver, (max(1, rows), columns), self._dtype)

    def made(self, layer: int, samples: int) -> DeviceArray:
        """Return this rank's part of a layer's outputs; for layer 0 the images that it gathers, scaled."""
        return self._first(self._made[layer], self._plan.makes(layer), layer, samples)

    def taken(self, layer: int, samples: int) -> DeviceArray:
        """Return the part of a layer's outputs that this rank needs for the next layer, or for the head."""
        taken = self._plan.takes(layer + 1)
        if layer in self._taken:
            return self._first(self._taken[layer], taken, layer, samples)
        return self._within(self.made(layer, samples), self._plan.makes(layer), taken, layer, samples)

    def taken_back(self, layer: int, samples: int) -> DeviceArray:
        """Return the gradient of what is ``taken``, or this rank's partial sum of it.

        That of the logits lies in their place.
        """
        if layer == self._network.depth:
            return self.taken(layer, samples)
        return self._first(self._taken_back[layer], self._plan.takes(layer + 1), layer, samples)

    def made_back(self, layer: int, samples: int) -> DeviceArray:
        """Return the gradient of what is ``made``."""
        made = self._plan.makes(layer)
        if layer in self._made_back:
            return self._first(self._made_back[layer], made, layer, samples)
        back = self.taken_back(layer, samples)
        return self._within(back, self._plan.takes(layer + 1), made, layer, samples)

    def losses(self, samples: int) -> DeviceArray:
        """Return a loss for each row of logits that this rank takes."""
        return self._losses.rows(0, self.taken(self._network.depth, samples).shape[0])

    def _first(self, room: DeviceArray, spread: str, layer: int, samples: int) -> DeviceArray:
        rows, _ = self._shard.held(spread, (samples, self._network.sizes[layer])).shape
        return room.rows(0, rows)

    def _within(self, array: DeviceArray, has: str, wants: str, layer: int, samples: int) -> DeviceArray:
        """Return this rank's part of a whole array, or the array itself if it is that part."""
        if has == wants:
            return array
        shard = self._shard.held(wants, (samples, self._network.sizes[layer]))
        return array.rows(*shard.rows).columns(*shard.columns)


def _needs_room(move: Redistribution | None) -> bool:
    """Sums that all ranks want are made in place."""
    return move is not None and not (move.sums and move.target == WHOLE)
