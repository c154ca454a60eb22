"""conv/flip.cu, and the same in NumPy: filters of several layers turned around, as bf16 components."""

import numpy as np
import pytest

from nn.launch.conv.flip import FlipFilters, Turn
from nn.launch.gemm.components import Components, split

LAYERS = [(1, (1, 1), 1), (24, (3, 2), 17), (8, (2, 5), 40)]
"""Filters, rows and columns, channels."""


@pytest.mark.sanitizer
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("layers", [LAYERS[1:2], LAYERS], ids=["one", "three"])
def test_layers(place, rng, layers, count):
    """To the bit; nothing is written beside a row."""
    array, run = place
    filters = [rng.standard_normal((f, *size, c)).astype("f4") for f, size, c in layers]
    turns = []
    for host in filters:
        W, places = array(host.reshape(len(host), -1)), host.shape[1] * host.shape[2]
        turns.append(Turn(W, Components.empty(W.driver, count, host.shape[3], places * len(host)), places))
    run(FlipFilters(turns))
    for host, turn in zip(filters, turns, strict=True):
        T = turn.T
        found = T.matrix.to_host().reshape(count, T.rows, T.ld)
        expected = split(host[:, ::-1, ::-1].transpose(3, 1, 2, 0).reshape(T.rows, -1), count)
        np.testing.assert_array_equal(found[:, :, : T.columns], expected)
        assert not found[:, :, T.columns :].any()
