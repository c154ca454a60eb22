"""A fully connected layer: A' = f(A W^T + b); A (samples, inputs), W (units, inputs), b (units,)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nn.model import reference
from pyrt.errors import UserError

IDENTITY = "identity"
"""The activation of a layer that has none."""


@dataclass(frozen=True)
class Dense:
    """So many units, each connected with all inputs; images are taken flattened in memory order."""

    units: int
    activation: str | None = None

    splits = ("samples", "rows", "columns")
    """The ways in which ranks may share it: each some samples, some rows of W, or some columns of W."""

    def __post_init__(self) -> None:
        """Raise UserError for a number of units that is none, or an activation that there is not."""
        if type(self.units) is not int or self.units < 1:
            raise UserError(f"Dense({self.units!r}): must have a unit or more")
        if self.activation is not None and self.activation not in reference.ACTIVATIONS:
            names = ", ".join(reference.ACTIVATIONS)
            raise UserError(f"Dense: activation {self.activation!r} is none of {names}, None")

    @property
    def function(self) -> str:
        """The name of f."""
        return self.activation or IDENTITY

    def output_shape(self, inputs: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a sample of its outputs."""
        return (self.units,)

    def parameter_shapes(self, inputs: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of its parameters for samples of this shape."""
        return {"W": (self.units, math.prod(inputs)), "b": (self.units,)}

    def initial(self, generator: np.random.Generator, inputs: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Draw its parameters, float64: biases zero, weights normal.

        Variance 2 / (fan-in + fan-out) (Glorot and Bengio 2010), 16 times that before a sigmoid, whose slope
        at 0 is a quarter of tanh's; 2 / fan-in before a ReLU (He et al. 2015).
        """
        shape = self.parameter_shapes(inputs)["W"]
        variance = 2 / shape[1] if self.activation == "relu" else 2 / sum(shape)
        gain = 4 if self.activation == "sigmoid" else 1
        weights = generator.standard_normal(shape) * (gain * np.sqrt(variance))
        return {"W": weights, "b": np.zeros(self.units)}

    def forward(self, parameters: dict[str, np.ndarray], A: np.ndarray) -> np.ndarray:
        """Return A' (samples, units) in NumPy."""
        f, _ = reference.ACTIVATIONS[self.function]
        return f(A @ parameters["W"].T + parameters["b"])

    def backward(
        self, parameters: dict[str, np.ndarray], A: np.ndarray, output: np.ndarray, gradient: np.ndarray
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the gradients of A and of the parameters in NumPy, from that of the output A'.

        dZ = dA' f'(Z), dW = dZ^T A, db = sum over samples of dZ, dA = dZ W.
        """
        _, derivative = reference.ACTIVATIONS[self.function]
        dZ = gradient * derivative(output)
        return dZ @ parameters["W"], {"W": dZ.T @ A, "b": dZ.sum(axis=0)}
