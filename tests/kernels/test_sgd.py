"""sgd.cu against NumPy's float64."""

import numpy as np
import pytest


def check(parameters, velocity, p, g, v, decayed, rate, momentum, decay):
    """Compare with the formulas; five roundings, each of at most the terms' absolute values."""
    p, g, v = (x.astype(np.float64) for x in (p, g, v))
    shrink = np.where(np.arange(len(p)) < decayed, decay, 0) * p
    expected = g + shrink + momentum * v
    magnitude = np.abs(g) + np.abs(shrink) + np.abs(momentum * v)
    tolerance = 5 * np.finfo(parameters.dtype).eps
    assert np.all(np.abs(parameters - (p - rate * expected)) <= tolerance * (np.abs(p) + rate * magnitude))
    if velocity is not None:
        assert np.all(np.abs(velocity - expected) <= tolerance * magnitude)


@pytest.mark.parametrize("momentum", [None, 0.0, 0.9])
@pytest.mark.parametrize("size, decayed", [(1, 0), (1, 1), (256, 128), (257, 255), (10007, 9001), (500, 500)])
def test_sgd(kernels, device, rng, dtype, size, decayed, momentum):
    p, g, v = (rng.normal(0, 1, size).astype(dtype) for _ in range(3))
    parameters, gradients = device.array(p), device.array(g)
    velocity = None if momentum is None else device.array(v)
    device.run(kernels.sgd(parameters, gradients, velocity, decayed, 0.3, momentum or 0.0, 0.05))
    result = None if velocity is None else velocity.to_host()
    check(parameters.to_host(), result, p, g, v, decayed, 0.3, momentum or 0.0, 0.05)
    assert gradients.to_host().tobytes() == g.tobytes()


@pytest.mark.sanitizer
@pytest.mark.parametrize("with_velocity", [False, True])
def test_small_grid(library, device, rng, real, dtype, with_velocity):
    p, g, v = (rng.normal(0, 1, 1009).astype(dtype) for _ in range(3))
    parameters = device.array(p)
    velocity = device.array(v) if with_velocity else None
    momentum = 0.9 if with_velocity else 0.0
    kernel = library.kernel("sgd", "sgd", REAL=real)
    arguments = (device.array(g), velocity, parameters)
    device.run(kernel.bind((3,), (64,), 1009, 700, 0.3, momentum, 0.05, *arguments))
    result = velocity.to_host() if velocity else None
    check(parameters.to_host(), result, p, g, v, 700, 0.3, momentum, 0.05)


def test_without_decay_and_momentum_a_plain_step(kernels, device, dtype):
    """Numbers that no rounding touches: exact."""
    parameters = device.array(np.array([1, 2, 3], dtype))
    gradients = device.array(np.array([4, -8, 0], dtype))
    device.run(kernels.sgd(parameters, gradients, None, 0, 0.25, 0.0, 0.5))
    assert parameters.to_host().tolist() == [0, 4, 3]
