"""The operations of pooling, behind layer ``number``."""

from __future__ import annotations

from dataclasses import dataclass

from nn.launch.pool import Pool, PoolGradient
from nn.model.layer import Shape
from nn.model.pool import AvgPool2d, GlobalAvgPool2d, MaxPool2d
from nn.program.operations import BACKWARD, FORWARD, Operation
from pyrt.arrays import DeviceArray


@dataclass(frozen=True)
class PoolOperations:
    """The operations of one pooling layer on images of the shape ``inputs``."""

    layer: MaxPool2d | AvgPool2d | GlobalAvgPool2d
    inputs: Shape
    number: int

    def forward(self, A: DeviceArray, output: DeviceArray, places: DeviceArray | None) -> Operation:
        """Images to what is left of them."""
        work = Pool(A, output, places, self.layer.window(self.inputs))
        return Operation(f"pooling {self.number}", FORWARD, work)

    def backward(
        self, dA: DeviceArray, gradient: DeviceArray, places: DeviceArray | None, made: DeviceArray
    ) -> Operation:
        """The gradient of the output, which was ``made``, to that of the images."""
        work = PoolGradient(dA, gradient, places, self.layer.window(self.inputs), made)
        return Operation(f"pooling gradient {self.number}", BACKWARD, work)
