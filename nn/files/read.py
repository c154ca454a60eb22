"""What the readers share about files that may be damaged: naming them, and turning failures into one line."""

import errno
import gzip
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pyrt.errors import UserError, shown


class Header(NamedTuple):
    """What a file says that one of its arrays is."""

    shape: tuple[int, ...]
    dtype: np.dtype


class TooLarge(UserError):
    """What is in a file does not fit into memory."""


MOST_INFLATION = 1032  # deflate (gzip, zip) turns one byte into at most this many


def file_size(path: Path) -> int:
    """Return a regular file's size in bytes. Raises ``UserError`` if it is not one or ``stat`` fails."""
    with reading(path):
        size = path.stat().st_size
        regular = path.is_file()
    if not regular:
        raise UserError(f"{shown(path)}: is not a file: give the data file itself")
    return size


def read_small(path: Path, most: int) -> bytes:
    """Read a regular file of at most ``most`` bytes.

    Raises OSError if it cannot be read, ValueError if it is larger. Opens nothing else: a pipe would be
    waited for.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "is not a file")
    if found.st_size > most:
        raise ValueError(f"has more than {most} bytes")
    with path.open("rb") as file:
        return file.read(most)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what fails while ``path`` is opened and read into a ``UserError`` that names it."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{shown(path)}: is damaged or cut short ({error}): get the file again") from error
    except MemoryError as error:
        raise TooLarge(f"{shown(path)}: does not fit into memory: give a smaller one") from error
    except OSError as error:
        raise UserError(
            f"{shown(path)}: cannot be read ({error.strerror or error}): check the path and its permissions"
        ) from error
