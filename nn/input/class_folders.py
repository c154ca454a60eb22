"""A folder of images for each class: PNG and JPEG files, read by Pillow.

    train/cat/1.png  train/cat/2.jpg  train/dog/1.png  test/cat/3.png  test/dog/2.png

``train`` and ``test`` (or ``val``) may be missing: then the classes lie in the folder itself, without a test
set. Class folders are numbered in the order of their names.
"""

import io
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from nn.files.packages import need
from nn.files.read import MOST_INFLATION, file_size, reading
from nn.input.dataset import DEFAULT, NO_TEST, Dataset, Part, Wanted, validate
from pyrt.errors import UserError, shown

ENDINGS = (".png", ".jpg", ".jpeg")
MODES = {"L": "L", "1": "L", "LA": "L", "RGB": "RGB", "P": "RGB", "RGBA": "RGBA"}
"""What Pillow calls the kinds of pixels that are taken, of 8 bits a channel, and what each is turned into."""

TRAIN, TESTS = "train", ("test", "val")


def is_here(folder: Path) -> bool:
    """Return whether an image lies in one of the folder's folders, or one level further down."""
    return any(holds_image(one) or any(map(holds_image, folders(one))) for one in folders(folder))


def load(folder: Path, wanted: Wanted = DEFAULT) -> Dataset:
    """Read the images in ``folder``, all of one size and kind.

    Raises ``UserError`` where one cannot be read, or is not like the others, and without Pillow.
    """
    need("PIL.Image", f"{shown(folder)}: a folder of images", "Pillow")
    halves = {one.name: one for one in folders(folder)}
    training = halves.get(TRAIN, folder)
    classes = [one.name for one in folders(training)]
    tests = [halves[name] for name in TESTS if name in halves and TRAIN in halves]
    test = half(tests[0], classes) if tests else NO_TEST
    return validate(shown(folder), *half(training, classes), *test, wanted)


def folders(folder: Path) -> list[Path]:
    """List the folders in a folder by name, without hidden ones."""
    with reading(folder):
        return sorted(one for one in folder.iterdir() if one.is_dir() and not one.name.startswith("."))


def half(folder: Path, classes: list[str]) -> tuple[Part, Part]:
    """Read the class folders in ``folder``; ``classes`` are the names of the training set's."""
    files: list[Path] = []
    labels: list[int] = []
    found = folders(folder)
    if not found:
        raise UserError(f"{shown(folder)}: no class folders: give a folder of images for each class")
    for one in found:
        if one.name not in classes:
            raise UserError(f"{shown(one)}: no training images are of this class: add some, or remove it")
        with reading(one):
            names = sorted(name for name in os.listdir(one) if is_image(name))
        if not names:
            raise UserError(
                f"{shown(one)}: no PNG or JPEG file in it: add images of this class, or remove it"
            )
        files += [one / name for name in names]
        labels += [classes.index(one.name)] * len(names)
    return Part(shown(folder), images(files)), Part(f"{shown(folder)}, labels", np.array(labels))


def holds_image(folder: Path) -> bool:
    """Return whether a file in the folder itself has the name of an image."""
    with reading(folder):
        return any(map(is_image, os.listdir(folder)))


def is_image(name: str) -> bool:
    """Return whether a file's name is that of an image; hidden files are not."""
    return name.lower().endswith(ENDINGS) and not name.startswith(".")


def images(files: list[Path]) -> np.ndarray:
    """Read images that are alike: (n, h, w) uint8, or (n, h, w, c)."""
    first = pixels(files[0])
    pile = np.empty((len(files), *first.shape), np.uint8)
    for place, file in enumerate(files):
        image = pixels(file)
        if image.shape != first.shape:
            raise UserError(
                f"{shown(file)}: is {_words(image)}, and {shown(files[0])} is {_words(first)}: "
                "give images of one size, all grey or all in colour"
            )
        pile[place] = image
    return pile


def _words(image: np.ndarray) -> str:
    height, width = image.shape[:2]
    kind = {2: "grey", 3: "RGB", 4: "RGBA"}[image.shape[2] if image.ndim == 3 else 2]
    return f"{height} x {width} pixels in {kind}"


def pixels(file: Path) -> np.ndarray:
    """Read one image: (h, w) uint8 if it is grey, else (h, w, c). Raises ``UserError`` if it is damaged."""
    from PIL import Image

    file_size(file)
    with reading(file):
        content = file.read_bytes()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content), formats=("PNG", "JPEG")) as image:
                _require_plausible(file, image, len(content))
                mode = MODES[image.mode]
                return np.asarray(image if image.mode == mode else image.convert(mode))
    except (UserError, MemoryError):
        raise
    except Exception as error:  # Pillow raises nearly anything on bytes that it does not expect
        raise UserError(f"{shown(file)}: is damaged or no PNG or JPEG: save it again") from error


def _require_plausible(file: Path, image: Any, size: int) -> None:
    """Raise ``UserError`` where the pixels are not of 8 bits, or more than the file can hold."""
    if image.mode not in MODES:
        raise UserError(f"{shown(file)}: pixels of kind {image.mode}: save it in grey or RGB, of 8 bits")
    most = 8 * size * MOST_INFLATION  # of one bit a pixel, all alike
    if image.width * image.height * len(image.getbands()) > most:
        raise UserError(
            f"{shown(file)}: {image.height} x {image.width} pixels are more than the file holds: "
            "it is damaged; save it again"
        )
