"""nn/activation.cu against NumPy's float64."""

import numpy as np
import pytest

from nn.launch.elementwise import activation_backward, bias_activation
from tests import spread

ACTIVATIONS = {
    "identity": (lambda z: z, lambda a: np.ones_like(a)),
    "sigmoid": (lambda z: np.exp(-np.logaddexp(0, -z)), lambda a: a * (1 - a)),
    "tanh": (np.tanh, lambda a: 1 - a**2),
    "relu": (lambda z: np.maximum(z, 0), lambda a: (a > 0).astype(a.dtype)),
}
SHAPES = [(1, 1), (1, 1000), (1003, 1), (7, 13), (8, 32), (9, 33), (133, 10), (75, 512)]


@pytest.fixture(params=ACTIVATIONS)
def activation(request):
    return request.param


def check_activation(A, z, activation):
    """Compare with f(z), z already rounded to the dtype, so that only f itself can differ.

    CUDA's exp and tanh are good to 2 units in the last place, NumPy's to 1, and a sum and a division
    follow: 8 are enough. Results below the normal numbers lose digits: the smallest one is let through.
    """
    expected = ACTIVATIONS[activation][0](z.astype(np.float64))
    info = np.finfo(A.dtype)
    np.testing.assert_allclose(A, expected, rtol=8 * info.eps, atol=info.tiny)


OF_ALL = pytest.mark.parametrize(
    ("activation", "shape"), spread(list(ACTIVATIONS), SHAPES, by=2), indirect=["activation"], ids=str
)


@OF_ALL
def test_bias_activation(kernels, device, rng, dtype, activation, shape):
    Z = rng.normal(0, 3, shape).astype(dtype)
    b = rng.normal(0, 1, shape[1]).astype(dtype)
    A = device.poisoned(shape, dtype)
    device.run(bias_activation(kernels, device.array(Z), device.array(b), A, activation))
    check_activation(A.to_host(), Z + b, activation)


@pytest.mark.sanitizer
def test_in_place_by_a_small_grid(library, device, rng, real, dtype, activation):
    rows, columns = 37, 70
    Z = rng.normal(0, 3, (rows, columns)).astype(dtype)
    b = rng.normal(0, 1, columns).astype(dtype)
    A = device.array(Z)
    kernel = library.kernel("nn/activation", "bias_activation", REAL=real, ACTIVATION=activation)
    device.run(kernel.bind((2, 2), (32, 8), rows, columns, A, device.array(b), A))
    check_activation(A.to_host(), Z + b, activation)


def test_extreme_inputs(kernels, device, dtype, activation):
    """Finite for every finite input, and NaN is not swallowed."""
    sizes = [0, 1e-30, 1, 20, 89, 104, 710, 746, 1e4, 1e38, np.finfo(dtype).max]
    Z = np.array([[s * size for size in sizes] for s in (1, -1)], dtype)
    Z = np.vstack([Z, np.full(len(sizes), np.nan, dtype)])
    A = device.poisoned(Z.shape, dtype)
    device.run(bias_activation(kernels, device.array(Z), device.array(np.zeros_like(Z[0])), A, activation))
    check_activation(A.to_host()[:2], Z[:2], activation)
    assert np.all(np.isfinite(A.to_host()[:2])) and np.all(np.isnan(A.to_host()[2]))


def check_backward(dZ, dA, A, activation):
    """Two or three roundings, each of at most |dA|, since f' <= 1 and its components too."""
    expected = dA * ACTIVATIONS[activation][1](A.astype(np.float64))
    assert np.all(np.abs(dZ - expected) <= 3 * np.finfo(dZ.dtype).eps * np.abs(dA))


@OF_ALL
def test_backward(kernels, device, rng, dtype, activation, shape):
    A = ACTIVATIONS[activation][0](rng.normal(0, 3, shape)).astype(dtype)
    dA = rng.normal(0, 1, shape).astype(dtype)
    dZ = device.poisoned(shape, dtype)
    device.run(activation_backward(kernels, device.array(A), device.array(dA), dZ, activation))
    check_backward(dZ.to_host(), dA, A, activation)


@pytest.mark.sanitizer
def test_backward_in_place_by_a_small_grid(library, device, rng, real, dtype, activation):
    A = ACTIVATIONS[activation][0](rng.normal(0, 3, 1009)).astype(dtype)
    dA = rng.normal(0, 1, 1009).astype(dtype)
    dZ = device.array(dA)
    kernel = library.kernel("nn/activation", "activation_backward", REAL=real, ACTIVATION=activation)
    device.run(kernel.bind((3,), (64,), 1009, device.array(A), dZ, dZ))
    check_backward(dZ.to_host(), dA, A, activation)
