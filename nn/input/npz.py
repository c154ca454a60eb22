"""A NumPy .npz in Keras's layout: arrays x_train, y_train and, both or neither, x_test, y_test."""

from pathlib import Path

from nn.files.npz import open_zip, read
from nn.files.read import file_size, reading
from nn.input.dataset import DEFAULT, Dataset, Part, Wanted, validate
from pyrt.errors import UserError, shown

NAMES = ("x_train", "y_train", "x_test", "y_test")


def load(path: Path, wanted: Wanted = DEFAULT) -> Dataset:
    """Read the data set in the .npz at ``path``; other arrays in it are left alone.

    x_*: (n, h, w), (n, h, w, c), or (n, c, h, w) where the channels are first, or (n, D), numbers.
    y_*: (n,) or (n, 1) integers.
    Raises ``UserError`` when the file is damaged, or arrays are missing or not of this form.
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
            name: Part(f"{shown(path)}, array {name}", read(path, archive, members[name], size))
            for name in NAMES
            if name in members
        }
    test = parts.get("x_test"), parts.get("y_test")
    return validate(shown(path), parts["x_train"], parts["y_train"], *test, wanted)
