"""Parameters in an .npz: an array each, and the text of the metadata as one more."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from nn.files import npz, run_metadata
from nn.files.read import Header
from nn.files.write import write_arrays


def require_installed(path: Path) -> None:
    """Do nothing: NumPy is always there."""


def headers(path: Path, wanted: Callable[[str], bool]) -> dict[str, Header]:
    """Return the shapes and types of those arrays whose names are wanted; UserError for a damaged file."""
    return npz.headers(path, wanted)


def arrays(path: Path, wanted: Callable[[str], bool]) -> dict[str, np.ndarray]:
    """Read the arrays whose names are wanted; UserError where the file is damaged."""
    return npz.arrays(path, wanted)


def metadata_text(path: Path) -> str:
    """Read the text; empty where there is none, or something else under its name."""
    is_metadata = run_metadata.NAME.__eq__
    header = npz.headers(path, is_metadata).get(run_metadata.NAME)
    if header is None or header.shape != () or header.dtype.kind != "U":
        return ""
    if header.dtype.itemsize > run_metadata.LONGEST:
        return ""
    return str(npz.arrays(path, is_metadata)[run_metadata.NAME])


def write(file: BinaryIO, parameters: Mapping[str, np.ndarray], run: Mapping[str, Any]) -> None:
    """Write all of a file."""
    write_arrays(file, {**parameters, run_metadata.NAME: np.array(json.dumps(run))})
