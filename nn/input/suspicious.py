"""Finds what is suspicious in a data set that is valid: a line each, with what was seen and what to type.

Each of these trains without an error, and learns little or nothing. Large sets are looked at in part.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nn.input.dataset import Dataset, chunks
from nn.input.validation_split import STRATIFIED

SAMPLE = 1 << 20  # pixels of a large set that are looked at
LEAST = 0.1  # of the largest pixel after scaling: below, the embedded digits learn a third in the same time
APART = 8  # times as large are the pixels of another scale; those of two parts of one set differ by less
FEW = 10  # rows for each class; with fewer of them a class may well be missing by chance
RARE = 1e-3  # how often rows that are held out at random lack classes that count as lacking on purpose
CHANNELS = (1, 3, 4)  # that images have: grey, colours, colours and opacity
ENOUGH = 20  # images: one at least has what a tenth of the other set's pixels have


def of_pixels(dataset: Dataset, pixel_scale: float) -> list[str]:
    """Look at the pixels of the training set, and of the test set if there is one."""
    halves = [("training", dataset.images)]
    if dataset.test_images is not None:
        halves.append(("test", dataset.test_images))
    lines = [line for half, images in halves for line in constant(half, images)]
    samples = [(half, _sample(images)) for half, images in halves]
    if not lines and len(samples) > 1:
        lines = on_other_scales(*samples)
    lines = lines or too_small(*samples[0], pixel_scale) or too_large(*samples[0], pixel_scale)
    return lines + channels_first(dataset.image_shape)


def constant(half: str, images: np.ndarray) -> list[str]:
    """Say where all images are the same, or each is of one value."""
    n, pixels = images.shape
    if n > 1 and all((chunk == images[0]).all() for chunk in chunks(images)):
        return [f"all {n} {half} images are the same: look at how they were saved"]
    if n > 1 and pixels > 1 and all((chunk == chunk[:, :1]).all() for chunk in chunks(images)):
        return [f"each of the {n} {half} images has one value in all its pixels: look at how they were saved"]
    return []


def channels_first(shape: tuple[int, ...]) -> list[str]:
    """Say where the first of an image's three sizes, and not its last, is that of channels."""
    if len(shape) < 3 or shape[0] not in CHANNELS or shape[-1] in CHANNELS:
        return []
    what = " x ".join(map(str, shape))
    return [f"images of {what} have {shape[-1]} channels: if these are {shape[0]}, use --channels first"]


def too_large(half: str, images: np.ndarray, pixel_scale: float) -> list[str]:
    """Say where the largest pixel is far above ``pixel_scale``, as of 16 bits; 1 asks for raw pixels."""
    largest = _largest(images)
    if pixel_scale == 1 or largest <= APART * pixel_scale:
        return []
    return [
        f"{_range(half, images)}, and --pixel-scale {pixel_scale:g} divides them: "
        f"use --pixel-scale {largest:g}"
    ]


def too_small(half: str, images: np.ndarray, pixel_scale: float) -> list[str]:
    """Say where the largest pixel is far below ``pixel_scale``: of floats up to 1 that are divided by 255."""
    lowest, largest = float(images.min()), _largest(images)
    if largest == 0 or largest >= LEAST * pixel_scale:
        return []
    better = 1 if largest <= 1 or lowest < 0 else largest
    return [
        f"{_range(half, images)}, and --pixel-scale {pixel_scale:g} divides them: "
        f"use --pixel-scale {better:g}"
    ]


def on_other_scales(training: tuple[str, np.ndarray], test: tuple[str, np.ndarray]) -> list[str]:
    """Say where training and test pixels are not on one scale: much larger, or negative, in one set alone.

    Both the largest pixels and the means must be larger, so that a few outliers count for nothing.
    """
    sets = training[1], test[1]
    largest = sorted(map(_largest, sets))
    means = sorted(float(np.abs(images, dtype=np.float64).mean()) for images in sets)
    negative = sorted(float((images < 0).mean()) for images in sets)
    is_larger = 0 < APART * largest[0] < largest[1] and APART * means[0] < means[1]
    are_enough = all(len(images) >= ENOUGH and images.size >= 50 * ENOUGH for images in sets)
    is_signed = are_enough and negative[0] == 0 and negative[1] > 0.1
    if is_larger or is_signed:
        return [f"{_range(*training)}, {_range(*test)}: save both on the same scale"]
    return []


def of_labels(dataset: Dataset, used: int, held_out: int, val_split: str) -> list[str]:
    """Look at labels: the first ``used`` rows are trained on, those from ``held_out`` on validate."""
    labels, classes = dataset.labels, dataset.classes
    whole, trained, available, validating = (
        np.bincount(part, minlength=classes)
        for part in (labels, labels[:used], labels[:held_out], labels[held_out:])
    )
    present = np.flatnonzero(whole)
    if len(present) == 1:
        return [f"all {len(labels)} training labels are {present[0]}: give images of two classes or more"]
    lines = without_images(whole) if dataset.given_classes is None else []
    if dataset.test_labels is not None:
        lines += never_trained(np.bincount(dataset.test_labels, minlength=classes), whole)
    lines += held_out_alone(available, validating, val_split)
    lost = np.flatnonzero((available > 0) & (trained == 0))
    if lost.size and used >= FEW * len(present):
        lines.append(
            f"the first {used} rows, which --samples takes, have no image of {_named(lost)}: "
            "give more --samples"
        )
    return lines


def without_images(counts: np.ndarray) -> list[str]:
    """Say which classes below the largest have no training image; labels may begin at 1, as EMNIST's do."""
    empty = np.flatnonzero(counts == 0)
    if empty.tolist() in ([], [0]):
        return []
    return [
        f"no training image is of {_named(empty)}, and the largest label is {len(counts) - 1}: "
        f"number the classes without gaps, or use --classes {len(counts)} if this is meant"
    ]


def never_trained(tested: np.ndarray, whole: np.ndarray) -> list[str]:
    """Say how many test images are of classes that the training set lacks."""
    lacking = np.flatnonzero((tested > 0) & (whole == 0))
    if not lacking.size:
        return []
    count = f"{tested[lacking].sum()} of {tested.sum()} test images"
    return [f"{count} are of {_named(lacking)}, and no training image is: add some, or remove these"]


def held_out_alone(available: np.ndarray, validating: np.ndarray, val_split: str) -> list[str]:
    """Say where rows that validate are of classes that no other row has, or of few classes alone."""
    found, absent = np.flatnonzero(validating), available[validating == 0]
    lacking, rows = np.flatnonzero((validating > 0) & (available == 0)), validating.sum()
    other = "--val-split stratified"
    if val_split == STRATIFIED or (lacking.size and (validating[lacking] == 1).all()):
        other = "--val-fraction 0, or give more images of them"
    if lacking.size:
        count = f"{validating[lacking].sum()} of {rows} validation rows"
        return [f"{count} are of {_named(lacking)}, and no training row is: use {other}"]
    by_chance = (1 - rows / (rows + available.sum())) ** absent.sum()
    if val_split != STRATIFIED and rows and by_chance < RARE:
        present = np.count_nonzero(available + validating)
        return [f"all {rows} validation rows are of {_named(found)}, of {present} classes: use {other}"]
    return []


def _range(half: str, images: np.ndarray) -> str:
    return f"{half} pixels are from {images.min():g} to {images.max():g}"


def _sample(images: np.ndarray) -> np.ndarray:
    """Every k-th image: about `SAMPLE` pixels, and `ENOUGH` images where there are so many."""
    return images[:: max(1, min(images.size // SAMPLE, len(images) // ENOUGH))]


def _largest(images: np.ndarray) -> float:
    """Return the largest magnitude of a pixel."""
    return max(float(images.max()), -float(images.min()))


def _named(classes: Sequence[int] | np.ndarray) -> str:
    """Classes in words, ascending: a run of more than two as its ends, and no more than five of these."""
    runs: list[list[int]] = []
    for label in map(int, classes):
        if runs and label == runs[-1][-1] + 1:
            runs[-1].append(label)
        else:
            runs.append([label])
    words = [word for run in runs for word in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))]
    more = [f"{len(words) - 5} more"] if len(words) > 5 else []
    return f"class{'es' if len(classes) > 1 else ''} {', '.join(words[:5] + more)}"
