"""Parameters in a .safetensors file (https://github.com/huggingface/safetensors), by its own package.

The file begins with a JSON header of names, types, shapes and places, which the package checks: arrays fill
the rest of the file without gaps. Nothing is packed or ever unpickled. The header's metadata describe the
run. The format has no checksums: the metadata of a file of ours have the digest of each array.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from nn.files import run_metadata
from nn.files.digest import digest
from nn.files.packages import need
from nn.files.read import Header, file_size, reading
from pyrt.errors import UserError, shown

_DTYPES = {
    **{f"F{bits}": np.dtype(f"<f{bits // 8}") for bits in (16, 32, 64)},
    **{f"I{bits}": np.dtype(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"U{bits}": np.dtype(f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
}
"""The types of the format that are numbers of NumPy."""

_DIGESTS = "sha256"
"""In the metadata: the digest of each array, by name."""


def require_installed(path: Path) -> None:
    """Raise UserError where the package that reads and writes ``path`` is missing."""
    need("safetensors", shown(path))


def headers(path: Path, wanted: Callable[[str], bool]) -> dict[str, Header]:
    """Return the shapes and types of those arrays whose names are wanted; UserError for a damaged file."""
    with _opened(path) as file:
        return _headers(path, file, wanted)


def arrays(path: Path, wanted: Callable[[str], bool]) -> dict[str, np.ndarray]:
    """Read the arrays whose names are wanted; UserError where the file is damaged."""
    with _opened(path) as file:
        found = {name: _array(path, file, name) for name in _headers(path, file, wanted)}
        told = run_metadata.parsed(_metadata_text(file)).get(_DIGESTS)
    digests = told if isinstance(told, dict) else {}
    for name, array in found.items():
        if digests and digests.get(name) != digest([array]):
            raise UserError(f"{shown(path)}: {name} is not what was saved: it is damaged; get the file again")
    return found


def metadata_text(path: Path) -> str:
    """Read the text; empty where there is none."""
    with _opened(path) as file:
        return _metadata_text(file)


def write(file: BinaryIO, parameters: Mapping[str, np.ndarray], run: Mapping[str, Any]) -> None:
    """Write all of a file; the package makes it in memory first. It must be installed."""
    from safetensors.numpy import save

    # The package takes memory as it lies: arrays of another order would be written wrong.
    plain = {name: np.asarray(array, order="C") for name, array in parameters.items()}
    digests = {name: digest([array]) for name, array in plain.items()}
    # One entry: several have no fixed order.
    metadata = {run_metadata.NAME: json.dumps({**run, _DIGESTS: digests})}
    file.write(save(plain, metadata))


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a whole file; UserError where it is none."""
    package = need("safetensors", shown(path))
    file_size(path)
    with reading(path):
        with path.open("rb"):  # what the system says of it, in Python's words
            pass
        try:
            file = package.safe_open(path, framework="numpy")
        except package.SafetensorError as error:
            raise UserError(f"{shown(path)}: is not a whole .safetensors file: get it again") from error
        with file:
            yield file


def _headers(path: Path, file: Any, wanted: Callable[[str], bool]) -> dict[str, Header]:
    found = {}
    for name in filter(wanted, file.keys()):
        part = file.get_slice(name)
        kind, shape = part.get_dtype(), tuple(part.get_shape())
        if kind not in _DTYPES:
            raise UserError(
                f"{shown(path)}: {shown(name):.80} is of type {kind}, which is not read: save it as F32"
            )
        found[name] = Header(shape, _DTYPES[kind])
    return found


def _array(path: Path, file: Any, name: str) -> np.ndarray:
    try:
        array: np.ndarray = file.get_tensor(name)
    except ValueError as error:  # a shape that NumPy cannot have
        raise UserError(f"{shown(path)}: {shown(name):.80} is damaged or no array") from error
    return array


def _metadata_text(file: Any) -> str:
    text = (file.metadata() or {}).get(run_metadata.NAME, "")
    return text if len(text) <= run_metadata.LONGEST else ""
