"""nn/input/suspicious.py: valid data that would teach little, each with its line; none for good data."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from nn.input import Dataset, load
from nn.input.suspicious import of_labels, of_pixels

DIGITS = load("embedded")
TEST_IMAGES, TEST_LABELS = DIGITS.test_images, DIGITS.test_labels
assert TEST_IMAGES is not None and TEST_LABELS is not None
STANDARD = [((images / 255 - 0.13) / 0.31).astype(np.float32) for images in (DIGITS.images, TEST_IMAGES)]


def of(images: np.ndarray, test_images: np.ndarray | None) -> Dataset:
    return replace(DIGITS, images=images, test_images=test_images)


def labelled(labels: np.ndarray, **changes: object) -> Dataset:
    """A set with these training labels, and no test set."""
    labels = np.asarray(labels, np.int32)
    images = np.zeros((len(labels), 1), np.uint8)
    without = replace(DIGITS, images=images, labels=labels, test_images=None, test_labels=None)
    return replace(without, **changes)


# --- pixels ----------------------------------------


@pytest.mark.parametrize(
    ("dataset", "scale"),
    [
        (DIGITS, 255.0),
        (DIGITS, 1.0),  # raw pixels, which are asked for
        (of(DIGITS.images, None), 255.0),
        (of(DIGITS.images[:1], TEST_IMAGES[:1]), 255.0),
        (of(DIGITS.images[:3], TEST_IMAGES[:1] * 0), 255.0),  # a blank image tells nothing of a scale
        (of(DIGITS.images / np.float32(255), TEST_IMAGES / np.float32(255)), 1.0),
        (of(*STANDARD), 1.0),
        (of(STANDARD[0], STANDARD[1][:1]), 1.0),
        (of(np.vstack([STANDARD[0], np.full_like(STANDARD[1][:1], 1e3)]), STANDARD[1]), 1.0),  # an outlier
        (of(STANDARD[0].astype(np.float64) * 1e-60, STANDARD[1].astype(np.float64) * 1e-60), 1e-60),
        (of(np.array([[-1.5], [2.0]]), np.array([[0.5]])), 1.0),
    ],
)
def test_good_pixels(dataset: Dataset, scale: float) -> None:
    assert of_pixels(dataset, scale) == []


@pytest.mark.parametrize(
    ("images", "scale", "line"),
    [
        (
            DIGITS.images / np.float32(255),
            255.0,
            "from 0 to 1, and --pixel-scale 255 .*: use --pixel-scale 1$",
        ),
        (DIGITS.images / np.float32(256), 255.0, "from 0 to 0.996094, .*: use --pixel-scale 1$"),
        ((DIGITS.images > 99).astype(np.uint8), 255.0, "from 0 to 1, .*: use --pixel-scale 1$"),
        (DIGITS.images // 16, 255.0, "from 0 to 15, .*: use --pixel-scale 15$"),
        (STANDARD[0], 255.0, "from -0.419355 to 2.80645, .*: use --pixel-scale 1$"),
        (DIGITS.images * np.uint16(257), 255.0, "from 0 to 65535, .*: use --pixel-scale 65535$"),
        (DIGITS.images, 65535.0, "from 0 to 255, and --pixel-scale 65535 .*: use --pixel-scale 255$"),
    ],
)
def test_pixels_that_the_scale_does_not_fit(images: np.ndarray, scale: float, line: str) -> None:
    [found] = of_pixels(of(images, None), scale)
    assert found.startswith("training pixels are ")
    assert re.search(line, found), found


@pytest.mark.parametrize(
    ("training", "test", "ranges"),
    [
        (DIGITS.images / np.float32(255), TEST_IMAGES.astype("f4"), ("from 0 to 1,", "from 0 to 255:")),
        (DIGITS.images.astype("f4"), TEST_IMAGES / np.float32(255), ("from 0 to 255,", "from 0 to 1:")),
        (STANDARD[0], TEST_IMAGES / np.float32(255), ("from -0.419355 to 2.80645,", "from 0 to 1:")),
        (DIGITS.images / np.float32(255), STANDARD[1], ("from 0 to 1,", "from -0.419355 to 2.80645:")),
    ],
)
def test_halves_on_different_scales(training: np.ndarray, test: np.ndarray, ranges: tuple[str, str]) -> None:
    for scale in (1.0, 255.0):
        [line] = of_pixels(of(training, test), scale)
        expected = f"training pixels are {ranges[0]} test pixels are {ranges[1]} save both on the same scale"
        assert line == expected


def test_images_that_are_all_alike() -> None:
    blank, grey = np.zeros_like(DIGITS.images), np.full_like(TEST_IMAGES, 7)
    assert of_pixels(of(blank, grey), 255.0) == [
        "all 4000 training images are the same: look at how they were saved",
        "all 1000 test images are the same: look at how they were saved",
    ]
    same = np.repeat(DIGITS.images[:1], 4000, axis=0)
    assert of_pixels(of(same, TEST_IMAGES), 255.0)[0].startswith("all 4000 training images are the same")
    plain = np.repeat(DIGITS.images[:, 300:301], 784, axis=1)
    assert of_pixels(of(plain, TEST_IMAGES), 255.0) == [
        "each of the 4000 training images has one value in all its pixels: look at how they were saved"
    ]
    same[-1, -1] += 1  # one pixel of three millions is enough
    assert of_pixels(of(same, TEST_IMAGES), 255.0) == []


@pytest.mark.parametrize(
    ("shape", "line"),
    [
        ((3, 28, 28), "images of 3 x 28 x 28 have 28 channels: if these are 3, use --channels first"),
        ((1, 28, 28), "images of 1 x 28 x 28 have 28 channels: if these are 1, use --channels first"),
        ((28, 28, 3), None),
        ((3, 28, 3), None),
        ((28, 28), None),
        ((3, 28), None),
    ],
)
def test_channels_in_the_first_place(shape: tuple[int, ...], line: str | None) -> None:
    """Beside what else there is to say."""
    pixels = math.prod(shape)
    images = np.random.default_rng(0).integers(0, 256, (3, pixels), np.uint8)
    lines = of_pixels(replace(of(images, None), image_shape=shape), 255.0)
    assert lines == ([line] if line else [])
    both = of_pixels(replace(of(images / np.float32(255), None), image_shape=shape), 255.0)
    assert len(both) == (2 if line else 1) and "--pixel-scale" in both[0]


# --- labels ----------------------------------------


def found(dataset: Dataset, training: int, samples: int | None = None, how: str = "tail") -> list[str]:
    return of_labels(dataset, min(samples or training, training), training, how)


SORTED = np.repeat(np.arange(10), 400)
MIXED = np.tile(np.arange(10), 400)


@pytest.mark.parametrize(
    ("dataset", "training", "samples"),
    [
        (DIGITS, 3600, None),
        (DIGITS, 4000, None),
        (DIGITS, 3600, 11),  # few enough to lack classes by chance
        (labelled(MIXED + 1), 3600, None),  # from 1, as EMNIST's letters
        (labelled(MIXED), 3990, None),
        (labelled([0, 1]), 2, None),
        (labelled([0, 1, 0]), 2, None),
        (labelled([5, 0, 1, 2, 3, 4]), 6, 2),
        (labelled(MIXED * 2, given_classes=19), 3600, None),  # gaps that are meant
    ],
)
def test_good_labels(dataset: Dataset, training: int, samples: int | None) -> None:
    assert found(dataset, training, samples) == []


@pytest.mark.parametrize("how", ["tail", "random"])
def test_rows_that_validate_and_none_like_them_trains(how: str) -> None:
    assert found(labelled(SORTED), 3600, how=how) == [
        "400 of 400 validation rows are of class 9, and no training row is: use --val-split stratified"
    ]
    assert found(labelled(SORTED[::-1]), 2400, how=how) == [
        "1600 of 1600 validation rows are of classes 0 to 3, and no training row is: "
        "use --val-split stratified"
    ]
    rare = np.append(MIXED, [11, 10])
    assert found(labelled(rare), 3600, how=how)[0].startswith(
        "2 of 402 validation rows are of classes 10, 11,"
    )


def test_rows_that_validate_of_few_classes_alone() -> None:
    """Half of the last class trains, the other half is all that validates."""
    assert found(labelled(SORTED), 3800) == [
        "all 200 validation rows are of class 9, of 10 classes: use --val-split stratified"
    ]
    small = labelled(np.repeat(np.arange(3), [34, 33, 33]))
    # Of 13 random rows none is of the 67 others once in 10,000 times; of 3 rows once in 8 times.
    assert len(found(small, 87)) == 1 and found(small, 97) == []


def test_a_rare_class_may_be_missing_among_the_rows_that_validate() -> None:
    for number in range(50):
        labels = np.random.default_rng(number).permutation(np.arange(1000) < 10)
        assert found(labelled(labels), 900) == []


def test_classes_of_one_row_are_no_matter_of_the_split() -> None:
    [line] = found(labelled(np.arange(600)), 540)
    assert line.endswith("use --val-fraction 0, or give more images of them")


def test_stratified_is_not_offered_to_who_has_it() -> None:
    dataset = labelled([0, 0, 0, 0, 1])
    assert found(dataset, 4, how="stratified") == [
        "1 of 1 validation rows are of class 1, and no training row is: "
        "use --val-fraction 0, or give more images of them"
    ]
    assert found(labelled(np.append(np.zeros(999, int), 1)), 500, how="stratified")[0].startswith("1 of 500")


def test_samples_that_lack_classes() -> None:
    assert found(labelled(SORTED), 4000, 800) == [
        "the first 800 rows, which --samples takes, have no image of classes 2 to 9: give more --samples"
    ]


def test_classes_without_an_image() -> None:
    gap = labelled(MIXED[MIXED != 4])
    said = "no training image is of class 4, and the largest label is 9: number the classes without gaps, or "
    assert found(gap, 3240) == [f"{said}use --classes 10 if this is meant"]
    assert found(replace(gap, given_classes=10), 3240) == []
    tested = replace(gap, test_images=TEST_IMAGES, test_labels=TEST_LABELS)
    [first, second] = found(tested, 3240)
    assert first.startswith(said)
    assert (
        second
        == "102 of 1000 test images are of class 4, and no training image is: add some, or remove these"
    )
    assert found(replace(tested, given_classes=10), 3240) == [second]
    [line] = found(labelled(MIXED + 1000), 3600)
    assert "of classes 0 to 999, and the largest label is 1009" in line
    [line] = found(labelled(MIXED * 2), 3600)
    assert "of classes 1, 3, 5, 7, 9, 4 more, and" in line


def test_one_class_alone() -> None:
    expected = "all 50 training labels are 3: give images of two classes or more"
    assert found(labelled(np.full(50, 3)), 45) == [expected]
