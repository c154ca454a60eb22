"""nn/model/initial.py: variance, zeros, and what the seed decides."""

import numpy as np
import pytest

from nn.model.conv2d import Conv2d
from nn.model.dense import Dense
from nn.model.initial import initial_values
from nn.model.network import Network
from nn.model.pool import MaxPool2d
from tests.nn.files.made import NETWORK


@pytest.mark.parametrize(
    ("activation", "variance"), [("sigmoid", 16 * 2 / 700), ("tanh", 2 / 700), ("relu", 2 / 400)]
)
def test_initial_weights_have_the_variance_their_activation_asks_for_and_biases_are_zero(
    activation, variance
):
    network = Network.dense((400, 300, 200), activation, "softmax")
    values = initial_values(network, "float32", 0)
    assert {name: array.shape for name, array in values.items()} == network.shapes
    for name, expected in (("W1", variance), ("W2", 2 / 500)):  # W2 is the output layer's
        assert values[name].var() == pytest.approx(expected, rel=0.03)
        assert abs(values[name].mean()) < 0.02 * np.sqrt(expected)
    assert not values["b1"].any() and not values["b2"].any()


def test_initial_values_follow_from_the_seed_in_every_dtype():
    first, again, other = (initial_values(NETWORK, "float64", seed) for seed in (1, 1, 2))
    single = initial_values(NETWORK, "float32", 1)
    for name in ("W1", "W2"):
        np.testing.assert_array_equal(first[name], again[name])
        np.testing.assert_array_equal(first[name].astype(np.float32), single[name])
        assert (first[name] != other[name]).any()


def test_filters_are_drawn_layer_by_layer_and_pools_draw_nothing():
    layers = [MaxPool2d(2), Conv2d(4, 3, activation="relu"), MaxPool2d(2), Dense(3)]
    network = Network((8, 10, 2), layers)
    values, generator = initial_values(network, "float32", 5), np.random.default_rng((5, 0))
    assert {name: array.shape for name, array in values.items()} == network.shapes
    for number, layer, inputs in ((1, layers[1], (4, 5, 2)), (2, layers[3], (1, 1, 4))):
        for name, array in layer.initial(generator, inputs).items():
            np.testing.assert_array_equal(values[f"{name}{number}"], array.astype(np.float32))
