"""What a file of parameters says of how they came about: the JSON text of an object, called ``run``."""

from __future__ import annotations

import json
from typing import Any

NAME = "run"
"""What the text is called in a file."""

LONGEST = 1 << 22
"""Bytes that the text may take."""


def parsed(text: str) -> dict[str, Any]:
    """Return the object; an empty one where the text is something else."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
