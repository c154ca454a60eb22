"""nn/update.cu against NumPy's float64, by the rule of SGD. By Adam's: tests/nn/train/optimisers."""

import numpy as np
import pytest

from nn.launch import update
from nn.launch.gemm.components import Components
from nn.launch.kernels import Kernels
from nn.launch.update import Segment, Update, UpdateArrays
from nn.optimisers import Adam, Sgd
from pyrt.arrays import DeviceArray
from pyrt.driver.cpu import CpuDriver


def bind(kernels, optimiser, parameters, gradients, velocity, *segments):
    """The update of some segments; without a velocity there is no momentum."""
    states = {} if velocity is None else {"v": velocity}
    return Update(UpdateArrays(optimiser, parameters, gradients, states, None), segments).on_device(kernels)


def check(parameters, velocity, p, g, v, decayed, rate, momentum, decay):
    """Compare with the formulas; five roundings, each of at most the components' absolute values."""
    p, g, v = (x.astype(np.float64) for x in (p, g, v))
    shrink = np.where(np.arange(len(p)) < decayed, decay, 0) * p
    expected = g + shrink + momentum * v
    magnitude = np.abs(g) + np.abs(shrink) + np.abs(momentum * v)
    tolerance = 5 * np.finfo(parameters.dtype).eps
    assert np.all(np.abs(parameters - (p - rate * expected)) <= tolerance * (np.abs(p) + rate * magnitude))
    if velocity is not None:
        assert np.all(np.abs(velocity - expected) <= tolerance * magnitude)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize("size, decayed", [(1, 0), (1, 1), (256, 128), (257, 255), (10007, 9001), (500, 500)])
def test_sgd(kernels, device, rng, dtype, start, size, decayed, momentum):
    """A segment, and nothing before or behind it."""
    p, g, v = (rng.normal(0, 1, start + size + 5).astype(dtype) for _ in range(3))
    parameters, gradients = device.array(p), device.array(g)
    velocity = device.array(v) if momentum else None
    segment = Segment(start, size, decayed)
    device.run(bind(kernels, Sgd(0.3, momentum, 0.05), parameters, gradients, velocity, segment))
    part = slice(start, start + size)
    result = None if velocity is None else velocity.to_host()
    moved = None if result is None else result[part]
    check(parameters.to_host()[part], moved, p[part], g[part], v[part], decayed, 0.3, momentum, 0.05)
    assert gradients.to_host().tobytes() == g.tobytes()
    for before, after in ((p, parameters.to_host()), (v, result if result is not None else v)):
        assert np.delete(before, part).tobytes() == np.delete(after, part).tobytes()


@pytest.mark.parametrize("optimiser", [Sgd(0.3, 0.9, 0.05), Adam(0.01, reg=0.05)])
@pytest.mark.parametrize("decayed", [0, 300, 1000])
def test_numpy_makes_the_same_bits_in_blocks_of_any_size(monkeypatch, rng, optimiser, decayed):
    found, cpu = set(), CpuDriver()
    numbers = rng.normal(0, 1, (3, 1009))
    for nbytes in (1 << 20, 8 * 256, 8 * 300, 8):
        monkeypatch.setattr(update, "_BLOCK_BYTES", nbytes)
        p, g, *states = (DeviceArray.from_host(cpu, x) for x in (*numbers, numbers[2] ** 2))
        clock = DeviceArray.from_host(cpu, np.array(optimiser.clock_at(3), "f8"))
        named = dict(zip(optimiser.states, states, strict=False))
        arrays = UpdateArrays(optimiser, p, g, named, clock if optimiser.clock else None)
        Update(arrays, [Segment(9, 1000, decayed)]).in_numpy()()
        found.add(b"".join(array.to_host().tobytes() for array in (p, *named.values())))
    assert len(found) == 1


def test_several_segments_in_one_launch(kernels, device, rng, dtype):
    p, g = (rng.normal(0, 1, 1000).astype(dtype) for _ in range(2))
    parameters = device.array(p)
    segments = [Segment(0, 8, 8), Segment(100, 613, 400), Segment(997, 3, 1)]
    plain = Sgd(0.3, 0.0, 0.05)
    device.run(bind(kernels, plain, parameters, device.array(g), None, *segments))
    expected = p.copy()
    for s in segments:
        part = slice(s.start, s.start + s.size)
        single = device.array(p[part])
        whole = Segment(0, s.size, s.decayed)
        device.run(bind(kernels, plain, single, device.array(g[part]), None, whole))
        expected[part] = single.to_host()
    assert parameters.to_host().tobytes() == expected.tobytes()


@pytest.mark.parametrize("rows, columns", [(7, 12), (5, 13), (64, 64)])
@pytest.mark.parametrize("first_row", [0, 4])
def test_components_follow_the_weights(library, device, rng, rows, columns, first_row):
    """The components of a panel's rows are the new weights; those of other rows stay."""
    kernels = Kernels(library, np.float32)
    weights = rows * columns
    p, g = (rng.normal(0, 1, weights + 3).astype("f4") for _ in range(2))
    parameters = device.array(p)
    components = Components.empty(device.driver, 3, rows, columns)
    device.arrays.append(components.array)
    first = first_row * columns
    segment = Segment(first, weights + 3 - first, weights - first, first, components)
    device.run(bind(kernels, Sgd(0.3, 0.0, 0.05), parameters, device.array(g), None, segment))
    bits = components.matrix.to_host().reshape(3, rows, components.ld)[:, :, :columns]
    sums = (bits.astype(np.uint32) << 16).view(np.float32).astype("f8").sum(axis=0)
    new = parameters.to_host()[:weights].reshape(rows, columns)
    np.testing.assert_allclose(sums[first_row:], new[first_row:], rtol=2.0**-24)
    assert not sums[:first_row].any()


@pytest.mark.sanitizer
@pytest.mark.parametrize("with_velocity", [False, True])
def test_small_grid(library, device, rng, real, dtype, with_velocity):
    p, g, v = (rng.normal(0, 1, 1009).astype(dtype) for _ in range(3))
    parameters = device.array(p)
    velocity = device.array(v) if with_velocity else None
    momentum = 0.9 if with_velocity else 0.0
    sgd = Sgd(0.3, momentum, 0.05)
    arrays = UpdateArrays(sgd, parameters, device.array(g), {"v": velocity} if velocity else {}, None)
    kernel = library.kernel("nn/update", "update", REAL=real, UPDATE=sgd.header)
    segment = device.array(np.frombuffer(Segment(0, 1009, 700).packed(), np.uint8))
    packed = arrays.packed(Kernels(library, dtype), None)
    device.run(kernel.bind((3,), (64,), segment, packed, arrays.gradients))
    result = velocity.to_host() if velocity else None
    check(parameters.to_host(), result, p, g, v, 700, 0.3, momentum, 0.05)


def test_without_decay_and_momentum_a_plain_step(kernels, device, dtype):
    """Numbers that no rounding touches: exact."""
    parameters = device.array(np.array([1, 2, 3], dtype))
    gradients = device.array(np.array([4, -8, 0], dtype))
    device.run(bind(kernels, Sgd(0.25, 0.0, 0.5), parameters, gradients, None, Segment(0, 3, 0)))
    assert parameters.to_host().tolist() == [0, 4, 3]
