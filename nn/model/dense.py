"""A fully connected layer: A' = f(A W^T + b); A (samples, inputs), W (units, inputs), b (units,)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nn.model import reference
from nn.model.layer import Layer, Shape, flat, initial_weights, require_activation
from pyrt.errors import UserError


@dataclass(frozen=True)
class Dense(Layer):
    """So many units, each connected with all inputs; images are taken flattened in memory order."""

    units: int
    activation: str | None = None

    splits = ("samples", "rows", "columns")

    def __post_init__(self) -> None:
        """Raise UserError for a number of units that is none, or an activation that there is not."""
        if type(self.units) is not int or self.units < 1:
            raise UserError(f"Dense({self.units!r}): must have a unit or more")
        require_activation("Dense", self.activation)

    @property
    def has_parameters(self) -> bool:
        return True

    def output_shape(self, inputs: Shape) -> Shape:
        return (self.units,)

    def parameter_shapes(self, inputs: Shape) -> dict[str, Shape]:
        return {"W": (self.units, math.prod(inputs)), "b": (self.units,)}

    def multiply_adds(self, inputs: Shape) -> int:
        """Count one for each weight."""
        return self.units * math.prod(inputs)

    def initial(self, generator: np.random.Generator, inputs: Shape) -> dict[str, np.ndarray]:
        """Draw its parameters, float64: weights by `initial_weights`, biases zero."""
        shape = self.parameter_shapes(inputs)["W"]
        weights = initial_weights(generator, shape, (shape[1], shape[0]), self.activation)
        return {"W": weights, "b": np.zeros(self.units)}

    def forward(self, parameters: dict[str, np.ndarray], A: np.ndarray) -> np.ndarray:
        """Return A' (samples, units)."""
        f, _ = reference.ACTIVATIONS[self.function]
        return f(flat(A) @ parameters["W"].T + parameters["b"])

    def backward(
        self, parameters: dict[str, np.ndarray], A: np.ndarray, output: np.ndarray, gradient: np.ndarray
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """dZ = dA' f'(Z), dW = dZ^T A, db = sum over samples of dZ, dA = dZ W."""
        _, derivative = reference.ACTIVATIONS[self.function]
        dZ = gradient * derivative(output)
        return (dZ @ parameters["W"]).reshape(A.shape), {"W": dZ.T @ flat(A), "b": dZ.sum(axis=0)}

    def __str__(self) -> str:
        return f"dense{self.units}"
