"""nn/program/operations.py: every operation against float64 formulae, in NumPy and (on a GPU) as a kernel."""

import numpy as np
import pytest

from nn.input.source import BatchCursor, Gathered, Ready
from nn.launch.gemm.product import Product
from nn.launch.head import Head
from nn.launch.update import LossRing
from nn.program import operations
from nn.program.operations import FORWARD
from nn.program.step import bind
from pyrt.arrays import DeviceArray
from pyrt.driver.cpu import CpuDriver
from pyrt.streams import Streams
from tests import few, spread
from tests.nn.ending import keep_loss

SIZES = [(1, 1, 1), (5, 3, 7), (13, 10, 31), (64, 33, 2), (97, 17, 10), (3, 257, 65)]


class Place:
    """A device on which operations run; ``kernels`` is None where NumPy computes."""

    def __init__(self, driver, kernels):
        self.driver, self.kernels, self.streams = driver, kernels, Streams(driver)

    def array(self, host):
        return DeviceArray.from_host(self.driver, host)

    def run(self, operation):
        bind(operation, self.streams, self.kernels)()
        self.driver.synchronize()


@pytest.fixture(params=["numpy", pytest.param("kernels", marks=pytest.mark.kernels)])
def place(request, dtype):
    if request.param == "numpy":
        return Place(CpuDriver(), None)
    return Place(request.getfixturevalue("driver"), request.getfixturevalue("kernels"))


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def close(array, truth):
    """Equal but for some tens of roundings, relative to the largest element."""
    host = array.to_host()
    error = np.abs(host - truth).max() / (np.abs(truth).max() or 1)
    assert error < 64 * np.finfo(host.dtype).eps, error


@pytest.mark.parametrize(
    ("size", "transpose_a", "transpose_b"), spread(SIZES, [False, True], [False, True], by=2), ids=str
)
def test_gemm(place, rng, dtype, size, transpose_a, transpose_b):
    M, N, K = size
    a, b = rng.normal(0, 1, (M, K)).astype(dtype), rng.normal(0, 1, (K, N)).astype(dtype)
    A = place.array(np.ascontiguousarray(a.T) if transpose_a else a)
    B = place.array(np.ascontiguousarray(b.T) if transpose_b else b)
    D = place.array(np.full((M, N), np.nan, dtype))
    operation = operations.gemm("product", FORWARD, Product(D, A, B, transpose_a, transpose_b))
    place.run(operation)
    close(D, a.astype(float) @ b.astype(float))
    assert operation.flops == 2 * M * N * K
    assert operation.bytes == (M * K + K * N + M * N) * dtype.itemsize


def test_gemm_of_a_column_slice(place, rng, dtype):
    """As the panels of a weight gradient are made: some columns of dZ, some rows of dW."""
    dz, x = rng.normal(0, 1, (9, 11)).astype(dtype), rng.normal(0, 1, (9, 6)).astype(dtype)
    dW = place.array(np.full((11, 6), -1, dtype))
    columns = place.array(dz).columns(3, 8)
    product = Product(dW.rows(3, 8), columns, place.array(x), transpose_a=True)
    place.run(operations.gemm("product", FORWARD, product))
    expected = np.full((11, 6), -1.0)
    expected[3:8] = dz[:, 3:8].astype(float).T @ x.astype(float)
    close(dW, expected)


@pytest.mark.parametrize("pixel", [np.uint8, np.float32])
@pytest.mark.parametrize("scale", [255.0, 1.0, 0.3])
def test_scale_pixels(place, rng, dtype, pixel, scale):
    images = rng.integers(0, 256, (13, 31)).astype(pixel)
    X = place.array(np.full((13, 31), np.nan, dtype))
    source = Ready(place.array(images), place.array(np.zeros(13, np.int32)))
    operation = operations.take_batch(source, X, scale)
    place.run(operation)
    close(X, images / np.float64(scale))
    assert operation.bytes == images.nbytes + X.nbytes


@pytest.mark.parametrize("pixel", [np.uint8, np.float32])
def test_gather_batch(place, rng, dtype, pixel):
    """More rows than the set has: it is repeated."""
    images, labels = rng.integers(0, 256, (9, 31)).astype(pixel), rng.integers(0, 9, 9).astype(np.int32)
    order, at = rng.integers(0, 9, 20).astype(np.int32), place.array(np.array([4, 0], np.int32))
    X, y = place.array(np.full((13, 31), np.nan, dtype)), place.array(np.full(13, -1, np.int32))
    arrays = [place.array(array) for array in (images, labels, order)]
    operation = operations.take_batch(Gathered(*arrays, BatchCursor(at, 13, 15), y), X, 255.0)
    place.run(operation)
    close(X, images[order[4:17]] / np.float64(255))
    assert np.array_equal(y.to_host(), labels[order[4:17]])
    assert at.to_host().tolist() == [2, 0]
    assert operation.bytes == 13 * (31 * images.itemsize + 4 + 4 + 4) + 2 * 8 + X.nbytes


def test_skip_batch(place, dtype):
    at = place.array(np.array([5, 0], np.int32))
    operation = operations.skip_batch(BatchCursor(at, 4, 7))
    place.run(operation)
    assert at.to_host().tolist() == [2, 0]
    assert operation.bytes == 2 * 8


def test_keep_loss(place, dtype):
    losses, at = place.array(np.zeros(3, dtype)), place.array(np.array([2], np.int32))
    ring = LossRing(place.array(np.array([0.5], dtype)), losses, at)
    operation = keep_loss(ring)
    place.run(operation)
    assert (losses.to_host().tolist(), at.to_host().tolist()) == ([0, 0, 0.5], [0])
    assert operation.bytes == 2 * dtype.itemsize + 2 * 4


ACTIVATIONS = {
    "identity": (lambda z: z, None),
    "sigmoid": (lambda z: 1 / (1 + np.exp(-z)), lambda a: a * (1 - a)),
    "tanh": (np.tanh, lambda a: 1 - a**2),
    "relu": (lambda z: np.where(z > 0, z, 0), lambda a: a > 0),
}


@pytest.mark.parametrize("activation", few(["sigmoid", "relu"], of=list(ACTIVATIONS)))
@pytest.mark.parametrize(("rows", "columns", "_"), SIZES)
def test_bias_activation(place, rng, dtype, activation, rows, columns, _):
    z, b = rng.normal(0, 3, (rows, columns)).astype(dtype), rng.normal(0, 3, columns).astype(dtype)
    Z = place.array(z)
    place.run(operations.bias_activation("activation", Z, place.array(b), activation))
    f, _ = ACTIVATIONS[activation]
    close(Z, f(z.astype(float) + b))


@pytest.mark.parametrize("activation", ["sigmoid", "tanh", "relu"])
@pytest.mark.parametrize(("rows", "columns", "_"), SIZES)
def test_activation_backward(place, rng, dtype, activation, rows, columns, _):
    f, derivative = ACTIVATIONS[activation]
    a = f(rng.normal(0, 1, (rows, columns))).astype(dtype)
    d = rng.normal(0, 1, (rows, columns)).astype(dtype)
    dA = place.array(d)
    place.run(operations.activation_backward("gradient", place.array(a), dA, activation))
    close(dA, d * derivative(a.astype(float)))


def head(kind, z, labels):
    """Losses and gradients of logits that are not extreme, in float64."""
    T = np.eye(z.shape[1])[labels]
    if kind == "softmax":
        Y = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
        return -(T * np.log(Y)).sum(axis=1), Y - T
    return (np.log(1 + np.exp(z)) - T * z).sum(axis=1), 1 / (1 + np.exp(-z)) - T


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
@pytest.mark.parametrize(("rows", "classes", "_"), SIZES)
def test_head(place, rng, dtype, kind, rows, classes, _):
    z, b = rng.normal(0, 3, (rows, classes)).astype(dtype), rng.normal(0, 1, classes).astype(dtype)
    labels = rng.integers(0, classes, rows).astype(np.int32)
    Z, losses = place.array(z), place.array(np.full(rows, np.nan, dtype))
    place.run(operations.head(Head(kind, Z, place.array(b), place.array(labels), losses, 0.25)))
    loss, gradient = head(kind, z.astype(float) + b, labels)
    close(losses, 0.25 * loss)
    close(Z, 0.25 * gradient)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
@pytest.mark.parametrize("logit", [1e38, -1e38, 1e4, 0])
def test_head_of_ten_equal_logits_of_any_size(place, dtype, kind, logit):
    """Ten losses of 1e38 add up to more than the largest float32; their mean over a batch does not."""
    Z, losses = place.array(np.full((2, 10), logit, dtype)), place.array(np.zeros(2, dtype))
    bias, labels = place.array(np.zeros(10, dtype)), place.array(np.array([0, 9], np.int32))
    place.run(operations.head(Head(kind, Z, bias, labels, losses, 1 / 3000)))
    if kind == "softmax":
        loss, probability = np.log(10), 0.1
    else:
        loss = 9 * max(logit, 0.0) + max(-logit, 0.0) if logit else 10 * np.log(2)
        probability = 1 if logit > 0 else 0 if logit else 0.5
    close(losses, np.full(2, loss / 3000))
    close(Z, (probability - np.eye(10)[[0, 9]]) / 3000)


@pytest.mark.parametrize(("rows", "columns", "_"), SIZES)
def test_column_sums(place, rng, dtype, rows, columns, _):
    x = rng.normal(0, 1, (rows, columns)).astype(dtype)
    sums = place.array(np.full(columns, np.nan, dtype))
    place.run(operations.column_sums("sums", FORWARD, place.array(x), sums))
    truth = x.astype(float).sum(axis=0)
    error = np.abs(sums.to_host() - truth).max() / np.abs(x).sum(axis=0).max()
    assert error < 4 * np.finfo(dtype).eps
