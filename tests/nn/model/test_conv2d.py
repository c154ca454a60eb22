"""nn/model/conv2d.py: against the loops, shapes, initial values, and what it refuses."""

import numpy as np
import pytest

from nn.model.conv2d import Conv2d
from pyrt.errors import UserError
from tests.nn.model import loops

CASES = {
    "one pixel": (Conv2d(1, 1), (1, 1, 1)),
    "plain": (Conv2d(4, 3), (6, 5, 3)),
    "even size": (Conv2d(3, (2, 4)), (5, 6, 2)),
    "stride that leaves a rest": (Conv2d(2, 3, stride=2), (6, 9, 2)),
    "stride over gaps": (Conv2d(3, 1, stride=3), (5, 7, 2)),
    "padding": (Conv2d(3, 3, padding=1), (4, 5, 2)),
    "padding and stride": (Conv2d(2, (3, 2), stride=3, padding=2), (5, 4, 3)),
    "same": (Conv2d(3, 3, padding="same"), (5, 4, 2)),
    "same, even, stride": (Conv2d(2, (2, 4), stride=2, padding="same"), (5, 7, 3)),
    "larger than the image": (Conv2d(2, 5, padding=2), (2, 3, 2)),
    "nothing but padding": (Conv2d(2, 2, stride=3, padding=4), (1, 2, 1)),
    "17 channels": (Conv2d(17, 3, padding=1), (3, 4, 17)),
}
TOLERANCE = {"float32": 2e-6, "float64": 5e-15}
"""Sums of up to 153 products of numbers about 1: roundings, at random, of the largest."""


def random_values(layer, inputs, dtype, samples=2):
    """Parameters, images, and a gradient of the outputs."""
    rng = np.random.default_rng([layer.filters, *inputs])
    parameters = {
        name: rng.normal(0, 1, shape).astype(dtype) for name, shape in layer.parameter_shapes(inputs).items()
    }
    A = rng.normal(0, 1, (samples, *inputs)).astype(dtype)
    return parameters, A, rng.normal(0, 1, (samples, *layer.output_shape(inputs))).astype(dtype)


def assert_close(found, expected, dtype):
    assert found.dtype == dtype and found.shape == expected.shape
    scale = np.abs(expected).max(initial=0) or 1
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE[dtype] * scale)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("layer", "inputs"), CASES.values(), ids=CASES)
def test_it_is_what_seven_loops_compute(layer, inputs, dtype):
    parameters, A, dZ = random_values(layer, inputs, dtype)
    window = layer.window(inputs)
    output = layer.forward(parameters, A)
    assert_close(output, loops.convolve(window, A, parameters["W"]) + parameters["b"], dtype)
    dA, gradients = layer.backward(parameters, A, output, dZ)
    assert_close(dA, loops.to_input(window, dZ, parameters["W"]), dtype)
    assert_close(gradients["W"], loops.to_filters(window, A, dZ), dtype)
    assert_close(gradients["b"], dZ.astype("f8").sum(axis=(0, 1, 2)), dtype)


@pytest.mark.parametrize(
    ("activation", "f", "derivative"),
    [
        ("sigmoid", lambda z: 1 / (1 + np.exp(-z)), lambda a: a * (1 - a)),
        ("tanh", np.tanh, lambda a: 1 - a**2),
        ("relu", lambda z: z * (z > 0), lambda a: a > 0),
    ],
)
def test_activation(activation, f, derivative):
    """The gradient may come flat, from a dense layer."""
    layer, inputs = Conv2d(3, 3, 2, 1, activation), (5, 4, 2)
    parameters, A, gradient = random_values(layer, inputs, "float64")
    window = layer.window(inputs)
    output = layer.forward(parameters, A)
    assert_close(output, f(loops.convolve(window, A, parameters["W"]) + parameters["b"]), "float64")
    dZ = gradient * derivative(output)
    dA, gradients = layer.backward(parameters, A, output, gradient.reshape(len(A), -1))
    assert_close(dA, loops.to_input(window, dZ, parameters["W"]), "float64")
    assert_close(gradients["W"], loops.to_filters(window, A, dZ), "float64")
    assert_close(gradients["b"], dZ.sum(axis=(0, 1, 2)), "float64")


def test_shapes():
    layer = Conv2d(8, (3, 2), stride=2, padding=1)
    assert layer.size == (3, 2) and Conv2d(8, 3).size == (3, 3) and Conv2d(8, [3, 2]).size == (3, 2)
    assert layer.output_shape((7, 9, 4)) == (4, 5, 8)
    assert layer.parameter_shapes((7, 9, 4)) == {"W": (8, 3, 2, 4), "b": (8,)}
    assert layer.has_parameters and not layer.keeps_places and layer.function == "identity"
    assert hash(Conv2d(8, 3)) == hash(Conv2d(8, (3, 3)))  # a network is a key


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (Conv2d(8, 3), "conv3x3x8"),
        (Conv2d(8, (3, 5), stride=2, activation="relu"), "conv3x5x8s2"),
        (Conv2d(8, 3, padding=1), "conv3x3x8p1"),
        (Conv2d(8, 3, 2, "same"), "conv3x3x8s2same"),
    ],
)
def test_text(layer, text):
    assert str(layer) == text


@pytest.mark.parametrize(
    ("activation", "variance"),
    [(None, 2 / 1400), ("tanh", 2 / 1400), ("sigmoid", 32 / 1400), ("relu", 2 / 600)],
)
def test_initial_weights_have_the_variance_of_their_activation(activation, variance):
    """Fan-in is 2 x 5 pixels of 60 channels, fan-out as many of 80 filters."""
    values = Conv2d(80, (2, 5), activation=activation).initial(np.random.default_rng(0), (9, 9, 60))
    assert values["W"].shape == (80, 2, 5, 60) and values["W"].dtype == np.float64
    # Of 48,000 normal numbers the variance is within 3 sqrt(2 / n), 2 percent.
    assert values["W"].var() == pytest.approx(variance, rel=0.02)
    assert abs(values["W"].mean()) < 0.02 * np.sqrt(variance)
    assert not values["b"].any() and values["b"].shape == (80,)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"filters": 0}, "number of filters 0 is not a whole number, 1 or more"),
        ({"filters": 2.0}, "number of filters 2.0"),
        ({"filters": True}, "number of filters True"),
        ({"size": 0}, "size 0 is not"),
        ({"size": (3, "3")}, "size '3' is not"),
        ({"size": (3, 3, 3)}, r"size \(3, 3, 3\) is no window: give its side, or \(rows, columns\)"),
        ({"size": ()}, r"size \(\) is no window"),
        ({"size": None}, "size None is not"),
        ({"stride": 0}, "stride 0 is not"),
        ({"stride": (1, 1)}, r"stride \(1, 1\) is not"),
        ({"padding": -1}, "padding -1 is not a whole number, 0 or more"),
        ({"padding": "valid"}, "padding 'valid' is not"),
        ({"activation": "swish"}, r"activation 'swish' is none of .*sigmoid, tanh, relu"),
    ],
)
def test_values_that_make_no_sense(values, words):
    with pytest.raises(UserError, match=f"^Conv2d: {words}"):
        Conv2d(**{"filters": 4, "size": 3, **values})


def test_what_is_no_image():
    with pytest.raises(UserError, match=r"^conv3x3x4: takes images .* not 7 x 9 numbers"):
        Conv2d(4, 3).output_shape((7, 9))
    with pytest.raises(UserError, match=r"^conv3x3x4: a window of 3 x 3 does not fit images of 2 x 9$"):
        Conv2d(4, 3).output_shape((2, 9, 1))
