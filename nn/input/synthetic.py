"""Images that are made up, ``synthetic:HxWxC:CLASSES:N``: for measurements of sizes that one has no data for.

An image is its class's pattern, of up to 8 x 8 squares of random colours, and noise. The same words give the
same images.
"""

import re
from math import prod

import numpy as np

from nn.input.dataset import DEFAULT, MOST_CLASSES, NO_TEST, Dataset, Part, Wanted, validate
from pyrt.errors import UserError, shown

PREFIX = "synthetic:"
FORM = re.compile(
    r"synthetic:([1-9]\d{0,5})x([1-9]\d{0,5})x([1-9]\d{0,5}):([1-9]\d{0,8}):([1-9]\d{0,8})", re.ASCII
)
SEED = 20
SQUARES = 8
CHUNK = 1 << 24  # pixels that are made at a time
MOST_TEST = 10_000


def load(source: str, wanted: Wanted = DEFAULT) -> Dataset:
    """Make N training images of height H, width W and C channels, and a tenth as many test images.

    Raises ``UserError`` where the source is not of this form, or the images do not fit into memory.
    """
    size, classes, n = described(source)
    squares = np.random.default_rng(SEED).integers(0, 128, (classes, SQUARES, SQUARES, size[2]), np.uint8)

    def half(number: int, count: int) -> tuple[Part, Part]:
        images = made(source, count, squares, size, number)
        return Part(source, images), Part(source, np.arange(count, dtype=np.int32) % classes)

    tested = min(n // 10, MOST_TEST)
    training, test = half(0, n), half(1, tested) if tested else NO_TEST
    return validate(source, *training, *test, wanted._replace(classes=wanted.classes or classes))


def described(source: str) -> tuple[tuple[int, int, int], int, int]:
    """Return the shape of the images, the classes, and N. Raises ``UserError`` for another form."""
    match = FORM.fullmatch(source)
    if not match:
        raise UserError(
            f"--data {shown(source)}: must be synthetic:HxWxC:CLASSES:N, as synthetic:32x32x3:10:5000"
        )
    height, width, channels, classes, n = map(int, match.groups())
    if classes > MOST_CLASSES:
        raise UserError(f"--data {shown(source)}: at most {MOST_CLASSES} classes")
    return (height, width, channels), classes, n


def made(source: str, count: int, squares: np.ndarray, shape: tuple[int, int, int], half: int) -> np.ndarray:
    """Make images (count, h, w, c) uint8 of the classes in turn: squares and the noise of a ``half``."""
    try:
        images = np.empty((count, *shape), np.uint8)
    except (ValueError, MemoryError) as error:
        raise UserError(
            f"--data {shown(source)}: does not fit into memory: give fewer or smaller images"
        ) from error
    patterns, place = squares.reshape(len(squares), -1), _places(shape)
    noise = np.random.PCG64((SEED, half))
    pixels, rows = prod(shape), images.reshape(count, -1)
    step = max(1, CHUNK // pixels)
    for first in range(0, count, step):
        chunk = rows[first : first + step]
        classes = np.arange(first, first + len(chunk)) % len(patterns)
        raw = noise.random_raw(-(-chunk.size // 8)).view(np.uint8)  # the fastest that NumPy has
        np.bitwise_and(raw[: chunk.size].reshape(chunk.shape), 127, out=chunk)
        chunk += np.take(patterns[classes], place, axis=1)
    return images


def _places(shape: tuple[int, int, int]) -> np.ndarray:
    """Return for each value of an image (h, w, c) its place in a pattern (SQUARES, SQUARES, c), flat."""
    rows, columns = (np.arange(size) * SQUARES // size for size in shape[:2])
    squares = rows[:, None] * SQUARES + columns
    return (squares[:, :, None] * shape[2] + np.arange(shape[2])).reshape(-1)
