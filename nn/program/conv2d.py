"""The operations of a convolutional layer: A' = f(Z), Z = the windows of A times W, + b."""

from __future__ import annotations

from dataclasses import dataclass

from nn.launch.conv.convolution import Convolution, FilterGradient, InputGradient
from nn.model.conv2d import Conv2d
from nn.parallel.shard import Shard
from nn.program import operations
from nn.program.operations import BACKWARD, FORWARD, Operation
from pyrt.arrays import Arena, DeviceArray


@dataclass(frozen=True)
class Conv2dOperations:
    """The operations of layer ``number`` on the rank of a shard: of its filters, channels or rows."""

    layer: Conv2d
    number: int
    parameters: Arena
    shard: Shard

    @property
    def _W(self) -> DeviceArray:
        return self.parameters[f"W{self.number}"]

    def _by_filter(self, Z: DeviceArray) -> DeviceArray:
        """View outputs (samples, windows filters) as (samples windows, filters)."""
        filters = self._W.shape[0]
        return Z.reshape(Z.size // filters, filters)

    def forward(self, A: DeviceArray, Z: DeviceArray) -> Operation:
        """Z (samples, windows filters) from the images A."""
        work = Convolution(A, Z, self._W, self.shard.window(self.number))
        return Operation(f"forward convolution {self.number}", FORWARD, work)

    def activate(self, Z: DeviceArray) -> Operation:
        """Z becomes A' = f(Z + b)."""
        name, b = f"bias and activation {self.number}", self.parameters[f"b{self.number}"]
        return operations.bias_activation(name, self._by_filter(Z), b, self.layer.function)

    def activation_gradient(self, A: DeviceArray, dA: DeviceArray) -> Operation:
        """Turn the gradient dA of this layer's output A into dZ = dA f'(Z)."""
        return operations.activation_backward(
            f"activation gradient {self.number}", A, dA, self.layer.function
        )

    def bias_gradient(self, dZ: DeviceArray, gradients: Arena) -> Operation:
        """db = sum of dZ over samples and windows."""
        name = f"bias gradient {self.number}"
        return operations.column_sums(name, BACKWARD, self._by_filter(dZ), gradients[f"b{self.number}"])

    def input_gradient(self, place: int, dZ: DeviceArray, dA: DeviceArray) -> Operation:
        """dA from dZ, for the layer below; where rows of images are split dZ has its halo."""
        work = InputGradient(dA, dZ, self._W, self.shard.window_back(self.number))
        return Operation(f"backward convolution {place}", BACKWARD, work)

    def weight_gradient(self, place: int, A: DeviceArray, dZ: DeviceArray, gradients: Arena) -> Operation:
        """dW from A and dZ."""
        work = FilterGradient(A, dZ, gradients[f"W{self.number}"], self.shard.window(self.number))
        return Operation(f"backward convolution {place}", BACKWARD, work)
