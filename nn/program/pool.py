"""The operations of pooling, behind layer ``number``."""

from __future__ import annotations

from dataclasses import dataclass

from nn.launch.pool import Pool, PoolGradient
from nn.model.window import Window
from nn.program.operations import BACKWARD, FORWARD, Operation
from pyrt.arrays import DeviceArray


@dataclass(frozen=True)
class PoolOperations:
    """The operations of one pooling layer."""

    window: Window
    window_back: Window
    """Of its gradient; another one where ranks have rows of images, and some windows see those of two."""
    number: int

    def forward(self, A: DeviceArray, output: DeviceArray, places: DeviceArray | None) -> Operation:
        """Images to what is left of them."""
        work = Pool(A, output, places, self.window)
        return Operation(f"pooling {self.number}", FORWARD, work)

    def backward(
        self, dA: DeviceArray, gradient: DeviceArray, places: DeviceArray | None, made: DeviceArray
    ) -> Operation:
        """The gradient of the output, which was ``made``, to that of the images."""
        work = PoolGradient(dA, gradient, places, self.window_back, made)
        return Operation(f"pooling gradient {self.number}", BACKWARD, work)
