"""Images split over ranks by their rows: those that a rank has, and others that it needs, its halo.

A rank makes its rows of a convolution's outputs, and of what follows, from its rows of the images and their
halo. For the gradient of its rows of the images it takes its rows of the outputs' gradient and their halo: so
all that windows over the edge give to a row is summed where the row is, in the order of one rank alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nn.model.network import Stage
from nn.model.pool import AvgPool2d, MaxPool2d
from nn.model.window import Window
from pyrt.redistribute.regions import share

Span = tuple[int, int]
"""The first row, and the one behind the last."""


def rows_of(stage: Stage, ranks: int) -> dict[int, tuple[Span, ...]]:
    """Return by the height of images which rows each rank has of those that a layer, or one behind it, makes.

    The last are shared evenly. Of those before a pool a rank has the rows from its first window on to the
    next rank's, and the last rank the rest: so only a pool whose windows overlap needs a halo.
    """
    images = stage.shapes[-1 - len(stage.followers) :]
    rows = tuple(share(images[-1][0], ranks, rank) for rank in range(ranks))
    found = {images[-1][0]: rows}
    for layer, shape in zip(reversed(stage.followers), reversed(images[:-1]), strict=True):
        if isinstance(layer, MaxPool2d | AvgPool2d):
            stride, height = layer.window(shape).stride, shape[0]
            starts = [start * stride for start, _ in rows]
            rows = tuple(zip(starts, [*starts[1:], height], strict=True))
        found[shape[0]] = rows
    return found


def seen(window: Window, windows: Span) -> Span:
    """Return the rows of the image that some rows of windows see."""
    first, stop = windows
    start = min(window.height, max(0, first * window.stride - window.top))
    end = (stop - 1) * window.stride - window.top + window.rows
    return start, max(start, min(window.height, end))


def seeing(window: Window, rows: Span) -> Span:
    """Return the rows of windows that see some rows of the image, from one on that begins no later."""
    first, stop = rows
    last = min(window.out_height, (stop - 1 + window.top) // window.stride + 1)
    start = max(
        0, min((first + window.top - window.rows) // window.stride + 1, (first + window.top) // window.stride)
    )
    return (start, last) if start < last else (0, 0)


def local(window: Window, rows: Span, windows: Span) -> Window:
    """Return these rows of windows as windows on these rows of the image alone; beyond them is padding."""
    return replace(
        window,
        height=rows[1] - rows[0],
        out_height=windows[1] - windows[0],
        top=rows[0] + window.top - windows[0] * window.stride,
    )


def flattened(rows: Sequence[Span], width: int) -> tuple[Span, ...]:
    """Return where rows of images lie in a matrix of a row an image; each is ``width`` numbers."""
    return tuple((start * width, stop * width) for start, stop in rows)
