"""nn/head.cu: losses and gradients against NumPy's float64."""

import numpy as np
import pytest

from nn.launch.head import Head
from tests import spread

SHAPES = [(1, 1), (1, 10), (5, 2), (133, 10), (6, 31), (7, 32), (9, 33), (4, 64), (3, 1000), (750, 10)]


def softmax(z, labels):
    shifted = z - z.max(axis=1, keepdims=True)
    sums = np.exp(shifted).sum(axis=1, keepdims=True)
    rows = np.arange(len(z))
    gradient = np.exp(shifted) / sums
    gradient[rows, labels] -= 1
    return np.log(sums[:, 0]) - shifted[rows, labels], gradient


def sigmoid(z, labels):
    targets = np.zeros_like(z)
    targets[np.arange(len(z)), labels] = 1
    losses = np.maximum(z, 0) - targets * z + np.log1p(np.exp(-np.abs(z)))
    return losses.sum(axis=1), np.exp(-np.logaddexp(0, -z)) - targets


HEADS = {"softmax": softmax, "sigmoid": sigmoid}


@pytest.fixture(params=HEADS)
def kind(request):
    return request.param


def run(kernels, device, kind, Z, b, labels, scale):
    """(loss, dZ) of the kernel, which puts dZ in the place of Z."""
    dZ, loss = device.array(Z), device.poisoned(len(Z), Z.dtype)
    labels = device.array(np.asarray(labels, np.int32))
    device.run(Head(kind, dZ, device.array(b), labels, loss, scale).on_device(kernels))
    return loss.to_host(), dZ.to_host()


def run_apart(library, device, real, kind, Z, b, labels, scale, grid=(4,), block=(32, 4)):
    """The same of a kernel that leaves Z as it is."""
    dZ, loss = device.poisoned(Z.shape, Z.dtype), device.poisoned(len(Z), Z.dtype)
    arrays = [device.array(x) for x in (Z, b, np.asarray(labels, np.int32))]
    kernel = library.kernel("nn/head", f"{kind}_head", REAL=real)
    device.run(kernel.bind(grid, block, *Z.shape, scale, *arrays, dZ, loss))
    assert arrays[0].to_host().tobytes() == Z.tobytes()
    return loss.to_host(), dZ.to_host()


def check(loss, dZ, kind, z, labels, scale):
    """Compare with the formulas at z, already rounded to the dtype.

    A lane adds every 32nd class, then 5 shuffles follow; exp and log are good to 2 units. What a rounding
    is relative to: for a gradient 1 (exp(-d) d < 1 bounds what rounding a distance d of logits does), for
    the softmax loss the largest such distance, for the sigmoid loss a sum of positive components, and each
    term the difference of logits that cancel exactly.
    """
    expected, gradient = HEADS[kind](z.astype(np.float64), labels)
    roundings = 16 + z.shape[1] / 32
    tolerance = roundings * np.finfo(loss.dtype).eps * scale
    spread = 1 + np.ptp(z.astype(np.float64), axis=1) if kind == "softmax" else 1 + expected
    assert np.all(np.abs(loss - scale * expected) <= tolerance * spread)
    assert np.all(np.abs(dZ - scale * gradient) <= tolerance)


@pytest.mark.parametrize(("shape", "scale"), spread(SHAPES, [1.0, 1 / 3000], by=2), ids=str)
def test_random_logits(kernels, device, rng, dtype, kind, shape, scale):
    Z = rng.normal(0, 4, shape).astype(dtype)
    b = rng.normal(0, 1, shape[1]).astype(dtype)
    labels = rng.integers(0, shape[1], shape[0])
    loss, dZ = run(kernels, device, kind, Z, b, labels, scale)
    check(loss, dZ, kind, Z + b, labels, scale)


@pytest.mark.sanitizer
@pytest.mark.parametrize("classes", [1, 10, 71])
def test_in_place_gives_the_same_bits(kernels, library, device, rng, real, dtype, kind, classes):
    Z = rng.normal(0, 4, (13, classes)).astype(dtype)
    b = rng.normal(0, 1, classes).astype(dtype)
    labels = rng.integers(0, classes, 13)
    apart = run_apart(library, device, real, kind, Z, b, labels, 0.1)
    in_place = run(kernels, device, kind, Z, b, labels, 0.1)
    check(*apart, kind, Z + b, labels, 0.1)
    assert [x.tobytes() for x in apart] == [x.tobytes() for x in in_place]


def test_small_grid(library, device, rng, real, dtype, kind):
    Z, b = rng.normal(0, 4, (37, 10)).astype(dtype), rng.normal(0, 1, 10).astype(dtype)
    labels = rng.integers(0, 10, 37)
    check(*run_apart(library, device, real, kind, Z, b, labels, 0.5, (2,), (32, 3)), kind, Z + b, labels, 0.5)


def test_huge_logits(kernels, device, dtype, kind):
    """No overflow and no log(0): the label the largest, the smallest, one of equals, all over the range."""
    rows = [
        [1e38, -1e38],
        [1e38, 1e38],
        [-1e38, -1e38],
        [1e4, 0],
        [750, -750],
        [104, 0],
        [89, 89],
        [0, 1e-38],
    ]
    Z = np.array([row[order] for row in map(np.array, rows) for order in ([0, 1], [1, 0])], dtype)
    Z = np.repeat(Z, 5, axis=1)  # 10 classes: their losses add up to more than the largest float32
    labels = np.zeros(len(Z), int)
    loss, dZ = run(kernels, device, kind, Z, np.zeros_like(Z[0]), labels, 1 / 3000)
    assert np.all(np.isfinite(loss)) and np.all(np.isfinite(dZ))
    check(loss, dZ, kind, Z, labels, 1 / 3000)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("classes", [1, 10, 40])
def test_logits_that_are_not_finite_show_in_the_loss(kernels, device, rng, dtype, kind, classes, value):
    """In every class, the label's or another; rows without one are as ever."""
    Z = rng.normal(0, 1, (classes + 1, classes)).astype(dtype)
    Z[np.arange(classes), np.arange(classes)] = value
    labels = np.full(classes + 1, classes // 2)
    loss, _ = run(kernels, device, kind, Z, np.zeros_like(Z[0]), labels, 1.0)
    assert not np.any(np.isfinite(loss[:-1])) and np.isfinite(loss[-1])
