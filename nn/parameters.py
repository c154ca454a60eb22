"""Values of the parameters: initial ones, and files of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nn.data import npz
from nn.files import write_arrays, write_whole
from nn.network import Network
from pyrt.errors import UserError, shown

_LONGEST = 1 << 22
"""Bytes that a file's story may take, of text."""


def initial(network: Network, dtype: str, seed: int) -> dict[str, np.ndarray]:
    """Biases zero, weights normal, drawn layer by layer from PCG64 seeded with (seed, 0).

    Variance 2 / (fan-in + fan-out) (Glorot and Bengio 2010), 16 times that before a sigmoid, whose slope
    at 0 is a quarter of tanh's; 2 / fan-in before a ReLU (He et al. 2015).
    """
    generator = np.random.default_rng((seed, 0))
    values = {}
    for layer in network.layers:
        shape = network.shapes[f"W{layer}"]
        hidden = network.activation if layer < network.depth else "none"
        variance = 2 / shape[1] if hidden == "relu" else 2 / sum(shape)
        gain = 4 if hidden == "sigmoid" else 1
        weights = generator.standard_normal(shape) * (gain * np.sqrt(variance))
        values[f"W{layer}"] = weights.astype(dtype)
        values[f"b{layer}"] = np.zeros(shape[0], dtype)
    return values


def load(path: Path, network: Network, dtype: str) -> dict[str, np.ndarray]:
    """W1, b1, ..., WL, bL from an npz file, in ``dtype``. UserError where they do not fit the network."""
    try:
        _require_shapes(path, npz.headers(path, _is_parameter), network)
        arrays = npz.arrays(path, lambda name: name in network.shapes)
    except UserError as error:
        raise UserError(f"--init {error}") from None
    for name, array in arrays.items():
        with np.errstate(over="ignore", invalid="ignore"):
            arrays[name] = array.astype(dtype)
        if not np.isfinite(arrays[name]).all():
            raise UserError(f"--init {_no_numbers(path, name)} of {dtype}")
    return {name: arrays[name] for name in network.shapes}


def _is_parameter(name: str) -> bool:
    return name[:1] in "Wb" and name[1:].isdigit()


def _require_shapes(path: Path, found: Mapping[str, npz.Header], network: Network) -> None:
    """UserError unless these are the network's parameters; nothing larger is read."""
    for name, shape in network.shapes.items():
        if name not in found or found[name].shape != shape:
            has = f"has {name} of shape {found[name].shape!s:.80}" if name in found else f"has no {name}"
            raise UserError(
                f"{shown(path)}: {has}, {network} needs {shape}: "
                "give the --hidden and --classes it was saved with"
            )
        if found[name].dtype.kind not in "fiu":
            raise UserError(_no_numbers(path, name))
    if found.keys() != network.shapes.keys():
        extra = ", ".join(sorted(found.keys() - network.shapes.keys()))
        raise UserError(f"{shown(path)}: has {extra:.80} too: give the --hidden it was saved with")


def _no_numbers(path: Path, name: str) -> str:
    return f"{shown(path)}: {name} holds values that are no finite numbers"


def require_same_model(path: Path, options: Mapping[str, Any]) -> None:
    """UserError where the file's own story says that it was trained as another kind of network.

    Shapes do not show the activation, the head and the scale of pixels. Files without a story pass.
    """
    trained = _story(path).get("options")
    for name in ("activation", "head", "pixel_scale"):
        told = trained.get(name) if isinstance(trained, dict) else None
        if isinstance(told, str | int | float) and told != options[name]:
            flag = f"--{name.replace('_', '-')}"
            raise UserError(
                f"--init {shown(path)}: was trained with {flag} {shown(f'{told!s:.40}')}: give it again"
            )


def _story(path: Path) -> dict[str, Any]:
    """What `save` has put under ``run``; empty where that is something else."""
    is_run = "run".__eq__
    header = npz.headers(path, is_run).get("run")
    if header is None or header.shape != () or header.dtype.kind != "U" or header.dtype.itemsize > _LONGEST:
        return {}
    try:
        story = json.loads(str(npz.arrays(path, is_run)["run"]))
    except (ValueError, RecursionError):
        return {}
    return story if isinstance(story, dict) else {}


def save(path: Path, parameters: Mapping[str, np.ndarray], run: Mapping[str, Any]) -> None:
    """The parameters, and under ``run`` a JSON text that says how they came about; whole or not at all."""
    arrays = {**parameters, "run": np.array(json.dumps(run))}
    write_whole("--save", path, lambda file: write_arrays(file, arrays))
