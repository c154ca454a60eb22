"""conv/shared.cu: tiles, slices of channels, phases and chunks; what other versions have not."""

import numpy as np
import pytest

from nn.launch.conv import convolve
from nn.launch.conv.convolution import Convolution, FilterGradient, InputGradient
from nn.launch.conv.shared import bind_shared, shared_fits, shared_tile
from nn.launch.kernels import Kernels
from nn.model.conv2d import Conv2d
from pyrt.arrays import DeviceArray
from pyrt.driver.null import DeviceProperties, NullDriver
from pyrt.kernels import KernelLibrary
from tests import spread

WORKS = Convolution, InputGradient, FilterGradient
T4 = DeviceProperties("T4", "sm_75", 40, 64 << 10)


@pytest.fixture
def kernels(library, dtype):
    return Kernels(library, dtype, conv="shared")


def shapes(layer, image, samples):
    """Of images, outputs and filters."""
    return (samples, *image), (samples, *layer.output_shape(image)), layer.parameter_shapes(image)["W"]


def on_null(device, layer, image, samples, dtype=np.float32):
    """Kernels on a device that only counts, and the three works of a layer there."""
    kernels = Kernels(KernelLibrary(NullDriver(device)), dtype, conv="shared")
    flat = [(shape[0], int(np.prod(shape[1:]))) for shape in shapes(layer, image, samples)]
    arrays = [DeviceArray.empty(kernels.driver, shape, dtype) for shape in flat]
    return kernels, [work(*arrays, layer.window(image)) for work in WORKS]


def run(kernels, device, layer, image, A, dZ, W):
    """Z, dA and dW as matrices, each computed twice; the works."""
    A, dZ, W = (device.array(array.reshape(len(array), -1)) for array in (A, dZ, W))
    twice, window = [], layer.window(image)
    for _ in range(2):
        Z, dA, dW = (device.poisoned(array.shape, array.dtype) for array in (dZ, A, W))
        written = ((A, Z, W), (dA, dZ, W), (A, dZ, dW))
        works = [work(*arrays, window) for work, arrays in zip(WORKS, written, strict=True)]
        device.run(*(work.on_device(kernels) for work in works))
        twice.append([array.to_host() for array in (Z, dA, dW)])
    for first, second in zip(*twice, strict=True):
        assert first.tobytes() == second.tobytes()
    return works, twice[0]


def expected(layer, A, dZ, W):
    """Z, dA and dW by nn/model/conv2d.py in float64."""
    A, dZ, W = (array.astype(np.float64) for array in (A, dZ, W))
    parameters = {"W": W, "b": np.zeros(len(W))}
    dA, gradients = layer.backward(parameters, A, np.zeros_like(dZ), dZ)
    return layer.forward(parameters, A), dA, gradients["W"]


CASES = [
    (Conv2d(1, 1), (1, 1, 1), 1),
    (Conv2d(6, 5, padding=2), (9, 7, 1), 3),
    (Conv2d(3, (2, 5), stride=3, padding=1), (11, 13, 5), 2),
    (Conv2d(5, 2, stride=3), (8, 8, 3), 2),  # phases without a weight: pixels that no window has
    (Conv2d(2, 3, stride=7, padding=2), (5, 3, 2), 2),  # more phases than pixels
    (Conv2d(4, 7, padding=3), (3, 2, 2), 1),  # a window larger than the image
    (Conv2d(33, 1), (2, 3, 130), 3),  # several blocks of filters, several slices of channels
    (Conv2d(9, 11, stride=4, padding=2), (27, 23, 2), 1),
    (Conv2d(3, 14), (15, 14, 2), 1),  # more places in the window than a block has weights
    (Conv2d(2, 3, padding=1), (35, 33, 1), 1),  # several tiles, the last ones smaller
]


@pytest.mark.parametrize(("case", "dtype"), spread(CASES, [np.dtype("f4"), np.dtype("f8")], by=2), ids=str)
def test_whole_numbers_come_out_exact(kernels, device, rng, dtype, case):
    """From -3 to 3: their sums have no rounding."""
    layer, image, samples = case
    host = [rng.integers(-3, 4, shape).astype(dtype) for shape in shapes(layer, image, samples)]
    works, found = run(kernels, device, layer, image, *host)
    assert [kernels.choose(work) for work in works] == ["shared"] * 3
    for mine, right in zip(found, expected(layer, *host), strict=True):
        assert np.array_equal(mine, right.reshape(mine.shape))


@pytest.mark.sanitizer
def test_each_kernel(kernels, device, rng, dtype):
    layer, image = Conv2d(5, 3, stride=2, padding=1), (6, 7, 9)
    host = [rng.integers(-3, 4, shape).astype(dtype) for shape in shapes(layer, image, 2)]
    _, found = run(kernels, device, layer, image, *host)
    for mine, right in zip(found, expected(layer, *host), strict=True):
        assert np.array_equal(mine, right.reshape(mine.shape))


def test_long_sums_to_the_filters_round_little(kernels, device, rng, dtype):
    """64 samples of 32 x 32 outputs, all of one sign: one chain of 65536 loses 50 roundings here."""
    layer, image = Conv2d(1, 1), (32, 32, 1)
    A, dZ, W = (rng.uniform(0.5, 1, shape).astype(dtype) for shape in shapes(layer, image, 64))
    _, (_, _, dW) = run(kernels, device, layer, image, A, dZ, W)
    np.testing.assert_allclose(dW, expected(layer, A, dZ, W)[2].reshape(1, 1), rtol=3 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_fits_can_be_bound(dtype):
    """Of many windows: what a block asks for is what every GPU has; all places and results have a thread."""
    sizes = spread([1, 3, 8, 17, 2000], [1, 3, 70, 3000], [1, 3, 7, 25], [1, 2, 4, 9], by=3)
    fitting = 0
    for filters, channels, size, stride in sizes:
        kernels, works = on_null(T4, Conv2d(filters, size, stride), (40, 33, channels), 2, dtype)
        for work in works:
            tile = shared_tile(work)
            assert kernels.choose(work) == ("direct" if tile is None else "shared")
            if tile is None:
                continue
            fitting += 1
            assert tile.shared <= 48 << 10 and tile.lanes * tile.groups <= 256
            bind_shared(kernels, work)
            if isinstance(work, FilterGradient):
                assert 1 <= tile.channels <= channels
            else:
                assert tile.rows * tile.columns <= 4 * tile.groups
                assert 1 <= tile.channels <= (filters if isinstance(work, InputGradient) else channels)
    assert fitting > 1.8 * len(sizes)


@pytest.mark.parametrize(
    ("layer", "image", "expected"),
    [
        (Conv2d(64, 3, padding=1), (32, 32, 64), ("shared", "shared", "shared")),
        (Conv2d(64, 3, padding=1), (8, 8, 3000), ("shared", "shared", "shared")),
        (Conv2d(96, 11, stride=4), (224, 224, 3), ("shared", "shared", "shared")),
        # All weights of a channel are too many; of a phase they are few, and a block makes some of them.
        (Conv2d(64, 40, stride=20), (90, 90, 1), ("direct", "shared", "shared")),
        # No patch with its halo fits.
        (Conv2d(1, 200), (210, 210, 1), ("direct", "direct", "direct")),
    ],
    ids=str,
)
def test_a_window_that_is_too_large_is_direct(layer, image, expected):
    kernels, works = on_null(T4, layer, image, 2)
    names = {"direct": ("direct_forward", "direct_input", "direct_filters")}
    names["shared"] = "shared_forward", "shared_input", "shared_filters"
    for place, (work, version) in enumerate(zip(works, expected, strict=True)):
        assert kernels.choose(work) == version
        assert shared_fits(work) == (version == "shared")
        assert convolve(kernels, work).kernels[0] == names[version][place]
        if version == "direct":
            with pytest.raises(ValueError, match="too large for shared memory"):
                bind_shared(kernels, work)
