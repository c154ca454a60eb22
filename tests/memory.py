"""Checks how much memory Python allocates."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def peak_below(nbytes: int) -> Iterator[None]:
    """Fail where Python has so many bytes, or more, allocated at once within the block; NumPy's count too."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < nbytes, f"{peak} bytes at once"
