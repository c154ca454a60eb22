"""Plans in JSON files: ``{"grid": [1, 4], "layers": ["rows", "columns"]}``."""

from __future__ import annotations

import json
from pathlib import Path

from nn.data.files import read_small, shown
from nn.files import write_whole
from nn.plan import SPLITS, Plan
from pyrt.errors import UserError

_LARGEST = 1 << 16
"""Bytes of a file that may hold a plan."""


def save(path: Path, plan: Plan) -> None:
    """Whole or not at all."""
    text = json.dumps({"grid": [plan.groups, plan.shards], "layers": plan.splits})
    write_whole("--save-plan", path, lambda file: file.write(f"{text}\n".encode()))


def load(path: Path) -> Plan:
    """The plan in a file; UserError for one that holds none."""
    try:
        content = json.loads(read_small(path, _LARGEST))
        groups, shards = content["grid"]
        if not isinstance(content["layers"], list):
            raise TypeError
        splits = tuple(content["layers"])
    except OSError as error:
        raise UserError(f"--plan {shown(path)}: {error.strerror}: give data, model, auto or a file") from None
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UserError(f'--plan {shown(path)}: is not {{"grid": [G, M], "layers": [..]}}') from None
    if not all(type(size) is int and 0 < size < 2**31 for size in (groups, shards)):  # no bool
        raise UserError(f"--plan {shown(path)}: a grid has two whole numbers, 1 or more")
    for split in splits:
        if split not in SPLITS:
            raise UserError(
                f"--plan {shown(path)}: a layer is split by {', '.join(SPLITS)}, not {split!r:.80}"
            )
    if shards == 1:
        return Plan.data(groups, len(splits))
    return Plan(groups, shards, splits)
