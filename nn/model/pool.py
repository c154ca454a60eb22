"""Pooling: the largest, or the mean, of each window of an image, channel by channel; no parameters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nn.model.layer import Layer, Shape, require_count
from nn.model.window import Window
from pyrt.errors import UserError

MOST_PLACES = 256
"""In a window of max-pooling: its largest pixel is kept in a byte."""


@dataclass(frozen=True)
class _Pool(Layer):
    """Windows of ``size`` x ``size`` pixels, ``stride`` apart (default: ``size``); none is over the edge."""

    size: int
    stride: int | None = None

    word = ""

    def __post_init__(self) -> None:
        """Raise UserError for values that make no sense."""
        name = type(self).__name__
        require_count(name, "size", self.size)
        if self.stride is None:
            object.__setattr__(self, "stride", self.size)
        require_count(name, "stride", self.stride)

    def window(self, inputs: Shape) -> Window:
        """Return its window on images of this shape. Raises UserError where it does not fit."""
        return Window.over(str(self), inputs, (self.size, self.size), self.stride or self.size, 0)

    def output_shape(self, inputs: Shape) -> Shape:
        window = self.window(inputs)
        return window.out_height, window.out_width, window.channels

    def __str__(self) -> str:
        stride = f"s{self.stride}" if self.stride != self.size else ""
        return f"{self.word}{self.size}{stride}"


@dataclass(frozen=True)
class MaxPool2d(_Pool):
    """The largest pixel of each window: of equal ones the first in row order; a NaN is larger than any."""

    word = "pool"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size * self.size > MOST_PLACES:
            raise UserError(
                f"MaxPool2d: a window of {self.size} x {self.size} has more than {MOST_PLACES} pixels"
            )

    @property
    def keeps_places(self) -> bool:
        return True

    def forward(self, parameters: dict[str, np.ndarray], A: np.ndarray) -> np.ndarray:
        return largest(self.window(A.shape[1:]), A)[0]

    def backward(
        self, parameters: dict[str, np.ndarray], A: np.ndarray, output: np.ndarray, gradient: np.ndarray
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Give each output's gradient to the pixel that it is."""
        window = self.window(A.shape[1:])
        return to_largest(window, largest(window, A)[1], gradient.reshape(output.shape)), {}


@dataclass(frozen=True)
class AvgPool2d(_Pool):
    """The mean of each window."""

    word = "avgpool"

    def forward(self, parameters: dict[str, np.ndarray], A: np.ndarray) -> np.ndarray:
        return means(self.window(A.shape[1:]), A)

    def backward(
        self, parameters: dict[str, np.ndarray], A: np.ndarray, output: np.ndarray, gradient: np.ndarray
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Give each pixel of a window the same part of its output's gradient."""
        return to_means(self.window(A.shape[1:]), gradient.reshape(output.shape)), {}


@dataclass(frozen=True)
class GlobalAvgPool2d(Layer):
    """The mean of each channel over the whole image, (1, 1, channels)."""

    def window(self, inputs: Shape) -> Window:
        """Return the window that is the whole image. Raises UserError for inputs that are no images."""
        size = (inputs[0], inputs[1]) if len(inputs) == 3 else (1, 1)
        return Window.over(str(self), inputs, size, 1, 0)

    def output_shape(self, inputs: Shape) -> Shape:
        return 1, 1, self.window(inputs).channels

    def forward(self, parameters: dict[str, np.ndarray], A: np.ndarray) -> np.ndarray:
        return means(self.window(A.shape[1:]), A)

    def backward(
        self, parameters: dict[str, np.ndarray], A: np.ndarray, output: np.ndarray, gradient: np.ndarray
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Give each pixel the same part of its channel's gradient."""
        return to_means(self.window(A.shape[1:]), gradient.reshape(output.shape)), {}

    def __str__(self) -> str:
        return "gap"


def largest(window: Window, A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest pixel of each window, and its place in it in row order, (.., channels) uint8."""
    best = np.full((len(A), window.out_height, window.out_width, window.channels), -np.inf, A.dtype)
    places = np.zeros(best.shape, np.uint8)
    for place, (_, _, outs, ins) in enumerate(window.taps()):
        is_larger = ~(A[ins] <= best[outs]) & ~np.isnan(best[outs])
        best[outs] = np.where(is_larger, A[ins], best[outs])
        places[outs] = np.where(is_larger, np.uint8(place), places[outs])
    return best, places


def to_largest(window: Window, places: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Return the gradient of the images: each output's goes to the pixel at its place, and they add up."""
    images = np.zeros((len(gradient), window.height, window.width, window.channels), gradient.dtype)
    for place, (_, _, outs, ins) in enumerate(window.taps()):
        images[ins] += np.where(places[outs] == place, gradient[outs], 0)
    return images


def means(window: Window, A: np.ndarray) -> np.ndarray:
    """Return the mean of each window."""
    total = np.zeros((len(A), window.out_height, window.out_width, window.channels), A.dtype)
    for _, _, outs, ins in window.taps():
        total[outs] += A[ins]
    return total / A.dtype.type(window.rows * window.columns)


def to_means(window: Window, gradient: np.ndarray) -> np.ndarray:
    """Return the gradient of the images, from that of the windows' means."""
    each = gradient / gradient.dtype.type(window.rows * window.columns)
    images = np.zeros((len(gradient), window.height, window.width, window.channels), gradient.dtype)
    for _, _, outs, ins in window.taps():
        images[ins] += each[outs]
    return images
