"""Windows that slide over images: of a convolution's filters, and of pooling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from pyrt.errors import UserError

SAME = "same"
"""The padding with which an image keeps its size, divided by the stride and rounded up."""


@dataclass(frozen=True)
class Window:
    """A window of ``rows`` x ``columns`` pixels at every ``stride``-th place of (height, width, channels).

    The first window begins ``top`` pixels above and ``left`` pixels before the image: there it sees padding.
    """

    height: int
    width: int
    channels: int
    rows: int
    columns: int
    stride: int
    top: int
    left: int
    out_height: int
    out_width: int

    @classmethod
    def over(
        cls, layer: str, image: tuple[int, ...], size: tuple[int, int], stride: int, padding: int | str
    ) -> Window:
        """Return the window of this size on images of this shape.

        Outputs are (n + 2 padding - k) // stride + 1; with padding `SAME` n / stride, rounded up: where that
        takes an odd number of pixels, one more is behind the image than before it. Raises UserError where
        the shape is no image, or no window fits.
        """
        if len(image) != 3:
            given = " x ".join(map(str, image))
            raise UserError(f"{layer}: takes images (height, width, channels), not {given} numbers")
        (height, width, channels), (rows, columns) = image, size
        if padding == SAME:
            out_height, out_width = -(-height // stride), -(-width // stride)
            top = max((out_height - 1) * stride + rows - height, 0) // 2
            left = max((out_width - 1) * stride + columns - width, 0) // 2
        else:
            assert isinstance(padding, int)
            top = left = padding
            out_height = (height + 2 * padding - rows) // stride + 1
            out_width = (width + 2 * padding - columns) // stride + 1
        if min(out_height, out_width) < 1:
            padded = f" with padding {padding}" if padding else ""
            raise UserError(
                f"{layer}: a window of {rows} x {columns} does not fit images of {height} x {width}{padded}"
            )
        return cls(height, width, channels, rows, columns, stride, top, left, out_height, out_width)

    @property
    def places(self) -> int:
        """Windows an image."""
        return self.out_height * self.out_width

    @property
    def pixels(self) -> int:
        """Numbers in a window: rows x columns x channels."""
        return self.rows * self.columns * self.channels

    def taps(self) -> Iterator[tuple[int, int, tuple[slice, slice, slice], tuple[slice, slice, slice]]]:
        """Yield each place (row, column) in the window, in row order, with what all windows see there.

        As two indices: of the windows that see the image there, in (samples, out_height, out_width), and of
        the pixels that they see, in (samples, height, width).
        """
        for row in range(self.rows):
            outs_y, ins_y = _seen(row - self.top, self.stride, self.height, self.out_height)
            for column in range(self.columns):
                outs_x, ins_x = _seen(column - self.left, self.stride, self.width, self.out_width)
                yield row, column, (slice(None), outs_y, outs_x), (slice(None), ins_y, ins_x)

    def room(self, samples: int, dtype: DTypeLike) -> np.ndarray:
        """Make zeros for the windows of so many images, as `gather` fills them."""
        places = samples, self.out_height, self.out_width
        return np.zeros((*places, self.rows, self.columns, self.channels), dtype)

    def gather(self, images: np.ndarray, windows: np.ndarray) -> None:
        """Copy images into their windows (n, out_height, out_width, rows, columns, channels).

        What windows have outside the images is left as it is.
        """
        for row, column, outs, ins in self.taps():
            windows[(*outs, row, column)] = images[ins]

    def scatter(self, windows: np.ndarray, images: np.ndarray) -> None:
        """Make each pixel of the images the sum of what all windows have there."""
        images.fill(0)
        for row, column, outs, ins in self.taps():
            images[ins] += windows[(*outs, row, column)]


def _seen(first: int, stride: int, size: int, places: int) -> tuple[slice, slice]:
    """Return which of so many places see a pixel, and which pixels: place p sees pixel p stride + first."""
    start = max(0, -(first // stride))
    stop = max(start, min(places, (size - 1 - first) // stride + 1))
    pixel = start * stride + first
    return slice(start, stop), slice(pixel, pixel + (stop - start) * stride, stride)
