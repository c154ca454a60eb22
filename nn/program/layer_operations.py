"""Finds the operations of a layer by its kind: a new kind is a file like dense.py here, and a line below."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from nn.launch.dropout import Draw
from nn.model.conv2d import Conv2d
from nn.model.dense import Dense
from nn.model.dropout import Dropout
from nn.model.layer import Layer, Shape
from nn.model.pool import AvgPool2d, GlobalAvgPool2d, MaxPool2d
from nn.parallel.shard import Shard
from nn.program.conv2d import Conv2dOperations
from nn.program.dense import DenseOperations
from nn.program.dropout import DropoutOperations
from nn.program.operations import Operation
from nn.program.pool import PoolOperations
from pyrt.arrays import Arena, DeviceArray


class LayerOperations(Protocol):
    """One layer on a rank. Arrays are the rank's parts; A is the layer's input, Z its output before f.

    The products of the backward pass are numbered by their ``place`` in it, from 1.
    """

    def forward(self, A: DeviceArray, Z: DeviceArray) -> Operation: ...

    def activate(self, Z: DeviceArray) -> Operation: ...

    def activation_gradient(self, A: DeviceArray, dA: DeviceArray) -> Operation: ...

    def bias_gradient(self, dZ: DeviceArray, gradients: Arena) -> Operation: ...

    def input_gradient(self, place: int, dZ: DeviceArray, dA: DeviceArray) -> Operation: ...

    def weight_gradient(self, place: int, A: DeviceArray, dZ: DeviceArray, gradients: Arena) -> Operation: ...


class FollowerOperations(Protocol):
    """One layer without parameters. ``places`` is what it keeps for the way back, a byte an output."""

    def forward(self, A: DeviceArray, output: DeviceArray, places: DeviceArray | None) -> Operation: ...

    def backward(
        self, dA: DeviceArray, gradient: DeviceArray, places: DeviceArray | None, made: DeviceArray
    ) -> Operation: ...


OPERATIONS: dict[type, Callable[[Any, int, Arena, Shard], LayerOperations]] = {
    Dense: DenseOperations,
    Conv2d: Conv2dOperations,
}


def _pool(layer: Any, inputs: Shape, number: int, draw: Draw | None) -> FollowerOperations:
    window = layer.window(inputs)
    return PoolOperations(window, window, number)


def _dropout(layer: Dropout, inputs: Shape, number: int, draw: Draw | None) -> FollowerOperations:
    assert draw is not None, "a network that does not train drops nothing"
    return DropoutOperations(layer, number, draw)


FOLLOWERS: dict[type, Callable[[Any, Shape, int, Draw | None], FollowerOperations]] = {
    MaxPool2d: _pool,
    AvgPool2d: _pool,
    GlobalAvgPool2d: _pool,
    Dropout: _dropout,
}


def operations_of(shard: Shard, number: int, parameters: Arena) -> LayerOperations:
    """Return a rank's operations of layer ``number``; a subclass of a layer has those of its base."""
    layer = shard.network.layer(number)
    kind = next(kind for kind in type(layer).__mro__ if kind in OPERATIONS)
    return OPERATIONS[kind](layer, number, parameters, shard)


def follower_operations(layer: Layer, inputs: Shape, number: int, draw: Draw | None) -> FollowerOperations:
    """Return the operations of a layer without parameters, behind layer ``number``; it may ``draw``."""
    kind = next(kind for kind in type(layer).__mro__ if kind in FOLLOWERS)
    return FOLLOWERS[kind](layer, inputs, number, draw)
