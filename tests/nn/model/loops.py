"""Convolution and pooling as the loops that they are, in float64: what all others are compared with.

Images (samples, height, width, channels), filters (filters, rows, columns, channels), outputs (samples,
out_height, out_width, filters or channels). A term is a product that is added up, or a pixel in its window.
"""

from __future__ import annotations

import functools
import itertools

import numpy as np

from nn.model.window import Window


@functools.lru_cache
def terms(window: Window, samples: int, filters: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Places in outputs, images and filters, each flat, of all terms of a convolution."""
    w, found = window, []
    for n, y, x, f in itertools.product(*map(range, (samples, w.out_height, w.out_width, filters))):
        for r, c, i in itertools.product(*map(range, (w.rows, w.columns, w.channels))):
            row, column = y * w.stride + r - w.top, x * w.stride + c - w.left
            if 0 <= row < w.height and 0 <= column < w.width:
                found.append(
                    (
                        ((n * w.out_height + y) * w.out_width + x) * filters + f,
                        ((n * w.height + row) * w.width + column) * w.channels + i,
                        ((f * w.rows + r) * w.columns + c) * w.channels + i,
                    )
                )
    outputs, images, weights = np.array(found, np.int64).reshape(-1, 3).T
    return outputs, images, weights


def _summed(to: np.ndarray, first: np.ndarray, second: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Add up products where they belong, one after the other."""
    return np.bincount(to, first * second, int(np.prod(shape))).reshape(shape)


def convolve(window: Window, A: np.ndarray, W: np.ndarray) -> np.ndarray:
    """Z, without bias."""
    to, images, weights = terms(window, len(A), len(W))
    A, W = A.astype(np.float64), W.astype(np.float64)
    return _summed(to, A.flat[images], W.flat[weights], _outputs(window, len(A), len(W)))


def to_input(window: Window, dZ: np.ndarray, W: np.ndarray) -> np.ndarray:
    """dA."""
    outputs, to, weights = terms(window, len(dZ), len(W))
    dZ, W = dZ.astype(np.float64), W.astype(np.float64)
    return _summed(to, dZ.flat[outputs], W.flat[weights], _images(window, len(dZ)))


def to_filters(window: Window, A: np.ndarray, dZ: np.ndarray) -> np.ndarray:
    """dW."""
    outputs, images, to = terms(window, len(A), dZ.shape[-1])
    A, dZ = A.astype(np.float64), dZ.astype(np.float64)
    shape = dZ.shape[-1], window.rows, window.columns, window.channels
    return _summed(to, dZ.flat[outputs], A.flat[images], shape)


def _images(window: Window, samples: int) -> tuple[int, ...]:
    return samples, window.height, window.width, window.channels


def _outputs(window: Window, samples: int, channels: int) -> tuple[int, ...]:
    return samples, window.out_height, window.out_width, channels


def largest(window: Window, A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The largest pixel of each window, of equal ones the first, or the first NaN; and its place."""
    shape = _outputs(window, len(A), window.channels)
    best, places = np.empty(shape, A.dtype), np.empty(shape, np.int64)
    for n, y, x, i in np.ndindex(shape):
        seen = [float(A[n, row, column, i]) for row, column in _seen(window, y, x)]
        nan = [place for place, pixel in enumerate(seen) if np.isnan(pixel)]
        places[n, y, x, i] = nan[0] if nan else seen.index(max(seen))
        best[n, y, x, i] = seen[places[n, y, x, i]]
    return best, places


def to_largest(window: Window, A: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """The gradient of the images from that of their windows' largest pixels."""
    images, (_, places) = np.zeros(A.shape), largest(window, A)
    for n, y, x, i in np.ndindex(places.shape):
        row, column = _seen(window, y, x)[places[n, y, x, i]]
        images[n, row, column, i] += gradient[n, y, x, i]
    return images


def means(window: Window, A: np.ndarray) -> np.ndarray:
    """The mean of each window."""
    result = np.empty(_outputs(window, len(A), window.channels))
    for n, y, x, i in np.ndindex(result.shape):
        result[n, y, x, i] = np.mean([float(A[n, row, column, i]) for row, column in _seen(window, y, x)])
    return result


def to_means(window: Window, gradient: np.ndarray) -> np.ndarray:
    """The gradient of the images from that of their windows' means."""
    images = np.zeros(_images(window, len(gradient)))
    for n, y, x, i in np.ndindex(gradient.shape):
        for row, column in _seen(window, y, x):
            images[n, row, column, i] += gradient[n, y, x, i] / (window.rows * window.columns)
    return images


def _seen(window: Window, y: int, x: int) -> list[tuple[int, int]]:
    """Rows and columns of the pixels of a window that is within the image, in row order."""
    rows, columns = range(window.rows), range(window.columns)
    return [(y * window.stride + r, x * window.stride + c) for r, c in itertools.product(rows, columns)]
