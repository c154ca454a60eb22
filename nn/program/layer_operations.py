"""Finds the operations of a layer by its kind: a new kind is a file like dense.py here, and a line below."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from nn.model.dense import Dense
from nn.model.network import Network
from nn.program.dense import DenseOperations
from nn.program.operations import Operation
from pyrt.arrays import Arena, DeviceArray


class LayerOperations(Protocol):
    """One layer on a rank. Arrays are the rank's parts; A is the layer's input, Z its output before f."""

    def forward(self, A: DeviceArray, Z: DeviceArray) -> Operation: ...

    def activate(self, Z: DeviceArray) -> Operation: ...

    def activation_gradient(self, A: DeviceArray, dA: DeviceArray) -> Operation: ...

    def bias_gradient(self, dZ: DeviceArray, gradients: Arena) -> Operation: ...

    def input_gradient(self, name: str, dZ: DeviceArray, dA: DeviceArray) -> Operation: ...

    def weight_gradient(self, name: str, A: DeviceArray, dZ: DeviceArray, gradients: Arena) -> Operation: ...


OPERATIONS: dict[type, Callable[[Any, int, Arena], LayerOperations]] = {Dense: DenseOperations}


def operations_of(network: Network, number: int, parameters: Arena) -> LayerOperations:
    """Return the operations of layer ``number``; a subclass of a layer has those of its base."""
    layer = network.layers[number - 1]
    kind = next(kind for kind in type(layer).__mro__ if kind in OPERATIONS)
    return OPERATIONS[kind](layer, number, parameters)
