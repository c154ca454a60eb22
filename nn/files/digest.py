"""Digests of arrays, by which they are known again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np


def digest(arrays: Iterable[np.ndarray]) -> str:
    """SHA-256 of arrays, their shapes and dtypes."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(f"{array.shape} {array.dtype}".encode())
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()
