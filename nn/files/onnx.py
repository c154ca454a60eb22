"""A trained network as an ONNX file (https://onnx.ai), for programs of others: its forward pass alone.

From ``pixels`` float32 (N, D), divided by the scale that the network was trained with, to ``probabilities``
float32 (N, classes): of softmax they add up to 1, of sigmoid each is that of its own class. N is any number.
Pixels of images lie in memory order, channels last. From there to the first dense layer channels come first,
as ONNX wants them; so do those of filters, W (filters, channels, rows, columns).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nn.files import run_metadata
from nn.files.packages import need
from nn.files.write import write_whole
from nn.model.conv2d import Conv2d
from nn.model.dense import Dense
from nn.model.dropout import Dropout
from nn.model.layer import IDENTITY, Shape
from nn.model.network import Network
from nn.model.pool import AvgPool2d, GlobalAvgPool2d, MaxPool2d
from nn.model.window import Window
from pyrt.errors import UserError, shown

INPUT, OUTPUT = "pixels", "probabilities"
"""The names of what goes in and what comes out."""

OPSET, IR_VERSION = 13, 7
"""Of ONNX 1.8 of 2020, the first whose Softmax has today's meaning: what reads ONNX today knows them."""

_OPERATORS = {"sigmoid": "Sigmoid", "tanh": "Tanh", "relu": "Relu"}
"""ONNX's names of the activations."""

_HEADS: dict[str, tuple[str, dict[str, int]]] = {
    "softmax": ("Softmax", {"axis": 1}),
    "sigmoid": ("Sigmoid", {}),
}
"""ONNX's names and attributes of what makes probabilities of logits, by the network's loss."""

_MOST = (1 << 31) - (1 << 20)
"""Bytes of parameters: a file of protobuf has less than 2 GiB."""

Attribute = int | list[int]

Node = tuple[str, list[str], str, dict[str, Attribute]]
"""An operator's name, the names of its inputs, that of its output, and its attributes."""


def require_installed(path: Path) -> None:
    """Raise UserError where the package that writes ONNX is missing."""
    need("onnx", f"--export {shown(path)}")


def require_exportable(path: Path, network: Network) -> None:
    """Raise UserError where this network does not fit an ONNX file, or has layers that are not known here."""
    if 4 * network.parameter_count > _MOST:
        raise UserError(
            f"--export {shown(path)}: {network.parameter_count} parameters are more than the 2 GB of an ONNX "
            "file: --save them"
        )
    for layer in network.layers:
        if type(layer) not in _NODES:
            raise UserError(
                f"--export {shown(path)}: layers of type {type(layer).__name__} are not written as ONNX: "
                "--save the parameters"
            )


def export(
    path: Path, network: Network, parameters: Mapping[str, np.ndarray], run: Mapping[str, Any]
) -> None:
    """Write the network with these parameters, in float32, and the metadata of the run; whole or not at all.

    Raises UserError where it cannot be written, or a parameter is too large for float32.
    """
    require_installed(path)
    require_exportable(path, network)
    with np.errstate(over="ignore"):
        single = {name: np.ascontiguousarray(array, "<f4") for name, array in parameters.items()}
    for name, array in single.items():
        if not np.isfinite(array).all():
            raise UserError(f"--export {shown(path)}: {name} holds numbers that float32 cannot: --save them")
    content = _model(network, single, run).SerializeToString()
    write_whole("--export", path, lambda file: file.write(content))


def _model(network: Network, parameters: Mapping[str, np.ndarray], run: Mapping[str, Any]) -> Any:
    """Make ONNX's own object of a network."""
    import onnx
    from onnx import helper, numpy_helper

    def described(name: str, columns: int, text: str) -> Any:
        return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", columns], text)

    written = _Written.of(network)
    constants = {**{name: _in_onnx(parameters[name]) for name in network.shapes}, **written.constants}
    graph = helper.make_graph(
        [helper.make_node(*_arguments(node), **node[3]) for node in written.nodes],
        "network",
        [described(INPUT, math.prod(network.layer_shapes[0]), "divided by the network's pixel scale")],
        [described(OUTPUT, network.classes, f"of each class, by {network.loss}")],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(
        graph,
        producer_name="pyrt",
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)],
        doc_string=str(network),
    )
    helper.set_model_props(model, {run_metadata.NAME: json.dumps(run)})
    onnx.checker.check_model(model, full_check=True)
    return model


def _in_onnx(array: np.ndarray) -> np.ndarray:
    """Return parameters in ONNX's order: filters (filters, channels, rows, columns)."""
    return np.ascontiguousarray(array.transpose(0, 3, 1, 2)) if array.ndim == 4 else array


def _arguments(node: Node) -> tuple[str, list[str], list[str]]:
    operator, inputs, output, _ = node
    return operator, inputs, [output]


@dataclass
class _Written:
    """The operators so far, from the input on; images are channels first from one to the next."""

    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    """Inputs of operators that are no parameters."""
    last: str = INPUT
    has_images: bool = False
    """Whether ``last`` are images, (N, channels, height, width)."""
    number: int = 0
    """The number of the last layer with parameters."""

    @classmethod
    def of(cls, network: Network) -> _Written:
        """Write the operators from the input to the probabilities, in order."""
        written = cls()
        for layer, inputs in zip(network.layers, network.layer_shapes, strict=False):
            written.number += layer.has_parameters
            _NODES[type(layer)](written, layer, inputs)
            if layer.function != IDENTITY:
                written.add(_OPERATORS[layer.function], f"A{written.number}")
        operator, attributes = _HEADS[network.loss]
        written.add(operator, OUTPUT, **attributes)
        return written

    def add(self, operator: str, output: str, *others: str, **attributes: Attribute) -> None:
        """Add an operator that takes what there is last, and others beside it."""
        self.nodes.append((operator, [self.last, *others], output, attributes))
        self.last = output

    @property
    def layer_output(self) -> str:
        """A name for what a layer with parameters makes before its activation."""
        return f"Z{self.number}"

    @property
    def other_output(self) -> str:
        """A name that no other output has."""
        return f"T{len(self.nodes)}"

    def to_images(self, shape: Shape) -> None:
        """Make images of the pixels, unless that is done; these lie with channels last."""
        if not self.has_images:
            self.constants["image_shape"] = np.array([0, *shape], np.int64)  # 0: as many samples as there are
            self.add("Reshape", self.other_output, "image_shape")
            self.add("Transpose", self.other_output, perm=[0, 3, 1, 2])
            self.has_images = True

    def to_units(self) -> None:
        """Flatten images, if that is what there is: in memory order, channels last."""
        if self.has_images:
            self.add("Transpose", self.other_output, perm=[0, 2, 3, 1])
            self.add("Flatten", self.other_output, axis=1)
            self.has_images = False


def _dense(written: _Written, layer: Dense, inputs: Shape) -> None:
    """Z = A W^T + b."""
    written.to_units()
    number = written.number
    written.add("Gemm", written.layer_output, f"W{number}", f"b{number}", transB=1)


def _conv(written: _Written, layer: Conv2d, inputs: Shape) -> None:
    """Z: padding before the image as the window has it, and behind it as the last window reaches."""
    written.to_images(inputs)
    window, number = layer.window(inputs), written.number
    below = (window.out_height - 1) * window.stride + window.rows - window.height - window.top
    right = (window.out_width - 1) * window.stride + window.columns - window.width - window.left
    pads = [window.top, window.left, max(0, below), max(0, right)]
    written.add(
        "Conv", written.layer_output, f"W{number}", f"b{number}", **_window_attributes(window), pads=pads
    )


def _pool(written: _Written, layer: MaxPool2d | AvgPool2d | GlobalAvgPool2d, inputs: Shape) -> None:
    """The largest pixels, or the means; windows are within the images."""
    written.to_images(inputs)
    operator = "MaxPool" if isinstance(layer, MaxPool2d) else "AveragePool"
    written.add(operator, written.other_output, **_window_attributes(layer.window(inputs)))


def _window_attributes(window: Window) -> dict[str, Attribute]:
    return {"kernel_shape": [window.rows, window.columns], "strides": [window.stride, window.stride]}


def _dropout(written: _Written, layer: Dropout, inputs: Shape) -> None:
    """Nothing: a network that does not train drops nothing."""


_NODES: dict[type, Callable[[_Written, Any, Shape], None]] = {
    Dense: _dense,
    Conv2d: _conv,
    MaxPool2d: _pool,
    AvgPool2d: _pool,
    GlobalAvgPool2d: _pool,
    Dropout: _dropout,
}
"""Type of a layer -> the function that writes its operators; its activation comes behind them."""
