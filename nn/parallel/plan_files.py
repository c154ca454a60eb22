"""Plans in JSON files: ``{"grid": [1, 4], "layers": ["rows", "columns"]}``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nn.files.read import read_small
from nn.files.write import write_whole
from nn.parallel.plan import SPACE, SPLITS, Plan
from pyrt.errors import UserError, shown

_LARGEST = 1 << 16
"""Bytes of a file that may hold a plan."""


def save(path: Path, plan: Plan) -> None:
    """Whole or not at all."""
    text = json.dumps(as_json(plan))
    write_whole("--save-plan", path, lambda file: file.write(f"{text}\n".encode()))


def as_json(plan: Plan) -> dict[str, Any]:
    """Return the plan as `parsed` reads it."""
    return {"grid": [plan.groups, plan.shards], "layers": list(plan.splits)}


def load(path: Path) -> Plan:
    """Read the plan in a file. Raises UserError if it holds none."""
    try:
        content = json.loads(read_small(path, _LARGEST))
    except OSError as error:
        raise UserError(f"--plan {shown(path)}: {error.strerror}: give data, model, auto or a file") from None
    except (ValueError, RecursionError):
        content = None
    return parsed(content, f"--plan {shown(path)}")


def parsed(content: Any, where: str) -> Plan:
    """Make a plan from JSON. Raises UserError, which begins with ``where``, if it holds none."""
    try:
        groups, shards = content["grid"]
        if not isinstance(content["layers"], list):
            raise TypeError
        splits = tuple(content["layers"])
    except (ValueError, TypeError, KeyError):
        raise UserError(f'{where}: is not {{"grid": [G, M], "layers": [..]}}') from None
    if not all(type(size) is int and 0 < size < 2**31 for size in (groups, shards)):  # no bool
        raise UserError(f"{where}: a grid has two whole numbers, 1 or more")
    for split in splits:
        if split not in (*SPLITS, SPACE):
            words = ", ".join((*SPLITS, SPACE))
            raise UserError(f"{where}: a layer is split by {words}, not {split!r:.80}")
    if shards == 1:
        return Plan.data(groups, len(splits))
    return Plan(groups, shards, splits)
