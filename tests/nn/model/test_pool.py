"""nn/model/pool.py: against the loops; ties, NaN and infinities; shapes and what is refused."""

import itertools

import numpy as np
import pytest

from nn.model.pool import AvgPool2d, GlobalAvgPool2d, MaxPool2d
from pyrt.errors import UserError
from tests.nn.model import loops

SHAPES = [(1, 1, 1), (4, 6, 2), (5, 7, 3), (6, 6, 17)]
WINDOWS = [(1, None), (2, None), (3, None), (3, 2), (2, 1), (1, 2), (4, 3), (2, 5)]
"""Size and stride: side by side, over each other, with gaps between them, with a rest that none has."""

TOLERANCE = {"float32": 1e-6, "float64": 2e-15}
"""A sum of up to 36 numbers about 1."""


def fitting():
    """Each window that fits each image."""
    pairs = itertools.product(WINDOWS, SHAPES)
    return [(*window, shape) for window, shape in pairs if window[0] <= min(shape[:2])]


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def random_values(rng, layer, shape, dtype):
    A = rng.normal(0, 1, (3, *shape)).astype(dtype)
    return A, rng.normal(0, 1, (3, *layer.output_shape(shape))).astype(dtype)


def assert_close(found, expected, dtype):
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE[dtype])


def both_ways(layer, A, gradient):
    """Outputs, and the gradient of the images; that of the outputs may come flat, from a dense layer."""
    output = layer.forward({}, A)
    flat, of_parameters = layer.backward({}, A, output, gradient.reshape(len(A), -1))
    images, _ = layer.backward({}, A, output, gradient)
    np.testing.assert_array_equal(flat, images)
    assert of_parameters == {}
    return output, images


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_largest_pixels_are_those_of_the_loops(rng, dtype):
    """Also where many are equal: each third draws pixels of 0 and 1 alone."""
    for number, (size, stride, shape) in enumerate(fitting()):
        layer = MaxPool2d(size, stride)
        A, gradient = random_values(rng, layer, shape, dtype)
        if number % 3 == 0:
            A = rng.integers(0, 2, A.shape).astype(dtype)
        output, images = both_ways(layer, A, gradient)
        window = layer.window(shape)
        np.testing.assert_array_equal(output, loops.largest(window, A)[0])
        assert_close(images, loops.to_largest(window, A, gradient), dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_means_are_those_of_the_loops(rng, dtype):
    for size, stride, shape in fitting():
        layer = AvgPool2d(size, stride)
        A, gradient = random_values(rng, layer, shape, dtype)
        output, images = both_ways(layer, A, gradient)
        window = layer.window(shape)
        assert_close(output, loops.means(window, A), dtype)
        assert_close(images, loops.to_means(window, gradient), dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_mean_of_whole_images(rng, shape, dtype):
    layer = GlobalAvgPool2d()
    A, gradient = random_values(rng, layer, shape, dtype)
    output, images = both_ways(layer, A, gradient)
    assert output.shape == (3, 1, 1, shape[-1])
    assert_close(output, A.astype("f8").mean(axis=(1, 2), keepdims=True), dtype)
    assert_close(images, np.broadcast_to(gradient / (shape[0] * shape[1]), A.shape), dtype)


def gives_to(values):
    """The largest of a window of 2 x 2, and which pixel gets its gradient, 5."""
    A = np.array(values, np.float64).reshape(1, 2, 2, 1)
    output, images = both_ways(MaxPool2d(2), A, np.full((1, 1, 1, 1), 5.0))
    assert images.sum() == 5
    return output.item(), int(images.ravel().argmax())


INF, NAN = np.inf, np.nan


@pytest.mark.parametrize(
    ("values", "largest", "place"),
    [
        ([1, 3, 3, 2], 3, 1),  # the first in row order
        ([7, 7, 7, 7], 7, 0),
        ([-4, -2, -3, -2], -2, 1),
        ([0.0, -0.0, 0.0, 0.0], 0, 0),
        ([-INF, -INF, -INF, -INF], -INF, 0),
        ([-INF, -INF, -5, -INF], -5, 2),
        ([INF, 1, INF, 1], INF, 0),
        ([1, NAN, 9, NAN], NAN, 1),
        ([NAN, 9, INF, 3], NAN, 0),
        ([-INF, -INF, -INF, NAN], NAN, 3),
        ([INF, 2, NAN, NAN], NAN, 2),
    ],
)
def test_of_equal_pixels_the_first_is_the_largest_and_a_nan_is_larger_than_any(values, largest, place):
    found = gives_to(values)
    np.testing.assert_equal(found, (largest, place))


def test_a_nan_is_in_all_windows_that_have_it_and_in_no_other(rng):
    A = rng.normal(0, 1, (1, 5, 5, 2))
    A[0, 2, 3, 1] = NAN
    output = MaxPool2d(3, 1).forward({}, A)
    assert np.argwhere(np.isnan(output)).tolist() == [[0, y, x, 1] for y in range(3) for x in (1, 2)]


def test_windows_with_as_many_pixels_as_a_byte_can_tell(rng):
    """The last of 256 is the largest."""
    A = np.arange(256.0).reshape(1, 16, 16, 1)
    output, images = both_ways(MaxPool2d(16), A, np.ones((1, 1, 1, 1)))
    assert output.item() == 255 and images[0, 15, 15, 0] == 1 == images.sum()
    with pytest.raises(UserError, match=r"^MaxPool2d: a window of 17 x 17 has more than 256 pixels"):
        MaxPool2d(17)
    AvgPool2d(17)


def test_shapes():
    assert MaxPool2d(2).output_shape((5, 8, 3)) == (2, 4, 3)
    assert MaxPool2d(3, 2).output_shape((55, 55, 96)) == (27, 27, 96)
    assert AvgPool2d(2, 3).output_shape((5, 8, 3)) == (2, 3, 3)
    assert GlobalAvgPool2d().output_shape((5, 8, 3)) == (1, 1, 3)
    assert MaxPool2d(2) == MaxPool2d(2, 2) != MaxPool2d(2, 1)
    for layer in (MaxPool2d(2), AvgPool2d(2), GlobalAvgPool2d()):
        assert not layer.has_parameters and layer.parameter_shapes((5, 8, 3)) == {}
        assert layer.activation is None and layer.initial(np.random.default_rng(0), (5, 8, 3)) == {}
        assert layer.keeps_places == isinstance(layer, MaxPool2d)


def test_text():
    layers = [MaxPool2d(2), MaxPool2d(3, 2), AvgPool2d(3), AvgPool2d(2, 1), GlobalAvgPool2d()]
    assert list(map(str, layers)) == ["pool2", "pool3s2", "avgpool3", "avgpool2s1", "gap"]


@pytest.mark.parametrize("kind", [MaxPool2d, AvgPool2d])
@pytest.mark.parametrize("value", [0, -1, 2.0, True, "2"])
def test_sizes_and_strides_that_are_none(kind, value):
    with pytest.raises(UserError, match=f"^{kind.__name__}: size {value!r} is not a whole number, 1 or more"):
        kind(value)
    with pytest.raises(UserError, match=f"^{kind.__name__}: stride {value!r} is not a whole number"):
        kind(2, value)


@pytest.mark.parametrize(
    ("layer", "text"), [(MaxPool2d(2), "pool2"), (AvgPool2d(2), "avgpool2"), (GlobalAvgPool2d(), "gap")]
)
def test_what_is_no_image(layer, text):
    with pytest.raises(UserError, match=f"^{text}: takes images .*, not 120 numbers"):
        layer.output_shape((120,))


def test_windows_that_do_not_fit():
    with pytest.raises(UserError, match=r"^pool3: a window of 3 x 3 does not fit images of 2 x 8$"):
        MaxPool2d(3).output_shape((2, 8, 1))
