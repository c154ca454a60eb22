"""Turns the parameters of a pruned network, whose weights share values or not, into what a file holds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nn.compress.retraining import Parameters
from nn.files.coding.shared_weights import SharedWeights


def encoded(
    parameters: Parameters, bits: Mapping[int, int], index_bits: int
) -> dict[str, SharedWeights | np.ndarray]:
    """Encode each layer's weights; biases stay as they are. ``bits``: of a code, by layer; 0: no codes."""
    found: dict[str, SharedWeights | np.ndarray] = {}
    for name, array in parameters.items():
        if not name.startswith("W"):
            found[name] = array
            continue
        light = SharedWeights.of_dense(array, index_bits)
        if bits[int(name[1:])]:
            codebook, codes = np.unique(light.weights, return_inverse=True)
            light = light.shared(codebook, codes.astype(np.uint16))
        found[name] = light
    return found
