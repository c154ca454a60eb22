"""What a network is: the shape of its inputs, its layers, its loss. No arrays, no device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from nn.model.dense import Dense
from pyrt.errors import UserError

ACTIVATIONS = ("sigmoid", "tanh", "relu")
LOSSES = {"softmax": "softmax cross-entropy", "sigmoid": "sigmoid cross-entropy per class"}
"""The losses of logits, and what they are called."""

LARGEST = 2**31 - 1
"""Elements that a 32-bit index of a kernel reaches."""


@dataclass(frozen=True)
class Network:
    """Layers from samples of a shape to logits, a class each, and the loss of these.

    Layers with parameters are numbered from 1 to L: their parameters are W1, b1, .., WL, bL.
    """

    input_shape: tuple[int, ...]
    layers: Sequence[Dense]
    loss: str = "softmax"

    def __post_init__(self) -> None:
        """Raise UserError for a network that cannot be."""
        object.__setattr__(self, "input_shape", tuple(self.input_shape))
        object.__setattr__(self, "layers", tuple(self.layers))
        if self.loss not in LOSSES:
            raise UserError(f"Network: loss {self.loss!r} is none of {', '.join(LOSSES)}")
        if not self.layers or self.layers[-1].activation is not None:
            raise UserError("Network: the last layer makes the logits: give it no activation")
        for number in self.numbers:
            units, inputs = self.sizes[number], self.sizes[number - 1]
            if units * inputs > LARGEST:
                raise UserError(
                    f"layer {number} would have {units} x {inputs} weights, more than 2^31: use smaller "
                    "--hidden layers"
                )

    @classmethod
    def dense(cls, sizes: Sequence[int], activation: str, loss: str) -> Network:
        """Make a fully connected network; ``sizes`` = (inputs, hidden..., classes)."""
        inputs, *hidden, classes = sizes
        return cls((inputs,), [*(Dense(units, activation) for units in hidden), Dense(classes)], loss)

    @property
    def numbers(self) -> range:
        """The numbers 1..L of the layers that have parameters."""
        return range(1, len(self.layers) + 1)

    @property
    def depth(self) -> int:
        """L, the number of layers with parameters."""
        return len(self.layers)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Elements of a sample before the first layer, and after each: H_0, H_1, .., H_L."""
        shapes = [self.input_shape]
        for layer in self.layers:
            shapes.append(layer.output_shape(shapes[-1]))
        return tuple(map(math.prod, shapes))

    @property
    def classes(self) -> int:
        return self.sizes[-1]

    def activation(self, number: int) -> str:
        """Return the name of layer ``number``'s activation; ``identity`` if it has none."""
        return self.layers[number - 1].function

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of W1, b1, ..., WL, bL, in this order: ``W[l]`` is (H_l, H_{l-1}), ``b[l]`` is (H_l,)."""
        return {
            f"{name}{number}": shape
            for number, layer in zip(self.numbers, self.layers, strict=True)
            for name, shape in layer.parameter_shapes((self.sizes[number - 1],)).items()
        }

    @property
    def parameter_count(self) -> int:
        return sum(map(math.prod, self.shapes.values()))

    def __str__(self) -> str:
        names = dict.fromkeys(layer.activation for layer in self.layers[:-1])
        if len(names) <= 1:
            words = ["-".join(map(str, self.sizes)), *(name or "linear" for name in names)]
        else:
            hidden = [f"{layer.units} {layer.activation or 'linear'}" for layer in self.layers[:-1]]
            words = ["-".join([str(self.sizes[0]), *hidden, str(self.classes)])]
        return ", ".join([*words, LOSSES[self.loss]])
