"""IDX, the format of MNIST and its relatives (Fashion-MNIST, KMNIST, EMNIST): one array a file, raw or gzip.

A file is two zero bytes, a type code, the number of dimensions, each dimension as a big-endian uint32, and
the elements, big-endian and row-major. Nothing in a file is trusted: the header's size is compared with what
the file can hold before memory is set aside for it.
"""

import gzip
import math
import os
import re
from pathlib import Path
from typing import IO, cast

import numpy as np

from nn.files.read import MOST_INFLATION, file_size, reading
from nn.input.dataset import DEFAULT, Dataset, Part, Wanted, validate
from pyrt.errors import UserError, shown

GZIP_MAGIC = b"\x1f\x8b"
TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
MOST_DIMENSIONS = 4  # (n, height, width, channels)
CHUNK = 1 << 20

# [prefix-]train-images-idx3-ubyte[.gz] and its three companions; "test" is EMNIST's word for t10k
NAME = re.compile(
    r"(?P<prefix>(?:[^.].*-)?)(?P<split>train|t10k|test)-(?P<kind>images|labels)[-.]idx[1-4]-ubyte(?:\.gz)?"
)
Role = tuple[str, str]  # ("train" or "test", "images" or "labels")


def load(folder: Path, wanted: Wanted = DEFAULT) -> Dataset:
    """Read the data set in ``folder``: training images and labels, test images and labels if they are there.

    Raises ``UserError`` when the folder holds no data set or several, or a file is damaged or does not fit.
    """
    files = find(folder)
    parts = {role: Part(shown(path), read(path)) for role, path in files.items()}
    return validate(
        shown(folder),
        parts["train", "images"],
        parts["train", "labels"],
        parts.get(("test", "images")),
        parts.get(("test", "labels")),
        wanted,
    )


def find(folder: Path) -> dict[Role, Path]:
    """Find the files of the one data set in ``folder``, by role; the two training files are among them."""
    sets = find_sets(folder)
    if not sets:
        raise UserError(
            f"{shown(folder)}: no data here: looked for train-images-idx3-ubyte, train-labels-idx1-ubyte, "
            "t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, with or without .gz, or a prefix such as "
            "emnist-balanced-; for CIFAR's data_batch_1.bin or train.bin; and for a folder of PNG or JPEG "
            "images for each class, here or in train"
        )
    if len(sets) > 1:
        names = ", ".join(
            shown(f"{prefix}train-images..." if prefix == "" else f"{prefix}*") for prefix in sorted(sets)
        )
        raise UserError(f"{shown(folder)}: {len(sets)} data sets ({names}): keep one in the directory")
    [(prefix, files)] = sets.items()
    for kind, name in (("images", "train-images-idx3-ubyte"), ("labels", "train-labels-idx1-ubyte")):
        if ("train", kind) not in files:
            raise UserError(
                f"{shown(folder)}: no training {kind}: add {shown(prefix)}{name} (or the same with .gz)"
            )
    return files


def find_sets(folder: Path) -> dict[str, dict[Role, Path]]:
    """Group the files in ``folder`` by prefix, then by role; of several spellings take the best."""
    with reading(folder):
        names = os.listdir(folder)
    sets: dict[str, dict[Role, Path]] = {}
    for path in sorted((folder / name for name in names), key=preference):
        if match := NAME.fullmatch(path.name):
            role = ("train" if match["split"] == "train" else "test", match["kind"])
            sets.setdefault(match["prefix"], {}).setdefault(role, path)
    return sets


def preference(path: Path) -> tuple[bool, bool, str]:
    """Sorts files before directories of that name (unpackers make them), and raw before .gz (faster)."""
    return os.path.isdir(path), path.suffix == ".gz", path.name


def read(path: Path) -> np.ndarray:
    """Read the array in one IDX file, in its own shape (1 to 4 dimensions) and the native form of its type.

    Gzip is recognised by its first bytes, not by the name. Raises ``UserError`` when the file cannot be read,
    is no IDX file, or holds more or less than its header says.
    """
    size = file_size(path)
    with reading(path), open(path, "rb") as file:
        packed = file.read(2) == GZIP_MAGIC
        file.seek(0)
        if not packed:
            return read_array(path, file, size)
        with gzip.GzipFile(fileobj=file) as unpacked:
            return read_array(path, cast(IO[bytes], unpacked), size * MOST_INFLATION)


def read_array(path: Path, stream: IO[bytes], most: int) -> np.ndarray:
    """Read the header and the elements of an IDX ``stream`` that can hold ``most`` bytes."""
    dtype, shape = read_header(path, stream)
    promised = math.prod(shape) * dtype.itemsize
    if promised > most:
        raise UserError(wrong_size(path, shape, promised, f"at most {most}"))
    data = read_up_to(stream, promised + 1)
    if len(data) != promised:
        raise UserError(wrong_size(path, shape, promised, str(len(data)) if len(data) < promised else "more"))
    array = np.frombuffer(data, dtype).astype(dtype.newbyteorder("="), copy=False)
    try:
        return array.reshape(shape)
    except ValueError as error:  # no elements, but sizes whose product is beyond 64 bits
        raise UserError(
            f"{shown(path)}: the header's shape {shape} is that of no array: get the file again"
        ) from error


def read_header(path: Path, stream: IO[bytes]) -> tuple[np.dtype, tuple[int, ...]]:
    """Read the type and shape in the header of an IDX ``stream``."""
    magic = read_up_to(stream, 4)
    if not magic:
        raise UserError(f"{shown(path)}: is empty: get the file again")
    if (
        magic[:2] != b"\0\0"
        or len(magic) < 4
        or magic[2] not in TYPES
        or not 1 <= magic[3] <= MOST_DIMENSIONS
    ):
        raise UserError(
            f"{shown(path)}: is not an IDX file (it starts with bytes {magic.hex(' ')}): get the file again"
        )
    sizes = read_up_to(stream, 4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise UserError(f"{shown(path)}: is cut short in its header: get the file again")
    return np.dtype(TYPES[magic[2]]), tuple(int(size) for size in np.frombuffer(sizes, ">u4"))


def read_up_to(stream: IO[bytes], most: int) -> bytearray:
    """Read the next ``most`` bytes, fewer at the end; memory grows with what is there, not with ``most``."""
    data = bytearray()
    while len(data) < most and (chunk := stream.read(min(CHUNK, most - len(data)))):
        data += chunk
    return data


def wrong_size(path: Path, shape: tuple[int, ...], promised: int, held: str) -> str:
    """Return the message for a file whose header does not agree with its length."""
    return (
        f"{shown(path)}: the header promises {promised} bytes (shape {shape}), the file holds {held}: "
        "it is cut short or damaged; get the file again"
    )
