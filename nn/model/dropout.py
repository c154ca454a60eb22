"""Dropout: while a network trains, each unit is zero with a probability, and the others are scaled up.

Srivastava et al. 2014, with the scale 1 / (1 - rate) in training, so that evaluation does nothing. Which
units are kept follows from the seed of the run, the step, the layer's place in the network and the element,
so any ranks drop the same. Element e, counted over all samples of the batch, is dropped where its word is
below rate 2^32: word e % 4 of Philox's (nn/model/philox.py) for

    counter (e / 4 lower half, upper half, step, place)    key (seed lower half, upper half)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nn.model.layer import Layer, Shape, flat
from nn.model.philox import philox
from pyrt.errors import UserError

LEAST = 1e-6
"""The smallest rate but 0."""


@dataclass(frozen=True)
class Dropout(Layer):
    """Each unit is dropped with the probability ``rate``, in training alone."""

    rate: float

    def __post_init__(self) -> None:
        """Raise UserError for a rate that is none."""
        if type(self.rate) not in (int, float) or not (self.rate == 0 or LEAST <= self.rate < 1):
            raise UserError(f"Dropout: rate {self.rate!r} is not 0, nor a number from {LEAST:f} to below 1")

    @property
    def only_trains(self) -> bool:
        return True

    @property
    def keeps_places(self) -> bool:
        return True

    @property
    def threshold(self) -> int:
        """Words below it are dropped."""
        return int(self.rate * 2**32)

    @property
    def scale(self) -> float:
        """What is kept is multiplied by it."""
        return 1 / (1 - self.rate)

    def in_step(self, seed: int, step: int, place: int) -> Layer:
        return DroppedOut(self, seed, step, place)

    def output_shape(self, inputs: Shape) -> Shape:
        return inputs

    def forward(self, parameters: dict[str, np.ndarray], A: np.ndarray) -> np.ndarray:
        return A

    def backward(
        self, parameters: dict[str, np.ndarray], A: np.ndarray, output: np.ndarray, gradient: np.ndarray
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        return gradient, {}

    def __str__(self) -> str:
        return f"dropout{np.format_float_positional(self.rate, trim='-')}"


@dataclass(frozen=True)
class DroppedOut(Layer):
    """Dropout as it is in one step of training, on all samples of the batch."""

    layer: Dropout
    seed: int
    step: int
    place: int

    def output_shape(self, inputs: Shape) -> Shape:
        return inputs

    def forward(self, parameters: dict[str, np.ndarray], A: np.ndarray) -> np.ndarray:
        return np.where(self._kept(A), A * A.dtype.type(self.layer.scale), A.dtype.type(0))

    def backward(
        self, parameters: dict[str, np.ndarray], A: np.ndarray, output: np.ndarray, gradient: np.ndarray
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Give what is kept its gradient, scaled as it is."""
        return self.forward(parameters, gradient.reshape(output.shape)), {}

    def _kept(self, A: np.ndarray) -> np.ndarray:
        whole = Part.whole(*flat(A).shape)
        return kept(self.layer, self.seed, self.step, self.place, whole).reshape(A.shape)

    def __str__(self) -> str:
        return f"{self.layer} of step {self.step}"


@dataclass(frozen=True)
class Part:
    """``rows`` x ``columns`` of a matrix of ``units`` columns, a row for each sample of a batch.

    It begins at the matrix's element ``first``, counted row by row.
    """

    rows: int
    columns: int
    units: int
    first: int = 0

    @classmethod
    def whole(cls, samples: int, units: int) -> Part:
        return cls(samples, units, units)

    @property
    def lines(self) -> tuple[int, int]:
        """Count the lines of elements without gaps, and the elements of each."""
        return (1, self.rows * self.units) if self.columns == self.units else (self.rows, self.columns)

    @property
    def blocks(self) -> int:
        """Count the blocks of four elements that a line may reach into."""
        return (self.lines[1] + 6) // 4


def kept(layer: Dropout, seed: int, step: int, place: int, part: Part) -> np.ndarray:
    """Return which elements of a part are kept, (rows, columns) bool."""
    lines, length = part.lines
    firsts = part.first + part.units * np.arange(lines, dtype=np.int64)[:, None]
    blocks = firsts // 4 + np.arange(part.blocks)
    counter = blocks & 0xFFFFFFFF, blocks >> 32, step & 0xFFFFFFFF, place
    words = np.stack(philox(counter, halves(seed)), axis=-1).reshape(lines, -1)
    mine = np.take_along_axis(words, firsts % 4 + np.arange(length), axis=1)
    return (mine >= layer.threshold).reshape(part.rows, part.columns)


def halves(seed: int) -> tuple[int, int]:
    """Return both halves of a seed's lower 64 bits."""
    return seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
