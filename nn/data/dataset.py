"""What a data set is, and the one place that decides whether arrays from a file make one."""

from dataclasses import dataclass

import numpy as np

from pyrt.errors import UserError

MOST_CLASSES = 1 << 16  # a larger label is a fill value or a wrong file, not a class to make weights for


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images as rows of pixels, and their classes; the test half may be missing.

    name: what is printed about where it comes from.
    images: (n, D), C-contiguous; uint8, or float32 where the files hold floats or integers outside 0..255.
    labels: (n,) int32, 0 or more.
    test_images, test_labels: (m, D) and (m,) of the same dtypes, or both None.
    image_shape: the shape of one image; its product is D.
    """

    name: str
    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray | None
    test_labels: np.ndarray | None
    image_shape: tuple[int, ...]

    @property
    def classes(self) -> int:
        """The largest training label + 1; a class below it may have no image."""
        return int(self.labels.max()) + 1


@dataclass(frozen=True, eq=False)
class Part:
    """An array as a reader found it, and the words that name it in a message (file, or file and array)."""

    where: str
    array: np.ndarray


def validate(
    name: str, images: Part, labels: Part, test_images: Part | None, test_labels: Part | None
) -> Dataset:
    """Make a :class:`Dataset` of what a reader found, or raise ``UserError`` saying which part is wrong.

    images: (n, D), (n, h, w), (n, h, w, 1) or (n, h, w, c), n and D at least 1, any finite real numbers.
    labels: (n,) integers from 0. The test parts likewise, with images of the training images' shape and
    labels no larger than the training labels'; both may be None.
    """
    check_pair(images, labels)
    pixels = pixel_dtype(images, test_images)
    if test_images is None and test_labels is None:
        test_rows, test_classes = None, None
    else:
        test_images, test_labels = both(test_images, test_labels)
        check_pair(test_images, test_labels)
        check_test_fits(images, labels, test_images, test_labels)
        test_rows, test_classes = rows(test_images, pixels), test_labels.array.astype(np.int32)
    return Dataset(
        name,
        rows(images, pixels),
        labels.array.astype(np.int32),
        test_rows,
        test_classes,
        image_shape(images),
    )


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


def check_labels(labels: Part) -> None:
    """Raise ``UserError`` unless ``labels`` is one class number, 0 or more, for each of its samples."""
    where, array = labels.where, labels.array
    if array.ndim != 1:
        raise UserError(
            f"{where}: labels of shape {array.shape}: give one number for each sample, shape (n,) "
            "(images here? then the two are swapped)"
        )
    if array.dtype.kind not in "ui":
        raise UserError(f"{where}: labels of type {array.dtype}: give integers")
    if array.size == 0:
        raise UserError(f"{where}: no labels: give at least one")
    if array.min() < 0:
        raise UserError(f"{where}: label {array.min()} is negative: number the classes from 0")
    if array.max() >= MOST_CLASSES:
        raise UserError(
            f"{where}: label {array.max()}: number the classes from 0 to {MOST_CLASSES - 1} at most"
        )


def both(test_images: Part | None, test_labels: Part | None) -> tuple[Part, Part]:
    """The two test parts; ``UserError`` when only one of them is there."""
    if test_images is not None and test_labels is not None:
        return test_images, test_labels
    found, missing = (test_images, "labels") if test_images is not None else (test_labels, "images")
    assert found is not None
    raise UserError(f"{found.where}: no test {missing} go with it: add the test {missing}, or remove it")


def check_test_fits(images: Part, labels: Part, test_images: Part, test_labels: Part) -> None:
    """Raise ``UserError`` unless the test set can be put to a network made for the training set."""
    trained, tested = image_shape(images), image_shape(test_images)
    if trained != tested:
        raise UserError(
            f"{test_images.where}: images of shape {tested}, but {trained} in {images.where}: "
            "give a test set that belongs to the training set"
        )
    highest = labels.array.max()
    if test_labels.array.max() > highest:
        raise UserError(
            f"{test_labels.where}: label {test_labels.array.max()}, but the largest training label is "
            f"{highest}: give a test set that belongs to the training set"
        )


def image_shape(images: Part) -> tuple[int, ...]:
    """The shape of one image: (h, w), (h, w, c) with several channels, or (D,) where the rows are flat."""
    shape = images.array.shape[1:]
    return shape[:-1] if len(shape) == 3 and shape[-1] == 1 else shape


def pixel_dtype(images: Part, test_images: Part | None) -> np.dtype:
    """uint8 when all pixels of both are integers in 0..255, otherwise float32."""
    arrays = [part.array for part in (images, test_images) if part is not None and part.array.size]
    small = all(array.dtype.kind in "bui" and array.min() >= 0 and array.max() <= 255 for array in arrays)
    return np.dtype(np.uint8 if small else np.float32)


def rows(images: Part, dtype: np.dtype) -> np.ndarray:
    """The images as (n, D) of ``dtype``, C-contiguous; ``UserError`` when a pixel is not finite in it."""
    with np.errstate(over="ignore", invalid="ignore"):
        array = np.ascontiguousarray(images.array, dtype).reshape(len(images.array), -1)
    if dtype.kind == "f" and not np.isfinite(array).all():
        first = int(np.argmin(np.isfinite(array).all(axis=1)))
        raise UserError(
            f"{images.where}: image {first} has a pixel that is not finite in float32: repair or remove it"
        )
    return array
