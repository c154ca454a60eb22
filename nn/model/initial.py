"""Initial values of a network's parameters."""

from __future__ import annotations

import numpy as np

from nn.model.network import Network


def initial_values(network: Network, dtype: str, seed: int) -> dict[str, np.ndarray]:
    """Draw all parameters layer by layer from PCG64 seeded with (seed, 0), in this dtype."""
    generator = np.random.default_rng((seed, 0))
    values = {}
    for number, layer in zip(network.numbers, network.layers, strict=True):
        for name, array in layer.initial(generator, (network.sizes[number - 1],)).items():
            values[f"{name}{number}"] = array.astype(dtype)
    return values
