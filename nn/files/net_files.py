"""Networks in JSON files: ``{"layers": [{"kind": "dense", "units": 10}, ..], "loss": "softmax"}``.

nn/model/net_text.py says what layers may be. ``loss`` may be missing.
"""

from __future__ import annotations

import json
from pathlib import Path

from nn.files.read import read_small
from nn.model.net_text import layers_of_json
from nn.model.network import LOSSES, text_of
from pyrt.errors import UserError, shown

_LARGEST = 1 << 20
"""Bytes of a file that may hold a network."""


def is_file(net: str | None) -> bool:
    """Return whether ``--net`` names a file."""
    return net is not None and net.lower().endswith(".json")


def load(path: Path) -> tuple[str, str | None]:
    """Read the network in a file: its layers as text, and its loss; None where the file says none.

    Raises UserError if it holds none.
    """
    where = f"--net {shown(path)}"
    try:
        content = json.loads(read_small(path, _LARGEST))
    except OSError as error:
        raise UserError(f"{where}: {error.strerror}: give a name, layers, or a file of them") from None
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or not {"layers"} <= content.keys() <= {"layers", "loss"}:
        raise UserError(f'{where}: is not {{"layers": [{{"kind": "dense", "units": 10}}, ..]}}')
    loss = content.get("loss")
    if loss not in (None, *LOSSES):
        raise UserError(f"{where}: loss is none of {', '.join(LOSSES)}")
    layers = layers_of_json(content["layers"], where)
    if not layers:
        raise UserError(f"{where}: has no layers")
    return text_of(layers), loss
