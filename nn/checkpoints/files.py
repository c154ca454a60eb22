"""One checkpoint in an .npz: W1, b1, .., velocities as v_W1, v_b1, .., what epochs came to under ``epochs``
(`Progress.table`), and all else under ``run``, a JSON text.

So `--init` and `--evaluate` read it too. A zip's own checksums find what is damaged, and end early what is
cut short; the text has the SHA-256 of each array beside them, which also finds one that belongs elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nn.checkpoints.state import Checkpoint, Story
from nn.data import npz
from nn.data.files import file_size
from nn.files import write_arrays, write_whole
from nn.progress import Progress
from pyrt.errors import UserError, shown

VERSION = 2
"""Of what is in a file."""

OPTION = "--checkpoint"
_VELOCITY, _EPOCHS = "v_", "epochs"

_TYPES: dict[str, tuple[type, ...]] = {
    "validation_precision": (float, type(None)),
    "options": (dict,),
    "environment": (dict,),
    "plan": (dict,),
    "data": (str,),
    "initial": (str,),
}
"""Of a story beside its progress, in JSON."""


class OtherVersion(UserError):
    """The checkpoint is not damaged, but of other code: what it was made by can read it."""


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Beside the path, then renamed; UserError where it cannot be written."""
    velocity = {_VELOCITY + name: array for name, array in checkpoint.velocity.items()}
    progress = checkpoint.story.progress
    arrays = {**checkpoint.parameters, **velocity, _EPOCHS: progress.table()}
    content = {
        "version": VERSION,
        **vars(checkpoint.story),
        "progress": {"step": progress.step, "loss_sum": progress.loss_sum},
        "sha256": {name: _sha256(array) for name, array in arrays.items()},
    }
    members = {**arrays, "run": np.array(json.dumps(content))}
    write_whole(OPTION, path, lambda file: write_arrays(file, members))


def load(path: Path) -> Checkpoint:
    """UserError for a file that is damaged, or no checkpoint."""
    content, story = _story(path)
    arrays = npz.arrays(path, lambda name: name != "run")
    if content.get("sha256") != {name: _sha256(array) for name, array in arrays.items()}:
        raise UserError(f"{shown(path)}: its arrays are not those that were saved: it is damaged")
    del arrays[_EPOCHS]
    parameters = {name: array for name, array in arrays.items() if not name.startswith(_VELOCITY)}
    velocity = {
        name.removeprefix(_VELOCITY): array for name, array in arrays.items() if name.startswith(_VELOCITY)
    }
    return Checkpoint(story, parameters, velocity)


def load_story(path: Path) -> Story:
    """The story alone, which is short; UserError as of `load`."""
    return _story(path)[1]


def _require_unpacked(path: Path) -> None:
    """UserError where arrays are larger than the file: `save` packs nothing, and gigabytes of zeros fit into
    megabytes."""
    headers = npz.headers(path, lambda name: True).values()
    if sum(math.prod(shape) * dtype.itemsize for shape, dtype in headers) > file_size(path):
        raise UserError(f"{shown(path)}: is no checkpoint: its arrays are larger than the file")


def _story(path: Path) -> tuple[dict[str, Any], Story]:
    _require_unpacked(path)
    found = npz.arrays(path, lambda name: name in ("run", _EPOCHS))
    try:
        content = json.loads(str(found["run"]))
        if content["version"] != VERSION:
            raise OtherVersion(
                f"{shown(path)}: is a checkpoint of version {content['version']!r:.20}, and this code "
                f"reads {VERSION}: go on with the code that made it, or name another folder"
            )
        return content, Story(Progress.parsed(content["progress"], found[_EPOCHS]), **_values(content))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        raise UserError(f"{shown(path)}: is no checkpoint") from None


def _values(content: Mapping[str, Any]) -> dict[str, Any]:
    """All of a story but its progress; TypeError or KeyError for what is none."""
    for name, types in _TYPES.items():
        if type(content[name]) not in types:
            raise TypeError(name)
    return {name: content[name] for name in _TYPES}


def _sha256(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()
