"""Reads arrays from an .npz that may be damaged, or made to do harm.

An .npz is a zip of .npy files. NumPy sets memory aside for whatever a .npy's header gives, its own length
and the array's, so each header is compared with the sizes of the zip first. Nothing is ever unpickled.
"""

import io
import math
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.lib import format as npy

from nn.files.read import MOST_INFLATION, Header, file_size, reading
from pyrt.errors import UserError, shown

HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
MOST_DIMENSIONS = 32  # that all NumPys have
MOST_HEADER = 1 << 14  # bytes of a member that may hold it: NumPy takes no more than 10,000 characters
LOCAL_LENGTHS = 26  # where a member's own header, before its bytes, has the lengths of its name and of more
RATIOS = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: MOST_INFLATION}  # np.savez and np.savez_compressed

T = TypeVar("T")


def headers(path: Path, wanted: Callable[[str], bool]) -> dict[str, Header]:
    """Read the headers of the wanted arrays, not their data; UserError if the file is damaged."""
    return _each(path, wanted, checked_header)


def arrays(path: Path, wanted: Callable[[str], bool]) -> dict[str, np.ndarray]:
    """Read the arrays of an .npz whose names are wanted. Raises UserError if the file is damaged.

    Zeros are packed up to 1032 to 1: look at `headers` first if something is known of what there should be.
    """
    return _each(path, wanted, read)


def _each(
    path: Path,
    wanted: Callable[[str], bool],
    take: Callable[[Path, zipfile.ZipFile, zipfile.ZipInfo, int], T],
) -> dict[str, T]:
    size = file_size(path)
    with reading(path), open_zip(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        return {name: take(path, archive, info, size) for name, info in members.items() if wanted(name)}


def open_zip(path: Path) -> zipfile.ZipFile:
    """Open the zip at ``path``. Raises ``UserError`` if it is none."""
    try:
        return zipfile.ZipFile(path)
    except OSError:
        raise  # not to be read at all
    except Exception as error:  # zipfile raises more than BadZipFile on bytes that it does not expect
        raise UserError(
            f"{shown(path)}: is not a whole .npz file: save it with np.savez, or get it again"
        ) from error


def read(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, size: int) -> np.ndarray:
    """Read the array in one member of an archive of ``size`` bytes."""
    checked_header(path, archive, info, size)
    try:
        with _quietly(), archive.open(info) as member:
            return npy.read_array(member, allow_pickle=False)
    except ValueError as error:
        raise UserError(
            f"{_where(path, info)} is damaged or no array: save it again with np.savez"
        ) from error


def mapped(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, size: int) -> np.ndarray:
    """Map the array in a member that is not packed. Raises ``UserError`` if its header is damaged.

    Nothing else is read: the checksum is not compared.
    """
    header, is_fortran, length = _checked(path, archive, info, size)
    with open(path, "rb") as file:
        file.seek(info.header_offset + LOCAL_LENGTHS)
        name, extra = struct.unpack("<HH", file.read(4))
    start = info.header_offset + LOCAL_LENGTHS + 4 + name + extra
    if start + info.file_size > size:
        raise UserError(f"{_where(path, info)} is cut short: get the file again")
    return np.memmap(path, header.dtype, "r", start + length, header.shape, "F" if is_fortran else "C")


def checked_header(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, size: int) -> Header:
    """Read a member's header. Raises ``UserError`` unless it fits the member's size and the archive's."""
    return _checked(path, archive, info, size)[0]


def _checked(
    path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, size: int
) -> tuple[Header, bool, int]:
    """Read a member's header; return it, whether columns are contiguous, and its length in bytes."""
    where = _where(path, info)
    if info.compress_type not in RATIOS:
        raise UserError(f"{where} is packed in a way NumPy does not use: save it again with np.savez")
    try:
        with archive.open(info) as member:
            start = io.BytesIO(member.read(MOST_HEADER))
        with _quietly():
            shape, is_fortran, dtype = HEADERS[npy.read_magic(start)](start)
        if len(shape) > MOST_DIMENSIONS or not all(type(n) is int and 0 <= n < 2**63 for n in shape):
            raise ValueError(shape)
    except Exception as error:  # NumPy evaluates the header as Python, so almost anything can come of it
        raise UserError(f"{where} is damaged or no array: save it again with np.savez") from error
    if dtype.hasobject:
        raise UserError(
            f"{where} holds Python objects, which are never unpickled: save it as an array of numbers"
        )
    promised = start.tell() + math.prod(shape) * dtype.itemsize
    if promised != info.file_size or promised > size * RATIOS[info.compress_type]:
        raise UserError(
            f"{where}: the header promises {promised} bytes (shape {shape!s:.80}), which the file does "
            "not hold: it is cut short or damaged; get it again"
        )
    return Header(shape, dtype), is_fortran, start.tell()


def _where(path: Path, info: zipfile.ZipInfo) -> str:
    return f"{shown(path)}: {shown(info.filename):.80}"


@contextmanager
def _quietly() -> Iterator[None]:
    """Without what Python and NumPy warn of when the text of a header is odd: what comes of it is checked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
