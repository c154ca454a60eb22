"""The one description of a training step: a list of operations over arrays that stay where they are.

Built once for each number of samples that a rank gets (a full batch, the short last one). The operations of a
layer are in a file of its kind (nn/program/dense.py); here are their order, and what moves between ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nn.input.source import Source
from nn.launch.head import Head
from nn.parallel.buckets import LOSS, Panel
from nn.parallel.plan import BY_UNITS
from nn.parallel.shard import Shard
from nn.program import operations
from nn.program.activations import Activations
from nn.program.constraint import ConstrainedGradients
from nn.program.dropout import Draws, count_step
from nn.program.followers import Followers
from nn.program.layer_operations import LayerOperations, operations_of
from nn.program.moves import Copied, Moved
from nn.program.operations import BACKWARD, FORWARD, BucketReady, Item, Operation
from nn.program.panels import split_into_panels
from nn.program.rewrite import rewrite
from pyrt.arrays import Arena, DeviceArray


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
    """What layers, and the augmentation of images, draw from; None where nothing trains."""
    constrained: ConstrainedGradients | None = None
    """What becomes of weight gradients; None: they stay as they are."""

    def logits(self, samples: int) -> list[Item]:
        """List the operations from images to logits, as the head takes them."""
        items = self._forward(samples)
        if not self._adds_bias:
            depth = self.shard.network.depth
            items += _of_layer(depth, [self._add_output_bias(self.activations.taken(depth, samples))])
        return _without_empty(items)

    def gradients(self, gradients: Arena, panels: Sequence[Panel], samples: int, batch: int) -> list[Item]:
        """List the operations from the images to this rank's part of all gradients.

        ``samples`` of the ``batch`` are this group's; the loss is divided by ``batch``.
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
        X = self._followers.between(0, samples)
        augmented = self.draws.augmented if self.draws is not None else None
        items: list[Item] = [operations.take_batch(self.source, X[0], self.scale, augmented)]
        if self.draws is not None and not (augmented is not None and X[0].size):
            items.append(count_step(self.draws.step))
        items += [*self._followers.forward(0, samples), *self._take_part(0, samples)]
        for layer in self.shard.network.numbers:
            items += _of_layer(layer, self._layer(layer, samples))
        return items

    def _operations(self, layer: int) -> LayerOperations:
        return operations_of(self.shard, layer, self.parameters)

    def _layer(self, layer: int, samples: int) -> list[Item]:
        shard, activations, own = self.shard, self.activations, self._operations(layer)
        A, Z = activations.taken(layer - 1, samples), self._followers.between(layer, samples)[0]
        product = own.forward(A, Z)
        items: list[Item] = [product]
        items += Moved.of(f"sum of {product.name}", FORWARD, shard.sum_move(layer, samples), Z, Z).at_once
        if layer < shard.network.depth:
            items.append(own.activate(Z))
        elif self._adds_bias:
            items.append(self._add_output_bias(Z))
        items += self._followers.forward(layer, samples)
        Z = activations.made(layer, samples)
        move, arrived = shard.forward_move(layer, samples), activations.arrived(layer, samples)
        items += Moved.of(f"move of activations {layer}", FORWARD, move, Z, arrived).at_once
        return [*items, *self._take_part(layer, samples)]

    def _take_part(self, layer: int, samples: int) -> list[Item]:
        """List the copy of the channels, or rows of images, that the next layer takes, where all are here."""
        spreads, activations = self.shard.spreads, self.activations
        if not spreads.takes_part(layer):
            return []
        arrays = activations.arrived(layer, samples), activations.taken(layer, samples)
        copied = Copied(self.shard, layer, spreads.taken(layer))
        return [copied.operation(f"take part {layer}", FORWARD, *arrays)]

    @property
    def _followers(self) -> Followers:
        return Followers(self.shard, self.activations, self.draws)

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
        items += Moved.of(f"move of gradients {depth}", FORWARD, move, Z, made_back).at_once
        return _of_layer(depth, items)

    def _backward(self, gradients: Arena, panels: Sequence[Panel], samples: int) -> list[Item]:
        """dZ_L to all gradients. W_l is read before the first bucket of its layer may leave and update it."""
        items: list[Item] = []
        products = itertools.count(1)
        for layer in reversed(self.shard.network.numbers):
            own, dZ = self._operations(layer), self.activations.between_back(layer, samples)[0]
            moved = self._below(layer, samples, next(products)) if layer > 1 else Moved()
            A = self.activations.taken(layer - 1, samples)
            weights = own.weight_gradient(next(products), A, dZ, gradients)
            # While dZ_{l-1} moves the gradients of W_l are made.
            mine = [own.bias_gradient(dZ, gradients), *moved.start, weights]
            if self.constrained is not None:
                mine += self.constrained.operations(layer, gradients)
            items += _of_layer(layer, [*mine, *_leave(gradients, panels, layer, BACKWARD), *moved.finish])
        return items

    def _below(self, layer: int, samples: int, product: int) -> Moved:
        """dZ_{l-1}, from dZ_l, by the backward pass's product of this number."""
        activations, below = self.activations, layer - 1
        taken, arrived = activations.taken_back(below, samples), activations.arrived_back(below, samples)
        move = self.shard.backward_move(below, samples)
        moved = Moved.of(f"move of gradients {below}", BACKWARD, move, taken, arrived)
        dZ, with_halo = activations.between_back(layer, samples)[0], activations.with_halo(layer, samples)
        halo = self.shard.halo_move(layer, samples)
        first = Moved.of(f"halo of gradients {layer}", BACKWARD, halo, dZ, with_halo).at_once
        first.append(self._operations(layer).input_gradient(product, with_halo, taken))
        through = self._through(below, samples)
        if move is None:
            return Moved([*first, *through])
        return Moved([*first, *moved.start], [*moved.finish, *through])

    def _through(self, layer: int, samples: int) -> list[Item]:
        """The gradient of what the next layer takes to dZ of a layer, through those that follow it."""
        spreads, activations = self.shard.spreads, self.activations
        between, back = (of(layer, samples) for of in (activations.between, activations.between_back))
        items: list[Item] = []
        if spreads.makes_part_back(layer):
            arrays = activations.arrived_back(layer, samples), activations.made_back(layer, samples)
            copied = Copied(self.shard, layer, spreads.made(layer))
            items.append(copied.operation(f"take part of gradients {layer}", BACKWARD, *arrays))
        items += self._followers.backward(layer, samples)
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
