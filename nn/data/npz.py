"""A NumPy .npz in Keras's layout: arrays x_train, y_train and, both or neither, x_test, y_test.

An .npz is a zip of .npy files. NumPy sets memory aside for whatever shape a .npy's header gives, so each
header is compared with the sizes of the zip first. Nothing is ever unpickled.
"""

import math
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from nn.data.dataset import Dataset, Part, validate
from nn.data.files import MOST_INFLATION, file_size, reading, shown
from pyrt.errors import UserError

NAMES = ("x_train", "y_train", "x_test", "y_test")
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
RATIOS = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: MOST_INFLATION}  # np.savez and np.savez_compressed


def load(path: Path) -> Dataset:
    """Read the data set in the .npz at ``path``; other arrays in it are left alone.

    x_*: (n, h, w), (n, h, w, 1) or (n, D), numbers. y_*: (n,) integers.
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
    return validate(shown(path), parts["x_train"], parts["y_train"], parts.get("x_test"), parts.get("y_test"))


def arrays(path: Path, wanted: Callable[[str], bool]) -> dict[str, np.ndarray]:
    """The arrays of an .npz whose names are wanted; UserError where the file is damaged."""
    size = file_size(path)
    with reading(path), open_zip(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        return {name: read(path, archive, info, size) for name, info in members.items() if wanted(name)}


def open_zip(path: Path) -> zipfile.ZipFile:
    """The zip at ``path``; ``UserError`` when it is none."""
    try:
        return zipfile.ZipFile(path)
    except OSError:
        raise  # not to be read at all
    except Exception as error:  # zipfile raises more than BadZipFile on bytes that it does not expect
        raise UserError(
            f"{shown(path)}: is not a whole .npz file: save it with np.savez, or get it again"
        ) from error


def read(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, size: int) -> np.ndarray:
    """The array in one member of an archive of ``size`` bytes."""
    where = f"{shown(path)}: {shown(info.filename)}"
    check_header(where, archive, info, size)
    try:
        with archive.open(info) as member:
            return npy.read_array(member, allow_pickle=False)
    except ValueError as error:
        raise UserError(f"{where} is damaged or no array: save it again with np.savez") from error


def check_header(where: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo, size: int) -> None:
    """Raise ``UserError`` unless the member's header agrees with its size, and the archive can hold it."""
    if info.compress_type not in RATIOS:
        raise UserError(f"{where} is packed in a way NumPy does not use: save it again with np.savez")
    try:
        with archive.open(info) as member:
            shape, _, dtype = HEADERS[npy.read_magic(member)](member)
            promised = member.tell() + math.prod(shape) * dtype.itemsize
    except Exception as error:  # NumPy evaluates the header as Python, so almost anything can come of it
        raise UserError(f"{where} is damaged or no array: save it again with np.savez") from error
    if dtype.hasobject:
        raise UserError(
            f"{where} holds Python objects, which are never unpickled: save it as an array of numbers"
        )
    if promised != info.file_size or promised > size * RATIOS[info.compress_type]:
        raise UserError(
            f"{where}: the header promises {promised} bytes (shape {shape}), which the file does not hold: "
            "it is cut short or damaged; get it again"
        )
