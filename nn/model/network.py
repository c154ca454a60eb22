"""What a network is: the shape of its inputs, its layers, its loss. No arrays, no device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from nn.model.dense import Dense
from nn.model.layer import IDENTITY, Layer, Shape
from pyrt.errors import UserError

ACTIVATIONS = ("sigmoid", "tanh", "relu")
LOSSES = {"softmax": "softmax cross-entropy", "sigmoid": "sigmoid cross-entropy per class"}
"""The losses of logits, and what they are called."""

LARGEST = 2**31 - 1
"""Elements that a 32-bit index of a kernel reaches."""


@dataclass(frozen=True)
class Stage:
    """A layer with parameters, and the layers without that follow it; stage 0 has the input in its place.

    ``shapes`` are those of a sample: before the layer, after it, and after each that follows; stage 0 has no
    shape before its input.
    """

    layer: Layer | None
    followers: tuple[Layer, ...]
    shapes: tuple[Shape, ...]
    place: int
    """Of its layer among all of the network, -1 of stage 0; those that follow come behind it."""

    @property
    def input(self) -> Shape:
        """The shape that its layer takes."""
        return self.shapes[0]

    @property
    def made(self) -> Shape:
        """The shape that its layer makes, before the layers that follow."""
        return self.shapes[-1 - len(self.followers)]

    @property
    def makes_images(self) -> bool:
        """Whether its layer is a convolution, which takes images too."""
        return len(self.made) == 3

    @property
    def output(self) -> Shape:
        """The shape that the next stage takes."""
        return self.shapes[-1]


@dataclass(frozen=True)
class Network:
    """Layers from samples of a shape to logits, a class each, and the loss of these.

    Layers with parameters are numbered from 1 to L: their parameters are W1, b1, .., WL, bL. An image's shape
    is (height, width, channels); (height, width) has one channel.
    """

    input_shape: tuple[int, ...]
    layers: Sequence[Layer]
    loss: str = "softmax"

    def __post_init__(self) -> None:
        """Raise UserError for a network that cannot be."""
        object.__setattr__(self, "input_shape", tuple(self.input_shape))
        object.__setattr__(self, "layers", tuple(self.layers))
        if self.loss not in LOSSES:
            raise UserError(f"Network: loss {self.loss!r} is none of {', '.join(LOSSES)}")
        if not self.layers or self.layers[-1].activation is not None:
            raise UserError("Network: the last layer makes the logits: give it no activation")
        if not isinstance(self.layers[-1], Dense):
            raise UserError(
                f"Network: the last layer, {self.layers[-1]}, makes no logits: end with a dense layer, "
                "a unit a class"
            )
        for number in self.numbers:
            rows, columns = self.matrix(number)
            if rows * columns > LARGEST:
                raise UserError(
                    f"layer {number} would have {rows} x {columns} weights, more than 2^31: use smaller "
                    f"{'--hidden' if self.is_dense else '--net'} layers"
                )

    @classmethod
    def dense(cls, sizes: Sequence[int], activation: str, loss: str) -> Network:
        """Make a fully connected network; ``sizes`` = (inputs, hidden..., classes)."""
        inputs, *hidden, classes = sizes
        return cls((inputs,), [*(Dense(units, activation) for units in hidden), Dense(classes)], loss)

    @property
    def is_dense(self) -> bool:
        """Whether all layers are dense: then `--hidden` can say it."""
        return all(isinstance(layer, Dense) for layer in self.layers)

    @cached_property
    def layer_shapes(self) -> list[Shape]:
        """Shapes of a sample: of the input, and after each layer.

        Raises UserError, with the shapes so far, at the first layer that cannot take what it is given.
        """
        shape = self.input_shape
        shapes = [(*shape, 1) if len(shape) == 2 else shape]
        for place, layer in enumerate(self.layers):
            try:
                shapes.append(layer.output_shape(shapes[-1]))
            except UserError as error:
                so_far = [described(shapes[0])]
                so_far += [
                    f"{one} -> {described(after)}"
                    for one, after in zip(self.layers[:place], shapes[1:], strict=True)
                ]
                raise UserError(f"layer {place + 1}: {error} (up to it: {', '.join(so_far)})") from None
        return shapes

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The input and the layers with parameters, 0 to L, each with the layers that follow it."""
        shapes = self.layer_shapes
        begins = [place for place, layer in enumerate(self.layers) if layer.has_parameters]
        first = begins[0] if begins else len(self.layers)
        stages = [Stage(None, tuple(self.layers[:first]), tuple(shapes[: first + 1]), -1)]
        for begin, end in zip(begins, [*begins[1:], len(self.layers)], strict=True):
            of_stage = tuple(self.layers[begin + 1 : end])
            stages.append(Stage(self.layers[begin], of_stage, tuple(shapes[begin : end + 1]), begin))
        return tuple(stages)

    @property
    def draws(self) -> bool:
        """Whether a layer draws random numbers while the network trains."""
        return any(layer.only_trains for layer in self.layers)

    def in_step(self, seed: int, step: int) -> Network:
        """Return the network as it is in a step of training, counted from 1, of a run with this seed."""
        if not self.draws:
            return self
        layers = [layer.in_step(seed, step, place) for place, layer in enumerate(self.layers)]
        return replace(self, layers=layers)

    @property
    def numbers(self) -> range:
        """The numbers 1..L of the layers that have parameters."""
        return range(1, len(self.stages))

    @property
    def depth(self) -> int:
        """L, the number of layers with parameters."""
        return len(self.stages) - 1

    def layer(self, number: int) -> Layer:
        """Return the layer that has the parameters of this number."""
        layer = self.stages[number].layer
        assert layer is not None, "numbers of layers begin at 1"
        return layer

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Elements of a sample behind each stage, H_0, .., H_L; those of stage 0 the first layer takes."""
        return tuple(math.prod(stage.output) for stage in self.stages)

    @property
    def classes(self) -> int:
        return self.sizes[-1]

    def activation(self, number: int) -> str:
        """Return the name of layer ``number``'s activation; ``identity`` if it has none."""
        return self.layer(number).function

    @cached_property
    def shapes(self) -> dict[str, Shape]:
        """Shapes of W1, b1, ..., WL, bL, in this order; W of a dense layer is (H_l, H_{l-1}), b (H_l,)."""
        return {
            f"{name}{number}": shape
            for number in self.numbers
            for name, shape in self.layer(number).parameter_shapes(self.stages[number].input).items()
        }

    def matrix(self, number: int) -> tuple[int, int]:
        """Return the shape of a layer's W as a matrix: a row for each unit or filter."""
        rows, *rest = self.shapes[f"W{number}"]
        return rows, math.prod(rest)

    @property
    def parameter_count(self) -> int:
        return sum(map(math.prod, self.shapes.values()))

    @property
    def text(self) -> str:
        """The layers as ``--net`` reads them."""
        return text_of(self.layers)

    def table(self) -> list[tuple[str, str, int]]:
        """List for each layer its text, the shape of its output, and its parameters."""
        counts = [
            sum(map(math.prod, layer.parameter_shapes(shape).values()))
            for layer, shape in zip(self.layers, self.layer_shapes, strict=False)
        ]
        names = [" ".join([str(layer), *_activation(layer)]) for layer in self.layers]
        return list(zip(names, map(described, self.layer_shapes[1:]), counts, strict=True))

    def __str__(self) -> str:
        if not self.is_dense:
            return f"{described(self.layer_shapes[0])}, {self.text}, {LOSSES[self.loss]}"
        names = dict.fromkeys(layer.activation for layer in self.layers[:-1])
        if len(names) <= 1:
            words = ["-".join(map(str, self.sizes)), *(name or "linear" for name in names)]
        else:
            hidden = zip(self.sizes[1:-1], self.layers[:-1], strict=True)
            units = [f"{size} {layer.activation or 'linear'}" for size, layer in hidden]
            words = ["-".join([str(self.sizes[0]), *units, str(self.classes)])]
        return ", ".join([*words, LOSSES[self.loss]])


def text_of(layers: Sequence[Layer]) -> str:
    """Write layers as ``--net`` reads them."""
    words = []
    for layer in layers:
        words += [str(layer), *_activation(layer)]
    return ",".join(words)


def _activation(layer: Layer) -> list[str]:
    return [] if layer.function == IDENTITY else [layer.function]


def described(shape: Shape) -> str:
    """Write a shape for people."""
    return "x".join(map(str, shape))
