"""The tests; a package, so that no other package of this name hides ``tests.mpi``."""

import itertools
import os
from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")

LONG = os.environ.get("PYRT_LONG", "0") != "0"
"""Whether those marked ``long`` run too, and others on more cases: ``make test-long``. A variable, so that
the ranks of a test know it as well."""


def few(some: Sequence[T], of: Sequence[T]) -> Sequence[T]:
    """Return some of the cases of a test; all of them where `LONG`."""
    assert set(map(repr, some)) <= set(map(repr, of))
    return of if LONG else some


def spread(*axes: Sequence[Any], by: int) -> list[tuple[Any, ...]]:
    """Return one in ``by`` of the combinations of these values; all of them where `LONG`.

    Each value is in some of them. Of three axes that have ``by`` values or more, each pair of values is too.
    """
    places = itertools.product(*(range(len(axis)) for axis in axes))
    taken = [place for place in places if LONG or sum(place) % by == 0]
    for number, axis in enumerate(axes):
        assert len({place[number] for place in taken}) == len(axis), f"{axis} is not there as a whole"
    return [tuple(axis[i] for axis, i in zip(axes, place, strict=True)) for place in taken]
