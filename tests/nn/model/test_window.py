"""nn/model/window.py: how many windows there are, what each sees, and which do not fit."""

import itertools

import numpy as np
import pytest

from nn.model.window import SAME, Window
from pyrt.errors import UserError


def window(image, size, stride=1, padding=0):
    return Window.over("conv", image, size, stride, padding)


@pytest.mark.parametrize(
    ("image", "size", "stride", "padding", "outputs", "before"),
    [
        ((5, 7, 3), (3, 3), 1, 0, (3, 5), (0, 0)),
        ((5, 7, 3), (5, 7), 1, 0, (1, 1), (0, 0)),
        ((5, 7, 1), (2, 4), 1, 0, (4, 4), (0, 0)),
        ((6, 7, 3), (3, 3), 2, 0, (2, 3), (0, 0)),  # the last row is in no window
        ((224, 224, 3), (11, 11), 4, 2, (55, 55), (2, 2)),  # AlexNet
        ((28, 28, 1), (5, 5), 1, 2, (28, 28), (2, 2)),  # LeNet-5
        ((2, 3, 1), (5, 5), 1, 2, (2, 3), (2, 2)),  # larger than the image
        ((1, 1, 1), (3, 3), 5, 4, (2, 2), (4, 4)),  # some see nothing but padding
        ((5, 5, 1), (1, 1), 3, 0, (2, 2), (0, 0)),  # further apart than they are wide
        # As TensorFlow has it: one pixel more behind the image where it takes an odd number.
        ((5, 7, 1), (3, 3), 1, SAME, (5, 7), (1, 1)),
        ((5, 7, 1), (2, 4), 1, SAME, (5, 7), (0, 1)),
        ((6, 7, 1), (3, 3), 2, SAME, (3, 4), (0, 1)),
        ((224, 225, 3), (7, 7), 2, SAME, (112, 113), (2, 3)),
        ((5, 5, 1), (1, 1), 3, SAME, (2, 2), (0, 0)),  # less than no padding: none
        ((1, 2, 1), (4, 6), 1, SAME, (1, 2), (1, 2)),
    ],
)
def test_how_many_there_are_and_where_the_first_begins(image, size, stride, padding, outputs, before):
    found = window(image, size, stride, padding)
    assert (found.out_height, found.out_width) == outputs and (found.top, found.left) == before
    assert found.places == outputs[0] * outputs[1] and found.pixels == size[0] * size[1] * image[2]
    assert (found.height, found.width, found.channels) == image


@pytest.mark.parametrize(
    ("image", "size", "padding", "words"),
    [
        ((784,), (3, 3), 0, r"conv: takes images \(height, width, channels\), not 784 numbers"),
        ((28, 28), (3, 3), 0, "not 28 x 28 numbers"),
        ((5, 7, 1), (6, 3), 0, "conv: a window of 6 x 3 does not fit images of 5 x 7$"),
        ((5, 7, 1), (3, 8), 0, "a window of 3 x 8 does not fit images of 5 x 7$"),
        ((5, 7, 1), (3, 10), 1, "a window of 3 x 10 does not fit images of 5 x 7 with padding 1$"),
    ],
)
def test_those_that_do_not_fit(image, size, padding, words):
    for stride in (1, 2, 9):
        with pytest.raises(UserError, match=words):
            window(image, size, stride, padding)


def all_windows():
    """Of small images: sizes, strides and paddings of every mix that fits."""
    images = [(1, 1), (2, 5), (6, 4)]
    for (height, width), rows, columns, stride, padding in itertools.product(
        images, (1, 2, 3), (1, 4), (1, 2, 3), (0, 1, 4, SAME)
    ):
        try:
            yield window((height, width, 2), (rows, columns), stride, padding)
        except UserError:
            continue


def seen(w, images):
    """Windows by the loops: (n, out_height, out_width, rows, columns, channels), NaN outside the images."""
    result = np.full((len(images), w.out_height, w.out_width, w.rows, w.columns, w.channels), np.nan)
    for y, x, r, c in np.ndindex(w.out_height, w.out_width, w.rows, w.columns):
        row, column = y * w.stride + r - w.top, x * w.stride + c - w.left
        if 0 <= row < w.height and 0 <= column < w.width:
            result[:, y, x, r, c] = images[:, row, column]
    return result


def test_gather_copies_what_each_window_sees_and_leaves_the_rest():
    rng, cases = np.random.default_rng(0), list(all_windows())
    assert len(cases) > 100
    for w in cases:
        images = rng.normal(0, 1, (2, w.height, w.width, w.channels))
        expected = seen(w, images)
        windows = np.full_like(expected, np.nan)
        w.gather(images, windows)
        np.testing.assert_array_equal(windows, expected, err_msg=str(w))


def test_scatter_gives_each_pixel_the_sum_of_what_windows_have_of_it():
    """It is what gather is turned round: <gather(A), P> = <A, scatter(P)> for every A."""
    rng = np.random.default_rng(1)
    for w in all_windows():
        one_by_one = np.arange(w.height * w.width * w.channels).reshape(1, w.height, w.width, w.channels)
        place = seen(w, one_by_one)
        windows = rng.normal(0, 1, place.shape)
        is_seen = ~np.isnan(place)
        expected = np.bincount(place[is_seen].astype(int), windows[is_seen], one_by_one.size)
        images = np.full(one_by_one.shape, np.nan)
        w.scatter(windows, images)
        np.testing.assert_allclose(images.ravel(), expected, rtol=0, atol=1e-14, err_msg=str(w))


def test_taps_go_in_row_order():
    places = [(row, column) for row, column, *_ in window((5, 5, 1), (2, 3)).taps()]
    assert places == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
