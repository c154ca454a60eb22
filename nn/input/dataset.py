"""What a data set is, and the one place that decides whether arrays from a file make one."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pyrt.errors import UserError

MOST_CLASSES = 1 << 16  # a larger label is a fill value or a wrong file, not a class to make weights for
CHUNK = 1 << 20  # pixels that are looked at at a time

CHANNELS = LAST, FIRST = ("last", "first")
"""Where an image of a file has its channels: (h, w, c) or (c, h, w)."""

Samples = tuple[np.ndarray, np.ndarray]
"""Images (n, D) and their labels (n,)."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images as rows of pixels, and their classes; the test half may be missing.

    name: what is printed about where it comes from.
    images: (n, D), C-contiguous; uint8, or where the files hold floats or integers outside 0..255 a float.
    labels: (n,) int32, 0 or more.
    test_images, test_labels: (m, D) and (m,) of the same dtypes, or both None.
    image_shape: the shape of one image; its product is D.
    given_classes: the number of classes that --classes gives, if any.
    warnings: what was lost while the files were read, a line each.
    digest: of the training and validation samples, where no rank holds them all (distribute.py).
    """

    name: str
    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray | None
    test_labels: np.ndarray | None
    image_shape: tuple[int, ...]
    given_classes: int | None = None
    warnings: tuple[str, ...] = ()
    digest: str | None = None

    @property
    def classes(self) -> int:
        """The number given, else the largest training label + 1; a class below it may have no image."""
        return self.given_classes or int(self.labels.max()) + 1


class Wanted(NamedTuple):
    """The demands of a run on a data set.

    dtype: float32 or float64, in which the run computes.
    classes: the number of classes; None: the largest training label + 1.
    channels: where the file has them, of `CHANNELS`; a Dataset has them last.
    """

    dtype: str = "float32"
    classes: int | None = None
    channels: str = LAST


DEFAULT = Wanted()


@dataclass(frozen=True, eq=False)
class Part:
    """An array as a reader found it, and the words that name it in a message (file, or file and array)."""

    where: str
    array: np.ndarray


NO_TEST: tuple[Part | None, Part | None] = (None, None)
"""The test images and labels of a set that has none."""


def validate(
    name: str,
    images: Part,
    labels: Part,
    test_images: Part | None,
    test_labels: Part | None,
    wanted: Wanted = DEFAULT,
) -> Dataset:
    """Make a :class:`Dataset` of what a reader found, or raise ``UserError`` saying which part is wrong.

    images: (n, D), (n, h, w), (n, h, w, 1) or (n, h, w, c), n and D at least 1, any finite real numbers; or
    (n, c, h, w), where the channels are first.
    labels: (n,) or (n, 1) integers from 0, below the number of classes that is wanted, if any. The test parts
    likewise, with images of the training images' shape, and labels below that number or else no larger than
    the training labels'; both may be None.
    """
    labels = column(labels)
    check_pair(images, labels)
    images = channels_last(images, wanted.channels)
    check_classes(labels, wanted.classes)
    all_images, all_labels = [images], [labels]
    if test_images is not None or test_labels is not None:
        test_images, test_labels = both(test_images, test_labels)
        test_labels = column(test_labels)
        check_pair(test_images, test_labels)
        test_images = channels_last(test_images, wanted.channels)
        check_test_fits(images, labels, test_images, test_labels, wanted.classes)
        all_images, all_labels = [images, test_images], [labels, test_labels]
    dtype = pixel_dtype([part.array for part in all_images], wanted.dtype)
    pixels = [rows(part, dtype) for part in all_images]
    numbers = [part.array.astype(np.int32) for part in all_labels]
    has_test, shape = len(all_images) > 1, image_shape(images)
    test_rows, test_numbers = (pixels[1], numbers[1]) if has_test else (None, None)
    lost = tuple(line for pair in zip(all_images, pixels, strict=True) for line in underflow(*pair))
    return Dataset(name, pixels[0], numbers[0], test_rows, test_numbers, shape, wanted.classes, lost)


def check_pair(images: Part, labels: Part) -> None:
    """Raise ``UserError`` unless these are images and labels, as many of each."""
    check_images(images)
    check_labels(labels)
    if len(images.array) != len(labels.array):
        raise UserError(
            f"{images.where}: {len(images.array)} images, but {len(labels.array)} labels in {labels.where}: "
            "give two that belong together"
        )


def check_images(images: Part) -> None:
    """Raise ``UserError`` unless ``images`` holds at least one image of at least one real number."""
    where, array = images.where, images.array
    if array.dtype.kind not in "buif":
        raise UserError(f"{where}: images of type {array.dtype}: give integers or floats")
    if array.ndim == 1:
        raise UserError(
            f"{where}: one number for each sample, so labels, not images: are the two swapped? "
            "give images of shape (n, h, w)"
        )
    if not 2 <= array.ndim <= 4:
        raise UserError(f"{where}: images of shape {array.shape}: give (n, h, w) or (n, pixels)")
    if array.size == 0:
        raise UserError(
            f"{where}: no images (shape {array.shape}): give at least one image of at least one pixel"
        )


def channels_last(images: Part, channels: str) -> Part:
    """Return images (n, c, h, w), where the channels are first, as (n, h, w, c); others as they are."""
    if channels == LAST:
        return images
    if images.array.ndim != 4:
        raise UserError(
            f"{images.where}: images of shape {images.array.shape}, without channels: "
            "leave out --channels first"
        )
    return Part(images.where, images.array.transpose(0, 2, 3, 1))


def column(labels: Part) -> Part:
    """Return labels (n, 1), as Keras saves some, as (n,); others as they are."""
    shape = labels.array.shape
    return Part(labels.where, labels.array.reshape(-1)) if len(shape) == 2 and shape[1] == 1 else labels


def check_labels(labels: Part) -> None:
    """Raise ``UserError`` unless ``labels`` is one class number, 0 or more, for each of its samples."""
    where, array = labels.where, labels.array
    if is_one_hot(array):
        raise UserError(
            f"{where}: one-hot labels of shape {array.shape}: give one number for each sample, shape (n,): "
            "save labels.argmax(axis=1)"
        )
    if array.ndim != 1:
        raise UserError(
            f"{where}: labels of shape {array.shape}: give one number for each sample, shape (n,) "
            "(images here? then the two are swapped)"
        )
    if array.dtype.kind not in "ui":
        raise UserError(f"{where}: labels of type {array.dtype}: give integers: save labels.astype(int)")
    if array.size == 0:
        raise UserError(f"{where}: no labels: give at least one")
    if array.min() < 0:
        raise UserError(f"{where}: label {array.min()} is negative: number the classes from 0")
    if array.max() >= MOST_CLASSES:
        raise UserError(
            f"{where}: label {array.max()}: number the classes from 0 to {MOST_CLASSES - 1} at most"
        )


def is_one_hot(array: np.ndarray) -> bool:
    """Return whether each row of (n, classes) numbers is one 1 among zeros, from the first rows."""
    if array.ndim != 2 or array.dtype.kind not in "buif" or array.size == 0:
        return False
    first = array[:1000]
    ones, zeros = (first == 1).sum(axis=1), (first == 0).sum(axis=1)
    return bool((ones == 1).all() and (zeros == first.shape[1] - 1).all())


def check_classes(labels: Part, classes: int | None) -> None:
    """Raise ``UserError`` where there is a label beyond the number of classes that was given."""
    highest = labels.array.max()
    if classes is not None and highest >= classes:
        raise UserError(
            f"--classes {classes}: {labels.where} has label {highest}: give {highest + 1} or more"
        )


def both(test_images: Part | None, test_labels: Part | None) -> tuple[Part, Part]:
    """Return the two test parts. Raises ``UserError`` if only one of them is there."""
    if test_images is not None and test_labels is not None:
        return test_images, test_labels
    found, missing = (test_images, "labels") if test_images is not None else (test_labels, "images")
    assert found is not None
    raise UserError(f"{found.where}: no test {missing} go with it: add the test {missing}, or remove it")


def check_test_fits(
    images: Part, labels: Part, test_images: Part, test_labels: Part, classes: int | None
) -> None:
    """Raise ``UserError`` unless the test set can be put to a network made for the training set."""
    trained, tested = image_shape(images), image_shape(test_images)
    if trained != tested:
        raise UserError(
            f"{test_images.where}: images of shape {tested}, but {trained} in {images.where}: "
            "give a test set that belongs to the training set"
        )
    check_classes(test_labels, classes)
    highest, highest_tested = labels.array.max(), test_labels.array.max()
    if classes is None and highest_tested > highest:
        raise UserError(
            f"{test_labels.where}: label {highest_tested}, but the largest training label is {highest}: "
            f"give a test set that belongs to the training set, or --classes {highest_tested + 1}"
        )


def image_shape(images: Part) -> tuple[int, ...]:
    """Return the shape of an image: (h, w), (h, w, c) with several channels, or (D,) if rows are flat."""
    shape = images.array.shape[1:]
    return shape[:-1] if len(shape) == 3 and shape[-1] == 1 else shape


def pixel_dtype(arrays: list[np.ndarray], wanted: str) -> np.dtype:
    """Return uint8 when all pixels are integers in 0..255; else float32, or float64 where that is wanted and
    float32 would round a pixel."""
    if all(map(uint8_holds, arrays)):
        return np.dtype(np.uint8)
    return np.dtype(np.float32 if wanted == "float32" or all(map(float32_holds, arrays)) else np.float64)


def uint8_holds(array: np.ndarray) -> bool:
    """Return whether these are integers in 0..255; nothing of an array of bytes is looked at."""
    if array.dtype == np.uint8:
        return True
    return bool(array.dtype.kind in "bui" and array.min() >= 0 and array.max() <= 255)


def float32_holds(array: np.ndarray) -> bool:
    """Return whether float32 has each of these numbers."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return np.can_cast(array.dtype, np.float32) or all(
            (chunk.astype(np.float32) == chunk).all() for chunk in chunks(array)
        )


def chunks(array: np.ndarray) -> Iterator[np.ndarray]:
    """Give the array's rows, some at a time, so that a large one is not copied as a whole."""
    step = max(1, CHUNK // array[0].size)
    return (array[start : start + step] for start in range(0, len(array), step))


def rows(images: Part, dtype: np.dtype) -> np.ndarray:
    """Make images (n, D) of ``dtype``, C-contiguous. Raises ``UserError`` if a pixel is not finite in it."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        array = np.ascontiguousarray(images.array, dtype).reshape(len(images.array), -1)
    if dtype.kind == "f" and not np.isfinite(array).all():
        first = int(np.argmin(np.isfinite(array).all(axis=1)))
        is_larger = dtype == np.float32 and np.isfinite(images.array[first]).all()
        advice = "use --dtype float64, repair" if is_larger else "repair"
        raise UserError(
            f"{images.where}: image {first} has a pixel that is not finite in {dtype}: {advice} or remove it"
        )
    return array


def underflow(images: Part, pixels: np.ndarray) -> list[str]:
    """Say in a line where some of the images' numbers became 0 as ``pixels``."""
    if images.array.dtype.kind != "f" or np.can_cast(images.array.dtype, pixels.dtype):
        return []
    lost = np.count_nonzero(images.array) - np.count_nonzero(pixels)
    larger = "use --dtype float64, or " if pixels.dtype == np.float32 else ""
    what = f"{images.where}: {lost} pixels are too small for {pixels.dtype} and become 0"
    return [f"{what}: {larger}save them on a larger scale"] if lost else []
