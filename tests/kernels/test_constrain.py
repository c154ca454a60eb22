"""nn/constrain.cu against NumPy: weights at 0 get no gradient, those that share a value the sum of theirs."""

import numpy as np
import pytest

from nn.launch.constrain import KeepZeros, SumShared
from nn.model.constraint import NO_VALUE, Constraint


def drawn(rng, size, dtype):
    """Weights of which about half are 0, some of them -0, and gradients of all sizes."""
    W = rng.normal(0, 1, size) * rng.choice([1.0, 0.0, -0.0], size)
    return W.astype(dtype), (rng.normal(0, 1, size) * 10.0 ** rng.integers(-9, 9, size)).astype(dtype)


@pytest.mark.parametrize("size", [1, 255, pytest.param(257, marks=pytest.mark.sanitizer), 100_003])
def test_weights_at_0_get_no_gradient_and_others_keep_theirs(kernels, device, rng, dtype, size):
    W, dW = drawn(rng, size, dtype)
    there = device.array(dW)
    device.run(KeepZeros(device.array(W), there).on_device(kernels))
    assert there.to_host().tobytes() == np.where(W == 0, dtype.type(0), dW).tobytes()


@pytest.mark.parametrize(
    "size, values",
    [(1, 1), (700, 1), (257, 256), pytest.param(1009, 16, marks=pytest.mark.sanitizer), (100_003, 5)],
)
def test_all_that_share_a_value_get_the_same_sum(kernels, device, rng, dtype, size, values):
    """Others keep their bits, also where a value is nobody's. A sum is off by its roundings: of a tree of 256
    chains; the same bits twice."""
    codes = rng.integers(0, values, size)
    codes[rng.random(size) < 0.3] = NO_VALUE
    codes[-1] = values - 1
    _, dW = drawn(rng, size, dtype)
    starts, places = Constraint({1: codes}).members(1)
    bits = []
    for _ in range(2):
        there = device.array(dW)
        device.run(SumShared(device.array(starts), device.array(places), there).on_device(kernels))
        bits.append(there.to_host())
    assert bits[0].tobytes() == bits[1].tobytes()
    assert bits[0][codes == NO_VALUE].tobytes() == dW[codes == NO_VALUE].tobytes()
    for value in range(values):
        mine, exact = bits[0][codes == value], dW[codes == value].astype(np.float64)
        assert len(np.unique(mine)) <= 1
        roundings = len(exact) / 256 + 9
        assert np.all(np.abs(mine - exact.sum()) <= roundings * np.finfo(dtype).eps * np.abs(exact).sum())
