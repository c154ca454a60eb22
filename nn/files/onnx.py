"""A trained network as an ONNX file (https://onnx.ai), for programs of others: its forward pass alone.

From ``pixels`` float32 (N, D), divided by the scale that the network was trained with, to ``probabilities``
float32 (N, classes): of softmax they add up to 1, of sigmoid each is that of its own class. N is any number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nn.files import run_metadata
from nn.files.packages import need
from nn.files.write import write_whole
from nn.model.dense import Dense
from nn.model.layer import IDENTITY
from nn.model.network import Network
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

Node = tuple[str, list[str], str, dict[str, int]]
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

    nodes = [helper.make_node(*_arguments(node), **node[3]) for node in _nodes(network)]
    graph = helper.make_graph(
        nodes,
        "network",
        [described(INPUT, network.sizes[0], "divided by the network's pixel scale")],
        [described(OUTPUT, network.classes, f"of each class, by {network.loss}")],
        [numpy_helper.from_array(parameters[name], name) for name in network.shapes],
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


def _arguments(node: Node) -> tuple[str, list[str], list[str]]:
    operator, inputs, output, _ = node
    return operator, inputs, [output]


def _nodes(network: Network) -> list[Node]:
    """List the operators from the input to the probabilities, in order."""
    nodes: list[Node] = []
    last = INPUT
    for number, layer in zip(network.numbers, network.layers, strict=True):
        nodes += _NODES[type(layer)](layer, number, last)
        last = nodes[-1][2]
    operator, attributes = _HEADS[network.loss]
    return [*nodes, (operator, [last], OUTPUT, attributes)]


def _dense(layer: Dense, number: int, inputs: str) -> list[Node]:
    """List those of a fully connected layer: Z = A W^T + b, then its activation."""
    product: Node = ("Gemm", [inputs, f"W{number}", f"b{number}"], f"Z{number}", {"transB": 1})
    if layer.function == IDENTITY:
        return [product]
    return [product, (_OPERATORS[layer.function], [f"Z{number}"], f"A{number}", {})]


_NODES: dict[type, Callable[[Any, int, str], list[Node]]] = {Dense: _dense}
"""What lists the operators of a layer, by its type."""
