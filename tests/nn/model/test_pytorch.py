"""The NumPy reference of convolutional networks against PyTorch, where that is installed; float64."""

import numpy as np
import pytest

from nn.model import reference
from nn.model.conv2d import Conv2d
from nn.model.dense import Dense
from nn.model.initial import initial_values
from nn.model.network import Network
from nn.model.pool import AvgPool2d, GlobalAvgPool2d, MaxPool2d
from tests.nn.model import test_conv2d, test_pool

torch = pytest.importorskip("torch", reason="needs PyTorch, which no part of this project installs")

TOLERANCE = 1e-12
"""Relative to the largest: sums of some thousand products, in another order."""


def there(array):
    """A tensor that a gradient is to be taken of; images have their channels first there."""
    moved = np.moveaxis(array, -1, 1) if array.ndim == 4 else array
    return torch.from_numpy(np.ascontiguousarray(moved)).requires_grad_()


def here(tensor):
    array = tensor.detach().numpy()
    return np.moveaxis(array, 1, -1) if array.ndim == 4 else array


def assert_close(found, tensor):
    expected = here(tensor)
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE * (np.abs(expected).max() or 1))


@pytest.mark.parametrize(
    ("layer", "inputs"),
    [case for case in test_conv2d.CASES.values() if case[0].padding != "same"],  # not alike on both sides
    ids=str,
)
def test_convolutions(layer, inputs):
    parameters, A, dZ = test_conv2d.random_values(layer, inputs, "float64")
    images, filters, bias = there(A), there(parameters["W"]), there(parameters["b"])
    Z = torch.nn.functional.conv2d(images, filters, bias, layer.stride, layer.padding)
    Z.backward(there(dZ))
    output = layer.forward(parameters, A)
    dA, gradients = layer.backward(parameters, A, output, dZ)
    assert_close(output, Z)
    assert_close(dA, images.grad)
    assert_close(gradients["W"], filters.grad)
    assert_close(gradients["b"], bias.grad)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("kind", ["max", "mean"])
def test_pooling(kind, ties):
    """PyTorch, too, takes the first of equal pixels."""
    rng = np.random.default_rng(0)
    for size, stride, shape in test_pool.fitting():
        layer = (MaxPool2d if kind == "max" else AvgPool2d)(size, stride)
        A, gradient = test_pool.random_values(rng, layer, shape, "float64")
        if ties:
            A = np.sign(A)
        images = there(A)
        function = torch.nn.functional.max_pool2d if kind == "max" else torch.nn.functional.avg_pool2d
        pooled = function(images, size, layer.stride)
        pooled.backward(there(gradient))
        output, dA = test_pool.both_ways(layer, A, gradient)
        assert_close(output, pooled)
        assert_close(dA, images.grad)


class Net(torch.nn.Module):
    """The same as `LAYERS`; between images and dense layers channels go last, as here."""

    def __init__(self, parameters):
        super().__init__()
        self.parameters_by_name = {name: there(array) for name, array in parameters.items()}

    def forward(self, images):
        f, p = torch.nn.functional, self.parameters_by_name
        A = f.max_pool2d(f.relu(f.conv2d(images, p["W1"], p["b1"], padding=2)), 2)
        A = f.avg_pool2d(torch.tanh(f.conv2d(A, p["W2"], p["b2"], stride=2)), 2, 1)
        A = torch.sigmoid(f.conv2d(A, p["W3"], p["b3"])).mean(dim=(2, 3))
        return f.linear(f.relu(f.linear(A, p["W4"], p["b4"])), p["W5"], p["b5"])


LAYERS = [
    *(Conv2d(6, 5, padding=2, activation="relu"), MaxPool2d(2)),
    *(Conv2d(9, 3, stride=2, activation="tanh"), AvgPool2d(2, 1)),
    *(Conv2d(12, (1, 2), activation="sigmoid"), GlobalAvgPool2d()),
    *(Dense(11, "relu"), Dense(10)),
]


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_a_network(loss):
    network = Network((14, 17, 3), LAYERS, loss)
    rng = np.random.default_rng(1)
    parameters = initial_values(network, "float64", 0)
    parameters = {name: array + rng.normal(0, 0.1, array.shape) for name, array in parameters.items()}
    X, labels = rng.normal(0, 1, (7, 14, 17, 3)), rng.integers(0, 10, 7)
    net = Net(parameters)
    logits = net(there(X))
    if loss == "softmax":
        cost = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels))
    else:
        truth = torch.nn.functional.one_hot(torch.from_numpy(labels), 10).double()
        cost = torch.nn.functional.binary_cross_entropy_with_logits(logits, truth, reduction="sum") / 7
    cost.backward()
    found, gradients = reference.cost_and_gradients(parameters, X, labels, network, reg=0)
    assert found == pytest.approx(cost.item(), rel=TOLERANCE)
    for name, gradient in gradients.items():
        assert_close(gradient, net.parameters_by_name[name].grad)
