"""The operations of a dense layer: A' = f(Z), Z = A W^T + b; of each array the part that this rank has."""

from __future__ import annotations

from dataclasses import dataclass

from nn.launch.gemm.product import Product
from nn.model.dense import Dense
from nn.parallel.shard import Shard
from nn.program import operations
from nn.program.operations import BACKWARD, FORWARD, Operation
from pyrt.arrays import Arena, DeviceArray


@dataclass(frozen=True)
class DenseOperations:
    """The operations of layer ``number`` on the rank of a shard."""

    layer: Dense
    number: int
    parameters: Arena
    shard: Shard

    @property
    def _W(self) -> DeviceArray:
        return self.parameters[f"W{self.number}"]

    def forward(self, A: DeviceArray, Z: DeviceArray) -> Operation:
        """Z (samples, units) = A W^T; a part of the sum where the ranks have columns of W."""
        return operations.gemm(
            f"forward GEMM {self.number}", FORWARD, Product(Z, A, self._W, transpose_b=True)
        )

    def activate(self, Z: DeviceArray) -> Operation:
        """Z becomes A' = f(Z + b)."""
        name, b = f"bias and activation {self.number}", self.parameters[f"b{self.number}"]
        return operations.bias_activation(name, Z, b, self.layer.function)

    def activation_gradient(self, A: DeviceArray, dA: DeviceArray) -> Operation:
        """Turn the gradient dA of this layer's output A into dZ = dA f'(Z)."""
        return operations.activation_backward(
            f"activation gradient {self.number}", A, dA, self.layer.function
        )

    def bias_gradient(self, dZ: DeviceArray, gradients: Arena) -> Operation:
        """db = sum of dZ over samples."""
        name = f"bias gradient {self.number}"
        return operations.column_sums(name, BACKWARD, dZ, gradients[f"b{self.number}"])

    def input_gradient(self, place: int, dZ: DeviceArray, dA: DeviceArray) -> Operation:
        """dA (samples, inputs) = dZ W, for the layer below."""
        return operations.gemm(f"backward GEMM {place}", BACKWARD, Product(dA, dZ, self._W))

    def weight_gradient(self, place: int, A: DeviceArray, dZ: DeviceArray, gradients: Arena) -> Operation:
        """dW = dZ^T A."""
        product = Product(gradients[f"W{self.number}"], dZ, A, transpose_a=True)
        return operations.gemm(f"backward GEMM {place}", BACKWARD, product)
