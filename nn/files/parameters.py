"""Files of parameters: W1, b1, .., and under ``run`` how they came about; in a format by the name's end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from nn.files import npz_parameters, pyrtz, safetensors
from nn.files.read import Header
from nn.files.run_metadata import parsed
from nn.files.write import write_whole
from nn.model.network import Network
from pyrt.errors import UserError, shown


class Format(Protocol):
    """A way to keep arrays in a file: a module of nn/files has these functions."""

    def require_installed(self, path: Path) -> None:
        """Raise UserError where what reads and writes the format is missing."""

    def headers(self, path: Path, wanted: Callable[[str], bool]) -> dict[str, Header]:
        """Return shapes and types of the arrays whose names are wanted; UserError for a damaged file."""

    def arrays(self, path: Path, wanted: Callable[[str], bool]) -> dict[str, np.ndarray]:
        """Read the arrays whose names are wanted; UserError for a damaged file."""

    def metadata_text(self, path: Path) -> str:
        """Read the text of the metadata; empty where there is none."""

    def write(self, file: BinaryIO, parameters: Mapping[str, np.ndarray], run: Mapping[str, Any]) -> None:
        """Write all of a file."""


_FORMATS: dict[str, Format] = {".safetensors": safetensors, ".pyrtz": pyrtz}
"""By the end of a name; all other files are .npz."""


def _format(path: Path) -> Format:
    return _FORMATS.get(path.suffix.lower(), npz_parameters)


def require_format(option: str, path: Path) -> None:
    """Raise UserError, which names the option, where no file of this format can be read or written here."""
    try:
        _format(path).require_installed(path)
    except UserError as error:
        raise UserError(f"{option} {error}") from None


def load(path: Path, network: Network, dtype: str) -> dict[str, np.ndarray]:
    """Read W1, b1, ..., WL, bL, in ``dtype``. Raises UserError where they do not fit the network."""
    try:
        _require_shapes(path, headers(path), network)
        arrays = _format(path).arrays(path, lambda name: name in network.shapes)
    except UserError as error:
        raise UserError(f"--init {error}") from None
    for name, array in arrays.items():
        with np.errstate(over="ignore", invalid="ignore"):
            arrays[name] = array.astype(dtype)
        if not np.isfinite(arrays[name]).all():
            raise UserError(f"--init {_no_numbers(path, name)} of {dtype}")
    return {name: arrays[name] for name in network.shapes}


def headers(path: Path) -> dict[str, Header]:
    """Return shapes and types of all that the file calls a parameter; UserError where it is damaged."""
    return _format(path).headers(path, _is_parameter)


def _is_parameter(name: str) -> bool:
    return name[:1] in "Wb" and name[1:].isdigit()


def _require_shapes(path: Path, found: Mapping[str, Header], network: Network) -> None:
    """UserError unless these are the network's parameters; nothing larger is read."""
    option = "--hidden" if network.is_dense else "--net"
    for name, shape in network.shapes.items():
        if name not in found or found[name].shape != shape:
            has = f"has {name} of shape {found[name].shape!s:.80}" if name in found else f"has no {name}"
            raise UserError(
                f"{shown(path)}: {has}, {network!s:.100} needs {shape}: "
                f"give the {option} and --classes it was saved with"
            )
        if found[name].dtype.kind not in "fiu":
            raise UserError(_no_numbers(path, name))
    if found.keys() != network.shapes.keys():
        extra = ", ".join(sorted(found.keys() - network.shapes.keys()))
        raise UserError(f"{shown(path)}: has {extra:.80} too: give the {option} it was saved with")


def _no_numbers(path: Path, name: str) -> str:
    return f"{shown(path)}: {name} holds values that are no finite numbers"


def run_metadata(path: Path) -> dict[str, Any]:
    """Read what `save` has put under ``run``; an empty dict where that is something else."""
    return parsed(_format(path).metadata_text(path))


def save(path: Path, parameters: Mapping[str, np.ndarray], run: Mapping[str, Any]) -> None:
    """Write the parameters, and under ``run`` a JSON text of how they came about; whole or not at all."""
    require_format("--save", path)
    write_whole("--save", path, lambda file: _format(path).write(file, parameters, run))
