"""nn/parallel/space.py: rows of images on each rank, and their halos, against windows one by one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from nn.model.conv2d import Conv2d
from nn.model.net_text import make_network
from nn.model.window import Window
from nn.parallel import space
from pyrt.redistribute.regions import share

WINDOWS = [
    Window.over("", (height, 4, 3), (size, 2), stride, padding)
    for height, size, stride, padding in itertools.product((5, 8, 13), (1, 2, 3, 5), (1, 2, 3), (0, 1, 4))
]
"""With windows in the padding alone, rows between windows, and rows behind all of them."""


def sees(window: Window, place: int, row: int) -> bool:
    """Whether a row of windows sees a row of the image."""
    return 0 <= row - (place * window.stride - window.top) < window.rows


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_what_windows_see_and_what_sees_rows(ranks: int) -> None:
    for window, rank in itertools.product(WINDOWS, range(ranks)):
        windows, rows = share(window.out_height, ranks, rank), share(window.height, ranks, rank)
        start, stop = space.seen(window, windows) if windows[0] < windows[1] else (0, 0)
        for row in range(window.height):
            is_seen = any(sees(window, place, row) for place in range(*windows))
            assert is_seen <= (start <= row < stop)  # rows between two windows are there too
        for end in (start, stop - 1) if window.rows >= window.stride and start < stop else ():
            assert any(sees(window, place, end) for place in range(*windows))
        first, last = space.seeing(window, rows)
        for place in range(window.out_height):
            assert any(sees(window, place, row) for row in range(*rows)) <= (first <= place < last)
        assert space.local(window, rows, (first, last)).top >= 0


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_rows_of_all_ranks_make_what_one_makes(ranks: int) -> None:
    """Outputs, and the gradients of images and filters, each from what a rank has with its halo."""
    rng = np.random.default_rng(ranks)
    for height, size, stride, padding in itertools.product((7, 12), (1, 3, 4), (1, 2), (0, 2)):
        layer = Conv2d(2, (size, 2), stride, padding)
        A, parameters = rng.normal(size=(2, height, 4, 3)), layer.initial(rng, (height, 4, 3))
        window = layer.window((height, 4, 3))
        if window.out_height < ranks:
            continue
        made = layer.forward(parameters, A)
        dZ = rng.normal(size=made.shape)
        dA, gradients = layer.backward(parameters, A, made, dZ)
        dW = np.zeros_like(gradients["W"])
        for rank in range(ranks):
            rows, windows = share(height, ranks, rank), share(window.out_height, ranks, rank)
            (start, stop), (first, last) = space.seen(window, windows), space.seeing(window, rows)
            own = _Local(2, (size, 2), stride, padding, here=space.local(window, (start, stop), windows))
            mine = slice(*windows)
            np.testing.assert_allclose(own.forward(parameters, A[:, start:stop]), made[:, mine], atol=1e-12)
            _, found = own.backward(parameters, A[:, start:stop], made[:, mine], dZ[:, mine])
            dW += found["W"]
            back = _Local(2, (size, 2), stride, padding, here=space.local(window, rows, (first, last)))
            part, wide = A[:, slice(*rows)], slice(first, last)
            found_dA, _ = back.backward(parameters, part, made[:, wide], dZ[:, wide])
            np.testing.assert_allclose(found_dA, dA[:, slice(*rows)], atol=1e-12)
        np.testing.assert_allclose(dW, gradients["W"], atol=1e-12)


class _Local(Conv2d):
    """A convolution with a window of its own."""

    def __init__(self, *arguments: object, here: Window) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        object.__setattr__(self, "here", here)

    def window(self, inputs: tuple[int, ...]) -> Window:
        return self.here  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_rows_before_pools_are_shared_without_gaps(ranks: int) -> None:
    """A rank's windows begin on its rows; where they do not overlap they see no others."""
    text = "conv3x3x2p1,relu,pool2,dropout0.5,avgpool3s2,dense3"
    (_, stage, _) = make_network(text, (19, 8, 1), 3, "softmax").stages
    found = space.rows_of(stage, ranks)
    assert sorted(found) == [4, 9, 19]
    for height, rows in found.items():
        assert [row for one in rows for row in range(*one)] == list(range(height))
    for (start, _), (before, _) in zip(found[9], found[19], strict=True):
        assert before == 2 * start
    for (start, _), (before, _) in zip(found[4], found[9], strict=True):
        assert before == 2 * start
