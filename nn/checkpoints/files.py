"""One checkpoint in an .npz: W1, b1, .., velocities as v_W1, v_b1, .., what epochs came to under ``epochs``
(`Progress.table`), and all else under ``run``, a JSON text.

So `--init` and `--evaluate` read it too. A zip's own checksums find what is damaged, and end early what is
cut short; the text has the SHA-256 of each array beside them, which also finds one that belongs elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nn.checkpoints.metadata import Checkpoint, Metadata
from nn.files import npz
from nn.files.read import file_size
from nn.files.write import write_arrays, write_whole
from nn.problem.progress import Progress
from pyrt.errors import UserError, shown

VERSION = 2
"""Of what is in a file."""

OPTION = "--checkpoint"
_EPOCHS = "epochs"

_OF_STATE = re.compile(r"([a-z]+)_([Wb][0-9]+)")
"""Name of an optimiser's array for one parameter: the name of the state, then the parameter's."""

_TYPES: dict[str, tuple[type, ...]] = {
    "validation_precision": (float, type(None)),
    "options": (dict,),
    "environment": (dict,),
    "plan": (dict,),
    "data": (str,),
    "initial": (str,),
}
"""Of a metadata beside its progress, in JSON."""


class OtherVersion(UserError):
    """The checkpoint is not damaged, but of other code: what it was made by can read it."""


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Beside the path, then renamed; UserError where it cannot be written."""
    states = {
        f"{state}_{name}": array for state, kept in checkpoint.states.items() for name, array in kept.items()
    }
    progress = checkpoint.metadata.progress
    arrays = {**checkpoint.parameters, **states, _EPOCHS: progress.table()}
    content = {
        "version": VERSION,
        **vars(checkpoint.metadata),
        "progress": {"step": progress.step, "loss_sum": progress.loss_sum},
        "sha256": {name: _sha256(array) for name, array in arrays.items()},
    }
    members = {**arrays, "run": np.array(json.dumps(content))}
    write_whole(OPTION, path, lambda file: write_arrays(file, members))


def load(path: Path) -> Checkpoint:
    """UserError for a file that is damaged, or no checkpoint."""
    content, metadata = _metadata(path)
    arrays = npz.arrays(path, lambda name: name != "run")
    if content.get("sha256") != {name: _sha256(array) for name, array in arrays.items()}:
        raise UserError(f"{shown(path)}: its arrays are not those that were saved: it is damaged")
    del arrays[_EPOCHS]
    parameters: dict[str, np.ndarray] = {}
    states: dict[str, dict[str, np.ndarray]] = {}
    for name, array in arrays.items():
        match = _OF_STATE.fullmatch(name)
        if match is None:
            parameters[name] = array
        else:
            states.setdefault(match[1], {})[match[2]] = array
    return Checkpoint(metadata, parameters, states)


def load_metadata(path: Path) -> Metadata:
    """Read the metadata alone, which is short. Raises UserError as `load` does."""
    return _metadata(path)[1]


def _require_unpacked(path: Path) -> None:
    """UserError where arrays are larger than the file: `save` packs nothing, and gigabytes of zeros fit into
    megabytes."""
    headers = npz.headers(path, lambda name: True).values()
    if sum(math.prod(shape) * dtype.itemsize for shape, dtype in headers) > file_size(path):
        raise UserError(f"{shown(path)}: is no checkpoint: its arrays are larger than the file")


def _metadata(path: Path) -> tuple[dict[str, Any], Metadata]:
    _require_unpacked(path)
    found = npz.arrays(path, lambda name: name in ("run", _EPOCHS))
    try:
        content = json.loads(str(found["run"]))
        if content["version"] != VERSION:
            raise OtherVersion(
                f"{shown(path)}: is a checkpoint of version {content['version']!r:.20}, and this code "
                f"reads {VERSION}: go on with the code that made it, or name another folder"
            )
        return content, Metadata(Progress.parsed(content["progress"], found[_EPOCHS]), **_values(content))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        raise UserError(f"{shown(path)}: is no checkpoint") from None


def _values(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return all fields but the progress. Raises KeyError if one is missing, TypeError if one is wrong."""
    for name, types in _TYPES.items():
        if type(content[name]) not in types:
            raise TypeError(name)
    return {name: content[name] for name in _TYPES}


def _sha256(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()
