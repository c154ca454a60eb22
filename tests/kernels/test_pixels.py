"""nn/pixels.cu against NumPy, to the bit: both divide in the dtype."""

from dataclasses import replace

import numpy as np
import pytest

from nn.input.source import BatchCursor
from nn.launch.gemm.components import Components
from nn.launch.kernels import Kernels
from nn.launch.pixels import GatherBatch, ScalePixels
from tests import spread


@pytest.fixture(params=["uint8", "float32", "float64"])
def images(request, rng, dtype):
    """Pixels of a dtype; of float64 where the kernels compute in it, none of them one that float32 holds."""
    if request.param == "float64" and dtype == np.float32:
        pytest.skip("nn/input/dataset.py makes float64 pixels for float64 alone")

    def make(count, columns):
        if request.param == "uint8":
            return rng.integers(0, 256, (count, columns), np.uint8)
        return rng.uniform(-1, 1, (count, columns)).astype(request.param)

    return make


@pytest.mark.parametrize(
    ("scale", "shape"),
    spread([255.0, 1.0, 0.3], [(1, 1), (1, 784), (997, 1), (8, 32), (9, 33), (75, 784)], by=3),
    ids=str,
)
def test_in_order(kernels, device, images, dtype, shape, scale):
    pixels = images(shape[0] + 3, shape[1])
    X = device.poisoned(shape, dtype)
    device.run(ScalePixels(device.array(pixels), X, scale).on_device(kernels))
    assert np.array_equal(X.to_host(), pixels[: shape[0]].astype(dtype) / dtype.type(scale))


def cursor_at(device, first):
    """Of a batch that begins there, the next one 13 places on, around at 100."""
    return BatchCursor(device.array(np.array([first, 0], np.int32)), 13, 100)


@pytest.mark.parametrize(
    ("starts_early", "rows", "columns"), spread([False, True], [1, 8, 83], [1, 32, 65, 784, 1300], by=4)
)
def test_gathered(kernels, device, images, rng, dtype, rows, columns, starts_early):
    """From any place in a longer order; what lies around it is no row number."""
    pixels, labels = images(50, columns), rng.integers(0, 9, 50).astype(np.int32)
    order = np.full(rows + 12, -(10**6), np.int32)
    order[7 : 7 + rows] = rng.integers(0, 50, rows)
    X, y = device.poisoned((rows, columns), dtype), device.array(np.full(rows, -1, np.int32))
    arrays, cursor = [device.array(array) for array in (pixels, labels, order)], cursor_at(device, 7)
    device.run(GatherBatch(*arrays, cursor, X, y, 255.0, starts_early).on_device(kernels))
    assert cursor.state.to_host().tolist() == [20, 0]
    mine = order[7 : 7 + rows]
    assert np.array_equal(X.to_host(), pixels[mine].astype(dtype) / dtype.type(255))
    assert np.array_equal(y.to_host(), labels[mine])


@pytest.mark.sanitizer
def test_small_grid(library, device, images, rng, real, dtype):
    pixels, labels = images(20, 70), rng.integers(0, 9, 20).astype(np.int32)
    order = rng.permutation(20).astype(np.int32)
    X, Y = device.poisoned((19, 70), dtype), device.poisoned((19, 70), dtype)
    y = device.array(np.full(19, -1, np.int32))
    images_there, state = device.array(pixels), device.array(np.array([1, 0], np.int32))
    arrays = [device.array(labels), device.array(order), state.rows(0, 1), state.rows(1, 2), 13, 14, X, 70, y]
    constants = {"REAL": real, "PIXEL": pixels.dtype.name, "NUMBER": real}
    gather, scale = (
        library.kernel("nn/pixels", name, **constants) for name in ("gather_batch", "scale_pixels")
    )
    device.run(
        gather.bind((1, 1), (32, 8), 19, 70, 255.0, images_there, *arrays, 0),
        scale.bind((1, 1), (32, 8), 19, 70, 255.0, images_there, Y, 70),
    )
    assert state.to_host().tolist() == [0, 0]
    assert np.array_equal(X.to_host(), pixels[order[1:]].astype(dtype) / dtype.type(255))
    assert np.array_equal(y.to_host(), labels[order[1:]])
    assert np.array_equal(Y.to_host(), pixels[:19].astype(dtype) / dtype.type(255))


@pytest.mark.parametrize("rows, columns", [(1, 1), (9, 33), (75, 784)])
def test_exact(library, device, rng, rows, columns):
    """Every pixel is one bf16 number, which is the upper half of a float32."""
    kernels = Kernels(library, np.float32)
    pixels, labels = rng.integers(0, 256, (50, columns), np.uint8), rng.integers(0, 9, 50).astype(np.int32)
    order = rng.integers(0, 50, rows).astype(np.int32)
    arrays, cursor = [device.array(array) for array in (pixels, labels, order)], cursor_at(device, 0)
    y = device.array(np.full(rows, -1, np.int32))
    X, into = device.poisoned((rows, columns), "f4"), Components.empty(device.driver, 1, rows, columns)
    device.arrays.append(into.array)
    device.run(GatherBatch(*arrays, cursor, X, y, 255.0, components=into).on_device(kernels))

    def values():
        bits = into.matrix.to_host()[:, :columns]
        return (bits.astype(np.uint32) << 16).view(np.float32)

    assert np.array_equal(values(), pixels[order])
    assert np.array_equal(y.to_host(), labels[order])
    more = device.array(np.tile(255 - pixels, (2, 1)))
    device.run(ScalePixels(more, X, 255.0, into).on_device(kernels))
    assert np.array_equal(values(), more.to_host()[:rows])
    assert np.isnan(X.to_host()).all()  # the component is in its place
    with pytest.raises(ValueError, match="one component, not 3"):
        ScalePixels(more, X, 255.0, replace(into, count=3)).on_device(kernels)
