"""conv/pool.cu, and the same in NumPy, against loops in float64."""

import numpy as np
import pytest

from nn.launch.conv.window import window_arguments
from nn.launch.pool import Pool, PoolGradient
from nn.model.window import Window
from pyrt.arrays import DeviceArray
from pyrt.driver.cpu import CpuDriver
from tests import spread
from tests.nn.model import loops

CASES = [
    ((1, 1, 1), 1, 1),
    ((4, 6, 1), 2, 2),
    ((5, 7, 3), 2, 2),  # a row and a column in no window
    ((7, 9, 2), 3, 2),  # over each other
    ((5, 6, 17), 3, 1),
    ((8, 5, 4), 1, 3),  # gaps between them
    ((7, 8, 3), 2, 5),
    ((17, 16, 1), 16, 1),  # places up to 255
    ((4, 3, 65), 3, 3),
    ((5, 4, 12), 2, 1),  # vectors of four channels
]
"""Shape of an image, size, stride."""

SAMPLES = 3

OF_ALL = pytest.mark.parametrize(
    ("pool", "dtype", "window"),
    [
        pytest.param(*case, marks=[pytest.mark.kernels] if case[0] == "kernels" else [])
        for case in spread(["numpy", "kernels"], ["float32", "float64"], CASES, by=2)
    ],
    indirect=True,
    ids=str,
)


@pytest.fixture
def window(request):
    image, size, stride = request.param
    return Window.over("pool", image, (size, size), stride, 0)


def flat(array):
    return array.reshape(len(array), -1)


def both(run, array, window, A, gradient, is_max):
    """Results of pooling images A and of its gradient: outputs, places (None of means), images."""
    shape = SAMPLES, window.places * window.channels
    outputs = array(np.full(shape, np.nan, A.dtype))
    places = array(np.full(shape, 201, np.uint8)) if is_max else None
    images = array(np.full(flat(A).shape, np.nan, A.dtype))
    run(Pool(array(flat(A)), outputs, places, window))
    run(PoolGradient(images, array(flat(gradient)), places, window, outputs))
    results = (outputs, *((places,) if is_max else ()), images)
    return tuple(result.to_host() for result in results)


@pytest.fixture(params=["numpy", pytest.param("kernels", marks=pytest.mark.kernels)])
def pool(request, dtype):
    """Pools with NumPy, or with kernels."""
    if request.param == "numpy":
        driver = CpuDriver()
        return lambda *arguments: both(
            lambda work: work.in_numpy()(), lambda host: DeviceArray.from_host(driver, host), *arguments
        )
    kernels, device = (request.getfixturevalue(name) for name in ("kernels", "device"))
    return lambda *arguments: both(lambda work: device.run(work.on_device(kernels)), device.array, *arguments)


def draw(rng, window, dtype):
    A = rng.normal(0, 1, (SAMPLES, window.height, window.width, window.channels)).astype(dtype)
    outputs = SAMPLES, window.out_height, window.out_width, window.channels
    return A, rng.normal(0, 1, outputs).astype(dtype)


def check_largest(window, A, gradient, results):
    outputs, places, images = results
    best, where = loops.largest(window, A)
    np.testing.assert_array_equal(outputs, flat(best))
    np.testing.assert_array_equal(places, flat(where))
    # At most 25 windows over each other, whose gradients are up to some 4.
    expected = flat(loops.to_largest(window, A, gradient))
    np.testing.assert_allclose(images, expected, rtol=0, atol=64 * np.finfo(A.dtype).eps)


@OF_ALL
def test_largest_pixels(pool, rng, dtype, window):
    A, gradient = draw(rng, window, dtype)
    first, second = (pool(window, A, gradient, True) for _ in range(2))
    check_largest(window, A, gradient, first)
    assert [array.tobytes() for array in first] == [array.tobytes() for array in second]


@OF_ALL
def test_of_equal_pixels_the_first_is_the_largest(pool, rng, dtype, window):
    A, gradient = draw(rng, window, dtype)
    A = rng.integers(-1, 2, A.shape).astype(dtype)
    check_largest(window, A, gradient, pool(window, A, gradient, True))
    A[:] = -np.inf
    check_largest(window, A, gradient, pool(window, A, gradient, True))


@OF_ALL
def test_a_nan_is_larger_than_any(pool, rng, dtype, window):
    """The first of them, wherever it is, infinities before and behind it."""
    A, gradient = draw(rng, window, dtype)
    values = np.array([np.nan, np.inf, -np.inf, 1], dtype)
    for chances in ([0.02, 0.1, 0.4, 0.48], [0.3, 0.3, 0.3, 0.1]):
        A = rng.choice(values, A.shape, p=chances)
        check_largest(window, A, gradient, pool(window, A, gradient, True))


@OF_ALL
def test_means(pool, rng, dtype, window):
    """Sums of up to 256 numbers about 1, some roundings off."""
    A, gradient = draw(rng, window, dtype)
    first, second = (pool(window, A, gradient, False) for _ in range(2))
    assert [array.tobytes() for array in first] == [array.tobytes() for array in second]
    for found, expected in zip(
        first, (loops.means(window, A), loops.to_means(window, gradient)), strict=True
    ):
        np.testing.assert_allclose(found, flat(expected), rtol=0, atol=16 * np.finfo(dtype).eps)


def test_the_mean_of_a_whole_image_that_is_no_square(pool, rng, dtype):
    window = Window.over("gap", (5, 7, 3), (5, 7), 1, 0)
    A, gradient = draw(rng, window, dtype)
    outputs, images = pool(window, A, gradient, False)
    tolerance = {"rtol": 0, "atol": 16 * np.finfo(dtype).eps}
    np.testing.assert_allclose(outputs, A.astype("f8").mean(axis=(1, 2)), **tolerance)
    np.testing.assert_allclose(images, flat(np.broadcast_to(gradient / 35, A.shape)), **tolerance)


@pytest.mark.sanitizer
def test_small_grid(library, device, rng, real, dtype):
    window = Window.over("pool", (7, 9, 5), (3, 3), 2, 0)
    A, gradient = draw(rng, window, dtype)
    outputs, means = (device.poisoned(flat(gradient).shape, dtype) for _ in range(2))
    largest_back, means_back = (device.poisoned(flat(A).shape, dtype) for _ in range(2))
    places, images, gradients = (device.array(a) for a in (np.zeros(gradient.shape, "u1"), A, gradient))
    arguments = {
        "max_pool": (images, outputs, places, None, 0, 0),
        "max_pool_backward": (places, gradients, largest_back),
        "mean_pool": (images, means, None, 0, 0),
        "mean_pool_backward": (gradients, means_back),
    }
    sizes = window_arguments(SAMPLES, window)
    device.run(
        *(
            library.kernel("conv/pool", name, REAL=real).bind((2,), (96,), *sizes, *arrays)
            for name, arrays in arguments.items()
        )
    )
    found = outputs.to_host(), flat(places.to_host()), largest_back.to_host()
    check_largest(window, A, gradient, found)
    tolerance = {"rtol": 0, "atol": 16 * np.finfo(dtype).eps}
    np.testing.assert_allclose(means.to_host(), flat(loops.means(window, A)), **tolerance)
    np.testing.assert_allclose(means_back.to_host(), flat(loops.to_means(window, gradient)), **tolerance)
