"""Initial values of a network's parameters."""

from __future__ import annotations

import numpy as np

from nn.model.network import Network


def initial_values(network: Network, dtype: str, seed: int) -> dict[str, np.ndarray]:
    """Draw all parameters layer by layer from PCG64 seeded with (seed, 0), in this dtype."""
    generator = np.random.default_rng((seed, 0))
    values = {}
    for number in network.numbers:
        inputs = network.stages[number].input
        for name, array in network.layer(number).initial(generator, inputs).items():
            values[f"{name}{number}"] = array.astype(dtype)
    return values
