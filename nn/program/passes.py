"""The one description of a training step: a list of operations over arrays that stay where they are.

Built once for each number of samples that a rank gets (a full batch, the short last one). The operations of a
layer are in a file of its kind (nn/program/dense.py); here are their order, and what moves between ranks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from nn.input.source import Source
from nn.launch.dropout import Draw
from nn.launch.head import Head
from nn.model.layer import Layer
from nn.parallel.buckets import LOSS, Panel
from nn.parallel.plan import BY_UNITS
from nn.parallel.shard import Shard
from nn.program import operations
from nn.program.activations import Activations
from nn.program.dropout import Draws, count_step
from nn.program.layer_operations import (
    FollowerOperations,
    LayerOperations,
    follower_operations,
    operations_of,
)
from nn.program.operations import (
    BACKWARD,
    FORWARD,
    BucketReady,
    FinishRedistribution,
    Item,
    Operation,
    StartRedistribution,
)
from nn.program.panels import split_into_panels
from nn.program.rewrite import rewrite
from pyrt.arrays import Arena, DeviceArray
from pyrt.redistribute import Redistribution


@dataclass(frozen=True)
class Pass:
    """What the passes through the network are made of; each is a list for so many samples of the group."""

    shard: Shard
    parameters: Arena
    activations: Activations
    source: Source
    scale: float
    """Pixels are divided by it."""
    draws: Draws | None = None
    """What layers draw from; None where nothing trains."""

    def logits(self, samples: int) -> list[Item]:
        """List the operations from images to logits, as the head takes them."""
        items = self._forward(samples)
        if not self._adds_bias:
            depth = self.shard.network.depth
            items += _of_layer(depth, [self._add_output_bias(self.activations.taken(depth, samples))])
        return _without_empty(items)

    def gradients(self, gradients: Arena, panels: Sequence[Panel], samples: int, batch: int) -> list[Item]:
        """List the operations from the images to this rank's part of all gradients.

        ``samples`` of the ``batch`` are this group's.
        """
        items = [
            *self._forward(samples),
            *self._head(gradients, panels, samples, batch),
            *self._backward(gradients, panels, samples),
        ]
        return _without_empty(rewrite(items, [split_into_panels]))

    @property
    def _adds_bias(self) -> bool:
        """Whether each rank adds its units' part of the output bias before the logits come together."""
        return self.shard.plan.makes(self.shard.network.depth) == BY_UNITS

    @property
    def _output_bias(self) -> DeviceArray:
        return self.parameters[f"b{self.shard.network.depth}"]

    def _forward(self, samples: int) -> list[Item]:
        """List the operations to Z_L = A_{L-1} W_L^T, without its bias unless `_adds_bias`."""
        X = self._between(0, samples)
        items: list[Item] = [operations.take_batch(self.source, X[0], self.scale)]
        if self.draws is not None:
            items.append(count_step(self.draws.step))
        items += [*self._follow(0, samples), *self._take_channels(0, samples)]
        for layer in self.shard.network.numbers:
            items += _of_layer(layer, self._layer(layer, samples))
        return items

    def _operations(self, layer: int) -> LayerOperations:
        return operations_of(self.shard, layer, self.parameters)

    def _layer(self, layer: int, samples: int) -> list[Item]:
        shard, activations, own = self.shard, self.activations, self._operations(layer)
        A, Z = activations.taken(layer - 1, samples), self._between(layer, samples)[0]
        product = own.forward(A, Z)
        items: list[Item] = [product]
        items += _Moved.of(f"sum of {product.name}", FORWARD, shard.sum_move(layer, samples), Z, Z).at_once
        if layer < shard.network.depth:
            items.append(own.activate(Z))
        elif self._adds_bias:
            items.append(self._add_output_bias(Z))
        items += self._follow(layer, samples)
        items += self._take_channels(layer, samples)
        Z = activations.made(layer, samples)
        move, taken = shard.forward_move(layer, samples), activations.taken(layer, samples)
        return [*items, *_Moved.of(f"move of activations {layer}", FORWARD, move, Z, taken).at_once]

    def _take_channels(self, layer: int, samples: int) -> list[Item]:
        """List the copy of those channels that the next layer takes, where this rank has them all."""
        shard, shape = self.shard, self.shard.network.stages[layer].output
        if not shard.takes_channels(layer):
            return []
        made, taken = self.activations.made(layer, samples), self.activations.taken(layer, samples)
        pixels, channels = made.shape[0] * shard.pixels(layer, shape), shape[-1]
        part = shard.part(shard.plan.takes(layer + 1), layer, samples, shape)
        X = made.reshape(pixels, channels).columns(*part.columns)
        return [operations.take_channels(f"take channels {layer}", X, taken.reshape(*X.shape))]

    def _follow(self, layer: int, samples: int) -> list[Item]:
        """List the layers without parameters behind a layer, or behind the input."""
        between = self._between(layer, samples)
        return [
            one.forward(A, output, places)
            for (one, places), A, output in zip(
                self._followers(layer, samples), between, between[1:], strict=False
            )
        ]

    def _between(self, layer: int, samples: int) -> list[DeviceArray]:
        """Return what a layer makes, then what each that follows it makes; the last is what the stage makes.

        A follower that does nothing here makes what it takes: then the one before it makes that in its place.
        """
        arrays = self.activations.between(layer, samples)
        works = [self._works(one) for one in self.shard.network.stages[layer].followers]
        return [array for array, is_read in zip(arrays, [*works, True], strict=True) if is_read]

    def _works(self, follower: Layer) -> bool:
        """Return whether a layer does something in this pass."""
        return self.draws is not None or not follower.only_trains

    def _followers(self, layer: int, samples: int) -> list[tuple[FollowerOperations, DeviceArray | None]]:
        """Return what follows a layer and does something here, with what it keeps for the way back."""
        stage, places = self.shard.network.stages[layer], self.activations.places(layer, samples)
        shapes = stage.shapes[-1 - len(stage.followers) :]
        return [
            (
                follower_operations(
                    one, self.shard.made(layer, shapes[place]), layer, self._draw(layer, place, samples)
                ),
                places[place],
            )
            for place, one in enumerate(stage.followers)
            if self._works(one)
        ]

    def _draw(self, layer: int, place: int, samples: int) -> Draw | None:
        """Return what decides for the layer at this place behind a layer."""
        if self.draws is None:
            return None
        shard, stage = self.shard, self.shard.network.stages[layer]
        shape = stage.shapes[len(stage.shapes) - len(stage.followers) + place]
        part, pixels = shard.part(shard.plan.makes(layer), layer, samples, shape), shard.pixels(layer, shape)
        return self.draws.of(stage.place + 1 + place, part, pixels, math.prod(shape) // pixels)

    def _add_output_bias(self, Z: DeviceArray) -> Operation:
        return operations.bias_activation("output bias", Z, self._output_bias, "identity")

    def _head(self, gradients: Arena, panels: Sequence[Panel], samples: int, batch: int) -> list[Item]:
        """Logits to dZ_L, where the output layer made Z_L, and to the loss."""
        shard, activations, depth = self.shard, self.activations, self.shard.network.depth
        Z, losses = activations.taken(depth, samples), activations.losses(samples)
        first = shard.rows(depth + 1, samples)[0] - shard.rows(1, samples)[0]
        labels = self.source.labels.rows(first, first + Z.shape[0])
        b = activations.no_bias if self._adds_bias else self._output_bias
        items: list[Item] = [
            operations.head(Head(shard.network.loss, Z, b, labels, losses, 1 / batch)),
            operations.column_sums(
                "sum of losses", FORWARD, losses.reshape(losses.size, 1), gradients["loss"]
            ),
        ]
        items += _leave(gradients, panels, LOSS, FORWARD)
        move, made_back = shard.backward_move(depth, samples), activations.made_back(depth, samples)
        items += _Moved.of(f"move of gradients {depth}", FORWARD, move, Z, made_back).at_once
        return _of_layer(depth, items)

    def _backward(self, gradients: Arena, panels: Sequence[Panel], samples: int) -> list[Item]:
        """dZ_L to all gradients. W_l is read before the first bucket of its layer may leave and update it."""
        items: list[Item] = []
        products = itertools.count(1)
        for layer in reversed(self.shard.network.numbers):
            own, dZ = self._operations(layer), self.activations.between_back(layer, samples)[0]
            moved = self._below(layer, samples, next(products)) if layer > 1 else _Moved()
            A = self.activations.taken(layer - 1, samples)
            weights = own.weight_gradient(next(products), A, dZ, gradients)
            # While dZ_{l-1} moves the gradients of W_l are made.
            mine = [own.bias_gradient(dZ, gradients), *moved.start, weights]
            items += _of_layer(layer, [*mine, *_leave(gradients, panels, layer, BACKWARD), *moved.finish])
        return items

    def _below(self, layer: int, samples: int, product: int) -> _Moved:
        """dZ_{l-1}, from dZ_l, by the backward pass's product of this number."""
        activations, below = self.activations, layer - 1
        taken, made = activations.taken_back(below, samples), activations.made_back(below, samples)
        move = self.shard.backward_move(below, samples)
        moved = _Moved.of(f"move of gradients {below}", BACKWARD, move, taken, made)
        dZ = activations.between_back(layer, samples)[0]
        multiply = self._operations(layer).input_gradient(product, dZ, taken)
        through = self._through(below, samples)
        if move is None:
            return _Moved([multiply, *through])
        return _Moved([multiply, *moved.start], [*moved.finish, *through])

    def _through(self, layer: int, samples: int) -> list[Item]:
        """The gradient of what the next layer takes to dZ of a layer, through those that follow it."""
        between, back = (
            of(layer, samples) for of in (self.activations.between, self.activations.between_back)
        )
        followers = self._followers(layer, samples)
        items: list[Item] = [
            one.backward(back[place], back[place + 1], places, between[place + 1])
            for place, (one, places) in reversed(list(enumerate(followers)))
        ]
        return [*items, self._operations(layer).activation_gradient(between[0], back[0])]


def _of_layer(layer: int, items: Sequence[Item]) -> list[Item]:
    return [replace(item, layer=layer) if isinstance(item, Operation) else item for item in items]


def _leave(gradients: Arena, panels: Sequence[Panel], layer: int, part: str) -> list[BucketReady]:
    """Mark where a layer's buckets may leave; its product is split accordingly (nn/program/panels.py)."""
    return [
        BucketReady(
            bucket,
            part,
            gradients.flat.rows(*panel.bucket),
            (panel.start, panel.stop) if layer != LOSS else None,
        )
        for bucket, panel in enumerate(panels)
        if panel.layer == layer
    ]


@dataclass(frozen=True)
class _Moved:
    """What starts a move, and what ends it."""

    start: list[Item] = field(default_factory=list)
    finish: list[Item] = field(default_factory=list)

    @classmethod
    def of(
        cls, name: str, part: str, move: Redistribution | None, source: DeviceArray, target: DeviceArray
    ) -> _Moved:
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
    samples, units = array.shape
    if move.together == 1:
        return array
    return array.reshape(samples * move.together, units // move.together)


def _without_empty(items: Sequence[Item]) -> list[Item]:
    """Replace operations that read empty arrays, as on ranks without samples, by zeros in what they write."""
    result: list[Item] = []
    for item in items:
        if not isinstance(item, Operation) or all(array.size for array in item.reads):
            result.append(item)
        else:
            zeros = (operations.zeros(item.name, item.part, array) for array in item.writes if array.size)
            result += _of_layer(item.layer, list(zeros))
    return result
