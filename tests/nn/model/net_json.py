"""Layers as a file of ``--net`` has them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from nn.model.layer import Layer
from nn.model.net_text import _KINDS


def as_json(layers: Sequence[Layer]) -> list[dict[str, Any]]:
    """Write layers as `layers_of_json` reads them."""
    names = {kind: name for name, kind in _KINDS.items()}
    return [{"kind": names[type(layer)], **dataclasses.asdict(layer)} for layer in layers]
