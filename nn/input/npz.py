"""A NumPy .npz in Keras's layout: arrays x_train, y_train and, both or neither, x_test, y_test."""

import math
import zipfile
from pathlib import Path

import numpy as np

from nn.files.npz import checked_header, mapped, open_zip, read
from nn.files.read import file_size, reading
from nn.input.dataset import DEFAULT, LAST, Dataset, Part, Wanted, validate
from pyrt.errors import UserError, shown

LEAST = 1 << 30  # bytes from which an array of images is mapped, not read
NAMES = ("x_train", "y_train", "x_test", "y_test")


def load(path: Path, wanted: Wanted = DEFAULT) -> Dataset:
    """Read the data set in the .npz at ``path``; other arrays in it are left alone.

    x_*: (n, h, w), (n, h, w, c), or (n, c, h, w) where the channels are first, or (n, D), numbers.
    y_*: (n,) or (n, 1) integers.
    Raises ``UserError`` when the file is damaged, or arrays are missing or not of this form.

    Large images that are uint8 and not packed stay in the file, which is mapped (nn/input/mapped.py).
    """
    size = file_size(path)
    with reading(path), open_zip(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        for name in ("x_train", "y_train"):
            if name not in members:
                raise UserError(
                    f"{shown(path)}: no array {name}: save x_train, y_train, and x_test, y_test if any"
                )
        parts = {
            name: Part(f"{shown(path)}, array {name}", _array(path, archive, members[name], size, wanted))
            for name in NAMES
            if name in members
        }
    test = parts.get("x_test"), parts.get("y_test")
    return validate(shown(path), parts["x_train"], parts["y_train"], *test, wanted)


def _array(
    path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, size: int, wanted: Wanted
) -> np.ndarray:
    """Read an array, or map it: one that can be used as it lies in the file, and is large."""
    shape, dtype = checked_header(path, archive, info, size)
    is_as_used = dtype == np.uint8 and (wanted.channels == LAST or len(shape) < 4)
    is_plain = info.compress_type == zipfile.ZIP_STORED
    take = mapped if is_as_used and is_plain and math.prod(shape) >= LEAST else read
    return take(path, archive, info, size)
