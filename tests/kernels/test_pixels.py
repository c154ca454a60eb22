"""pixels.cu against NumPy, to the bit: both divide in the dtype."""

import numpy as np
import pytest


@pytest.fixture(params=["uint8", "float32"])
def images(request, rng):
    def make(count, columns):
        if request.param == "uint8":
            return rng.integers(0, 256, (count, columns), np.uint8)
        return rng.uniform(-1, 1, (count, columns)).astype(np.float32)

    return make


@pytest.mark.parametrize("scale", [255.0, 1.0, 0.3])
@pytest.mark.parametrize("shape", [(1, 1), (1, 784), (997, 1), (8, 32), (9, 33), (75, 784)])
def test_in_order(kernels, device, images, dtype, shape, scale):
    pixels = images(shape[0] + 3, shape[1])
    X = device.poisoned(shape, dtype)
    device.run(kernels.scale_pixels(device.array(pixels), X, scale))
    assert np.array_equal(X.to_host(), pixels[: shape[0]].astype(dtype) / dtype.type(scale))


def test_gathered(kernels, device, images, rng, dtype):
    pixels = images(50, 65)
    order = rng.integers(0, 50, 83).astype(np.int32)
    X = device.poisoned((83, 65), dtype)
    device.run(kernels.scale_pixels(device.array(pixels), X, 255.0, device.array(order)))
    assert np.array_equal(X.to_host(), pixels[order].astype(dtype) / dtype.type(255))


@pytest.mark.sanitizer
def test_small_grid(library, device, images, rng, real, dtype):
    pixels = images(20, 70)
    order = rng.permutation(20).astype(np.int32)[:19]
    X = device.poisoned((19, 70), dtype)
    kernel = library.kernel("pixels", "scale_pixels", REAL=real, PIXEL=pixels.dtype.name)
    arguments = (device.array(pixels), device.array(order), X)
    device.run(kernel.bind((1, 1), (32, 8), 19, 70, 255.0, *arguments))
    assert np.array_equal(X.to_host(), pixels[order].astype(dtype) / dtype.type(255))
