"""Values of the parameters: initial ones, and files of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nn.data import npz
from nn.data.files import shown
from nn.files import write_whole
from nn.network import Network
from pyrt.errors import UserError


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
        arrays = npz.arrays(path, lambda name: name[:1] in "Wb" and name[1:].isdigit())
    except UserError as error:
        raise UserError(f"--init {error}") from None
    for name, shape in network.shapes.items():
        found = arrays[name].shape if name in arrays else None
        if found != shape:
            has = f"has {name} of shape {found}" if found is not None else f"has no {name}"
            raise UserError(
                f"--init {shown(path)}: {has}, {network} needs {shape}: give the --hidden it was saved with"
            )
    if arrays.keys() != network.shapes.keys():
        extra = ", ".join(sorted(arrays.keys() - network.shapes.keys()))
        raise UserError(f"--init {shown(path)}: has {extra} too: give the --hidden it was saved with")
    for name, array in arrays.items():
        if array.dtype.kind in "fiu":
            with np.errstate(over="ignore"):
                arrays[name] = array.astype(dtype)
        if array.dtype.kind not in "fiu" or not np.isfinite(arrays[name]).all():
            raise UserError(
                f"--init {shown(path)}: {name} holds values that are no finite numbers of {dtype}"
            )
    return {name: arrays[name] for name in network.shapes}


def require_same_model(path: Path, options: Mapping[str, Any]) -> None:
    """UserError where the file's own story says that it was trained as another kind of network.

    Shapes do not show the activation, the head and the scale of pixels. Files without a story pass.
    """
    story = npz.arrays(path, lambda name: name == "run").get("run")
    try:
        trained = json.loads(str(story))["options"] if story is not None else {}
    except (ValueError, KeyError, TypeError):
        return
    for name in ("activation", "head", "pixel_scale"):
        if trained.get(name, options[name]) != options[name]:
            flag = f"--{name.replace('_', '-')}"
            raise UserError(f"--init {shown(path)}: was trained with {flag} {trained[name]}: give it again")


def save(path: Path, parameters: Mapping[str, np.ndarray], run: Mapping[str, Any]) -> None:
    """The parameters, and under ``run`` a JSON text that says how they came about; whole or not at all."""
    arrays: dict[str, Any] = {**parameters, "run": np.array(json.dumps(run))}
    write_whole("--save", path, lambda file: np.savez(file, **arrays))
