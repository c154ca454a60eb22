"""A convolution: each output pixel and filter the sum over a window of the image, times the filter.

With images A (samples, height, width, channels), filters W (filters, rows, columns, channels), b (filters,):

    Z[n, y, x, f] = b[f] + sum over r, c, i of A[n, y stride + r - top, x stride + c - left, i] W[f, r, c, i]

Pixels beyond the image are 0. It is what the field calls a convolution, and mathematics a cross-correlation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nn.model import reference
from nn.model.layer import Layer, Shape, initial_weights, require_activation, require_count
from nn.model.window import SAME, Window
from pyrt.errors import UserError


@dataclass(frozen=True)
class Conv2d(Layer):
    """So many filters; ``size`` is the side of their window, or (rows, columns).

    ``padding``: pixels of zeros around the image, or ``same``: outputs of the image's size / stride.
    """

    filters: int
    size: int | tuple[int, int]
    stride: int = 1
    padding: int | str = 0
    activation: str | None = None

    splits = ("samples", "rows", "columns", "space")

    def __post_init__(self) -> None:
        """Raise UserError for values that make no sense."""
        object.__setattr__(self, "size", pair("Conv2d", self.size))
        require_count("Conv2d", "number of filters", self.filters)
        require_count("Conv2d", "stride", self.stride)
        if self.padding != SAME:
            require_count("Conv2d", "padding", self.padding, least=0)
        require_activation("Conv2d", self.activation)

    @property
    def has_parameters(self) -> bool:
        return True

    def window(self, inputs: Shape) -> Window:
        """Return the window of its filters. Raises UserError where it does not fit."""
        return Window.over(str(self), inputs, pair("Conv2d", self.size), self.stride, self.padding)

    def output_shape(self, inputs: Shape) -> Shape:
        window = self.window(inputs)
        return window.out_height, window.out_width, self.filters

    def parameter_shapes(self, inputs: Shape) -> dict[str, Shape]:
        return {"W": (self.filters, *pair("Conv2d", self.size), inputs[-1]), "b": (self.filters,)}

    def multiply_adds(self, inputs: Shape) -> int:
        """Count a product for each filter and number of the input matrix: zeros beyond the image are."""
        return self.filters * self.matrix_size(inputs)

    def matrix_size(self, inputs: Shape) -> int:
        """Count a row for each window, with all that it sees."""
        window = self.window(inputs)
        return window.places * window.rows * window.columns * window.channels

    def initial(self, generator: np.random.Generator, inputs: Shape) -> dict[str, np.ndarray]:
        """Draw its parameters, float64: weights by `initial_weights`, biases zero."""
        shape = self.parameter_shapes(inputs)["W"]
        place = shape[1] * shape[2]
        fans = place * shape[3], place * shape[0]
        return {
            "W": initial_weights(generator, shape, fans, self.activation),
            "b": np.zeros(self.filters),
        }

    def forward(self, parameters: dict[str, np.ndarray], A: np.ndarray) -> np.ndarray:
        """Return A' = f(Z) (samples, out_height, out_width, filters), summed tap by tap."""
        f, _ = reference.ACTIVATIONS[self.function]
        window, W = self.window(A.shape[1:]), parameters["W"]
        Z = np.zeros((len(A), window.out_height, window.out_width, self.filters), A.dtype)
        for row, column, outs, ins in window.taps():
            Z[outs] += A[ins] @ W[:, row, column].T
        return f(Z + parameters["b"])

    def backward(
        self, parameters: dict[str, np.ndarray], A: np.ndarray, output: np.ndarray, gradient: np.ndarray
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the gradients, with dZ = dA' f'(Z), tap by tap."""
        _, derivative = reference.ACTIVATIONS[self.function]
        window, W = self.window(A.shape[1:]), parameters["W"]
        dZ = gradient.reshape(output.shape) * derivative(output)
        dA, dW = np.zeros_like(A), np.zeros_like(W)
        for row, column, outs, ins in window.taps():
            dA[ins] += dZ[outs] @ W[:, row, column]
            dW[:, row, column] = np.tensordot(dZ[outs], A[ins], axes=((0, 1, 2), (0, 1, 2)))
        return dA, {"W": dW, "b": dZ.sum(axis=(0, 1, 2))}

    def __str__(self) -> str:
        rows, columns = pair("Conv2d", self.size)
        stride = f"s{self.stride}" if self.stride > 1 else ""
        padding = SAME if self.padding == SAME else f"p{self.padding}" if self.padding else ""
        return f"conv{rows}x{columns}x{self.filters}{stride}{padding}"


def pair(layer: str, size: int | tuple[int, int]) -> tuple[int, int]:
    """Return rows and columns of a window. Raises UserError unless they are whole numbers, 1 or more."""
    both = size if isinstance(size, tuple | list) else (size, size)
    if len(both) != 2:
        raise UserError(f"{layer}: size {size!r} is no window: give its side, or (rows, columns)")
    for one in both:
        require_count(layer, "size", one)
    return both[0], both[1]
