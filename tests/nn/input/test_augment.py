"""What --augment does to images, against a loop over pixels; which words it takes."""

from __future__ import annotations

import numpy as np
import pytest

from nn.input.augment import Augmentation, Augmenter
from nn.model.philox import philox
from pyrt.errors import UserError


def changed(pixels: np.ndarray, flipped: bool, down: int, right: int) -> np.ndarray:
    """An image (height, width, channels), pixel by pixel."""
    height, width, _ = pixels.shape
    result = np.zeros_like(pixels)
    for y in range(height):
        for x in range(width):
            if 0 <= y + down < height and 0 <= x + right < width:
                result[y + down, x + right] = pixels[y, width - 1 - x if flipped else x]
    return result


@pytest.mark.parametrize("text", ["flip", "shift1", "flip,shift3"])
@pytest.mark.parametrize("dtype", ["u1", "f4", "f8"])
@pytest.mark.parametrize("image", [(4, 5), (7, 4, 3)])
def test_images_are_changed_as_pixel_by_pixel(text: str, dtype: str, image: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    images, rows = rng.integers(1, 256, (50, *image)).astype(dtype), rng.integers(0, 2**31 - 1, 50)
    augmenter = Augmenter.of(text, image, 3, 10)
    result = augmenter.augmented(images.reshape(50, -1), rows, 5)
    pictures = images.reshape(50, *(*image, 1)[:3])
    truth = [changed(*one) for one in zip(pictures, *augmenter.drawn(rows, 5), strict=True)]
    assert result.dtype == dtype
    assert np.array_equal(result, np.reshape(truth, (50, -1)))


def test_what_is_drawn() -> None:
    """By the words of Philox, for each seed, epoch and row; as often each way. The bounds are five sigma."""
    count, rows = 20000, np.arange(20000)
    augmenter = Augmenter.of("flip,shift2", (28, 28), 2**32 + 7, 10)
    flipped, down, right = augmenter.drawn(rows, 4)
    words = philox((123, 0, 4, 2**32 - 1), (7, 1))
    assert flipped[123] == (words[0] < 2**31)
    assert (down[123], right[123]) == tuple(int(word) * 5 // 2**32 - 2 for word in words[1:3])
    assert abs(flipped.sum() - count / 2) < 5 * np.sqrt(count / 4)
    for moved in (down, right):
        values, counts = np.unique(moved, return_counts=True)
        assert values.tolist() == [-2, -1, 0, 1, 2]
        assert (abs(counts - count / 5) < 5 * np.sqrt(count * 0.16)).all()
    assert abs(np.corrcoef([flipped, down, right])[np.triu_indices(3, 1)]).max() < 5 / np.sqrt(count)
    others = (augmenter.drawn(rows, 5), Augmenter.of("flip,shift2", (28, 28), 7, 10).drawn(rows, 4))
    assert all(0.4 < (other[0] == flipped).mean() < 0.6 for other in others)


def test_words() -> None:
    assert Augmentation.read("flip") == Augmentation(flip=True)
    assert Augmentation.read("shift12") == Augmentation(shift=12)
    assert str(Augmentation.read("shift2,flip")) == "flip,shift2"


@pytest.mark.parametrize(
    "text", ["", "rotate", "shift", "shift0", "shift-1", "shift1.5", "flip, flip", "shift99999"]
)
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(
        UserError, match=f"--augment .*{text}.*: must be flip, or shift and a number of pixels"
    ):
        Augmentation.read(text)


@pytest.mark.parametrize("text", ["flip,flip", "shift1,flip,shift2"])
def test_a_word_comes_once(text: str) -> None:
    with pytest.raises(UserError, match="comes twice: leave one of them out"):
        Augmentation.read(text)


@pytest.mark.parametrize(
    "text, image, message",
    [
        ("flip", (784,), "the height and width of an image are not known: give data of shape"),
        (
            "shift3",
            (3, 9),
            "can move all of an image of 3 x 9 pixels out of it: give a shift below 3, or none",
        ),
        (
            "flip,shift1",
            (5, 1, 3),
            "can move all of an image of 5 x 1 pixels out of it: give a shift below 1, or none",
        ),
    ],
)
def test_images_that_cannot_be_augmented(text: str, image: tuple[int, ...], message: str) -> None:
    with pytest.raises(UserError, match=f"--augment {text}: {message}"):
        Augmenter.of(text, image, 0, 1)
