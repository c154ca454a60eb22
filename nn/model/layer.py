"""The base of all kinds of layers: shapes, parameters, initial values, equations forward and back."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np

from nn.model import reference
from pyrt.errors import UserError

Shape = tuple[int, ...]
"""The shape of one sample: (units,), or (height, width, channels) of an image."""

IDENTITY = "identity"
"""The activation of a layer that has none."""


class Layer(ABC):
    """One layer. Arrays are NumPy's, (samples, *shape); parameters are named without the layer's number.

    A layer that has parameters has a matrix of weights W, of a row an output unit or filter, and biases b.
    """

    activation: str | None = None
    splits: tuple[str, ...] = ("samples",)
    """The ways in which ranks may share it: each some samples, rows of W, columns of W, or rows of images."""

    @property
    def function(self) -> str:
        """The name of the activation f; ``identity`` without one."""
        return self.activation or IDENTITY

    @property
    def has_parameters(self) -> bool:
        """Whether it has W and b, and so a number."""
        return False

    @property
    def keeps_places(self) -> bool:
        """Whether it keeps a byte for each output, for the way back."""
        return False

    @property
    def only_trains(self) -> bool:
        """Whether it does nothing but while a network trains."""
        return False

    def in_step(self, seed: int, step: int, place: int) -> Layer:
        """Return the layer as it is in a step of training, counted from 1, of a run with this seed.

        ``place`` is its own among all layers of the network.
        """
        return self

    @abstractmethod
    def output_shape(self, inputs: Shape) -> Shape:
        """Return the shape of a sample of its outputs. Raises UserError for inputs that it cannot take."""

    def parameter_shapes(self, inputs: Shape) -> dict[str, Shape]:
        """Return the shapes of its parameters for samples of this shape."""
        return {}

    def initial(self, generator: np.random.Generator, inputs: Shape) -> dict[str, np.ndarray]:
        """Draw its parameters, float64."""
        return {}

    def multiply_adds(self, inputs: Shape) -> int:
        """Count the products of a number and a weight that are added up for a sample of this shape."""
        return 0

    def matrix_size(self, inputs: Shape) -> int:
        """Count the numbers of the input matrix (im2col) of a sample, by which it is a matrix product.

        0 where there is none, or where it is the input as it is.
        """
        return 0

    @abstractmethod
    def forward(self, parameters: dict[str, np.ndarray], A: np.ndarray) -> np.ndarray:
        """Return its outputs A' for the inputs A."""

    @abstractmethod
    def backward(
        self, parameters: dict[str, np.ndarray], A: np.ndarray, output: np.ndarray, gradient: np.ndarray
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the gradients of A and of the parameters, from that of the output A'."""

    @abstractmethod
    def __str__(self) -> str:
        """Write it as ``--net`` reads it."""


def require_count(layer: str, what: str, value: object, least: int = 1) -> None:
    """Raise UserError unless a value is a whole number, ``least`` or more."""
    if type(value) is not int or value < least:
        raise UserError(f"{layer}: {what} {value!r} is not a whole number, {least} or more")


def require_activation(layer: str, activation: str | None) -> None:
    """Raise UserError for an activation that there is not."""
    if activation is not None and activation not in tuple(reference.ACTIVATIONS):
        raise UserError(
            f"{layer}: activation {activation!r} is none of {', '.join(reference.ACTIVATIONS)}, None"
        )


def initial_weights(
    generator: np.random.Generator, shape: Shape, fans: tuple[int, int], activation: str | None
) -> np.ndarray:
    """Draw normal weights, float64, from the inputs and the outputs that a unit is connected with.

    Variance 2 / (fan-in + fan-out) (Glorot and Bengio 2010), 16 times that before a sigmoid, whose slope at 0
    is a quarter of tanh's; 2 / fan-in before a ReLU (He et al. 2015).
    """
    variance = 2 / fans[0] if activation == "relu" else 2 / sum(fans)
    gain = 4 if activation == "sigmoid" else 1
    return generator.standard_normal(shape) * (gain * np.sqrt(variance))


def flat(A: np.ndarray) -> np.ndarray:
    """View samples of any shape as rows, in memory order."""
    return A.reshape(len(A), math.prod(A.shape[1:]))
