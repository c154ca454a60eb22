"""``--augment``: training images that are mirrored and moved at random, each epoch in another way.

What happens to an image follows from the seed of the run, the epoch and the image's row in the training set,
so it is the same on any ranks, wherever the set lies, and after a resume. Words 0, 1 and 2 of Philox's
(nn/model/philox.py) decide for

    counter (row, 0, epoch, 2^32 - 1)    key (seed lower half, upper half)

Word 0 below 2^31: the image is mirrored left-right. Words 1 and 2, times 2N + 1 over 2^32, less N: it then
moves so many pixels down, and right. Zeros come in. Kernels do the same (kernels/nn/augment.cu).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from nn.model.dropout import halves
from nn.model.philox import philox
from pyrt.errors import UserError, shown

_PLACE = 0xFFFFFFFF
"""In the counter, where dropout has the place of a layer: no network has so many."""

_WORDS = "must be flip, or shift and a number of pixels from 1 on, or both, as flip,shift2"

LARGEST_SHIFT = 2**15


@dataclass(frozen=True)
class Augmentation:
    """What is done to training images: they are mirrored with probability 1/2, and moved by -shift..shift."""

    flip: bool = False
    shift: int = 0

    @classmethod
    def read(cls, text: str) -> Augmentation:
        """Read the words of ``--augment``. Raises UserError for others."""
        found: dict[str, int] = {}
        for word in text.split(","):
            match = re.fullmatch("(flip)|(shift)([1-9][0-9]{0,5})", word)
            if match is None or int(match[3] or 1) > LARGEST_SHIFT:
                raise UserError(f"--augment {shown(text)}: {_WORDS}")
            name = match[1] or match[2]
            if name in found:
                raise UserError(f"--augment {shown(text)}: {name} comes twice: leave one of them out")
            found[name] = int(match[3] or 1)
        return cls("flip" in found, found.get("shift", 0))

    def __str__(self) -> str:
        return ",".join(["flip"] * self.flip + [f"shift{self.shift}"] * (self.shift > 0))


@dataclass(frozen=True)
class Augmenter:
    """The augmentation of a run on images (height, width, channels)."""

    augmentation: Augmentation
    height: int
    width: int
    channels: int
    seed: int
    batches: int
    """Of an epoch."""

    @classmethod
    def of(cls, text: str, image: tuple[int, ...], seed: int, batches: int) -> Augmenter:
        """Read ``--augment`` for images of this shape. Raises UserError where they cannot be augmented so."""
        augmentation = Augmentation.read(text)
        if len(image) < 2:
            raise UserError(
                f"--augment {text}: the height and width of an image are not known: give data of shape "
                "(n, h, w) or (n, h, w, c), or leave it out"
            )
        height, width, channels = (*image, 1)[:3]
        if augmentation.shift >= min(height, width):
            raise UserError(
                f"--augment {text}: can move all of an image of {height} x {width} pixels out of it: "
                f"give a shift below {min(height, width)}, or none"
            )
        return cls(augmentation, height, width, channels, seed, batches)

    @property
    def pixels(self) -> int:
        """Numbers of an image."""
        return self.height * self.width * self.channels

    def drawn(self, rows: np.ndarray, epoch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draw for rows of the training set whether each is mirrored, and how far it moves down and right."""
        words = philox((np.asarray(rows), 0, epoch, _PLACE), halves(self.seed))
        shift, span = self.augmentation.shift, np.uint64(2 * self.augmentation.shift + 1)
        down, right = ((word * span >> np.uint64(32)).astype(np.int64) - shift for word in words[1:3])
        return self.augmentation.flip & (words[0] < 2**31), down, right

    def augmented(self, images: np.ndarray, rows: np.ndarray, epoch: int) -> np.ndarray:
        """Return images (n, D) as they are in an epoch; they are these rows of the training set."""
        flipped, down, right = (drawn[:, None] for drawn in self.drawn(rows, epoch))
        y, x = np.arange(self.height) - down, np.arange(self.width) - right
        is_there = _within(y, self.height)[:, :, None] & _within(x, self.width)[:, None, :]
        x = np.where(flipped, self.width - 1 - x, x)
        y, x = y.clip(0, self.height - 1), x.clip(0, self.width - 1)
        pictures = images.reshape(-1, self.height, self.width, self.channels)
        moved = pictures[np.arange(len(images))[:, None, None], y[:, :, None], x[:, None, :]]
        return np.where(is_there[..., None], moved, images.dtype.type(0)).reshape(images.shape)


def _within(places: np.ndarray, size: int) -> np.ndarray:
    return (places >= 0) & (places < size)
