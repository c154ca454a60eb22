"""The tests; a package, so that no other package of this name hides ``tests.mpi``."""

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

LONG = os.environ.get("PYRT_LONG", "0") != "0"
"""Whether those marked ``long`` run too, and others on more cases: ``make test-long``. A variable, so that
the ranks of a test know it as well."""


def few(some: Sequence[T], of: Sequence[T]) -> Sequence[T]:
    """Return some of the cases of a test; all of them where `LONG`."""
    assert set(map(repr, some)) <= set(map(repr, of))
    return of if LONG else some
