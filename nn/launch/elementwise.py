"""Work on each element of an array: bias and activation, its gradient, zeros (kernels/nn/activation.cu)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from nn.launch.shapes import line_shape, matrix_shape, plane_shape, require_shape
from nn.launch.work import Compute, Work
from nn.model import reference
from pyrt.arrays import DeviceArray
from pyrt.kernels import Launch

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels


def bias_activation(
    kernels: Kernels, Z: DeviceArray, b: DeviceArray, A: DeviceArray, activation: str
) -> Launch:
    """Bind A = f(Z + b); Z and A (rows, columns), b (columns,). A may be Z."""
    rows, columns = matrix_shape("bias_activation", Z=Z)
    require_shape("bias_activation", (rows, columns), A=A)
    require_shape("bias_activation", (columns,), b=b)
    kernel = kernels.kernel("nn/activation", "bias_activation", ACTIVATION=activation)
    return kernel.bind(*plane_shape(rows, columns), rows, columns, Z, b, A)


def activation_backward(
    kernels: Kernels, A: DeviceArray, dA: DeviceArray, dZ: DeviceArray, activation: str
) -> Launch:
    """Bind dZ = dA f'(Z), given A = f(Z); three arrays of one shape. dZ may be dA."""
    require_shape("activation_backward", A.shape, A=A, dA=dA, dZ=dZ)
    kernel = kernels.kernel("nn/activation", "activation_backward", ACTIVATION=activation)
    return kernel.bind(*line_shape(A.size), A.size, A, dA, dZ)


@dataclass(frozen=True)
class BiasActivation(Work):
    """Z becomes A = f(Z + b); Z (samples, units), b (units,)."""

    kind = "bias and activation"
    Z: DeviceArray
    b: DeviceArray
    activation: str

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        return self.Z, self.b

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return (self.Z,)

    @property
    def flops(self) -> int:
        return 2 * self.Z.size

    def on_device(self, kernels: Kernels) -> Launch:
        return bias_activation(kernels, self.Z, self.b, self.Z, self.activation)

    def in_numpy(self) -> Compute:
        z, bias, activate = self.Z.host_view(), self.b.host_view(), ACTIVATE_IN_PLACE[self.activation]

        def compute() -> None:
            np.add(z, bias, out=z)
            activate(z)

        return compute


@dataclass(frozen=True)
class ActivationBackward(Work):
    """dA becomes dZ = dA f'(Z), given A = f(Z)."""

    kind = "activation gradient"
    A: DeviceArray
    dA: DeviceArray
    activation: str

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        return self.A, self.dA

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return (self.dA,)

    @property
    def flops(self) -> int:
        return 3 * self.A.size

    def on_device(self, kernels: Kernels) -> Launch:
        return activation_backward(kernels, self.A, self.dA, self.dA, self.activation)

    def in_numpy(self) -> Compute:
        a, d = self.A.host_view(), self.dA.host_view()
        _, derivative = reference.ACTIVATIONS[self.activation]
        return lambda: np.multiply(d, derivative(a), out=d)


@dataclass(frozen=True)
class Zeros(Work):
    """The array becomes zero."""

    array: DeviceArray

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        return ()

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return (self.array,)

    @property
    def flops(self) -> int:
        return 0

    def on_device(self, kernels: Kernels) -> Launch:
        driver, pointer, nbytes = self.array.driver, self.array.pointer, self.array.nbytes
        return Launch(("fill",), lambda stream: driver.fill(pointer, 0, nbytes, stream))

    def in_numpy(self) -> Compute:
        return partial(self.array.host_view().fill, 0)


def _sigmoid(z: np.ndarray) -> None:
    np.multiply(z, 0.5, out=z)
    np.tanh(z, out=z)
    np.add(z, 1, out=z)
    np.multiply(z, 0.5, out=z)


ACTIVATE_IN_PLACE: dict[str, Callable[[np.ndarray], object]] = {
    "identity": lambda z: None,
    "sigmoid": _sigmoid,
    "tanh": lambda z: np.tanh(z, out=z),
    "relu": lambda z: np.maximum(z, 0, out=z),
}
"""In place, so that a step on the CPU moves no more than it must."""
