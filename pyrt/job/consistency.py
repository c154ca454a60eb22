"""Whether the ranks of a job are alike. With other code, versions or options on one of them they would train
something else, or wait for what never comes; and nothing would say so.

What rank 0 alone reads, data and files, needs no comparison: the others have it from there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from pyrt.job import AgreedError, Job

_SUFFIXES = (".py", ".cu", ".cuh", ".cpp", ".h")
_DIGITS = 8
"""Of a digest, for people."""
_MOST = 4
"""Ranks that are named."""


@cache
def sources(*places: Path) -> dict[str, str]:
    """Return source files, and those of folders, e.g. ``nn/program/step.py``, each with a short digest."""
    return {
        str(file.relative_to(place.parent)): hashlib.sha256(file.read_bytes()).hexdigest()[:_DIGITS]
        for place in places
        for file in ([place] if place.is_file() else sorted(place.rglob("*")))
        if file.suffix in _SUFFIXES
    }


def require_alike(job: Job, mine: Mapping[str, str], remedy: str) -> None:
    """UserError, on all ranks, where another rank has not what rank 0 has. Collective.

    ``mine`` are texts by name. The error says which ranks differ, in what, and ends with the ``remedy``.
    """
    digest = hashlib.sha256(repr(sorted(mine.items())).encode()).digest()
    if len(set(job.comm.allgather(digest))) == 1:
        return
    first: dict[str, str] = job.comm.bcast(dict(mine))
    differing = [name for name in sorted({*first, *mine}) if first.get(name) != mine.get(name)]
    found = differing[0] if differing else "", mine.get(differing[0]) if differing else None, len(differing)
    everywhere = job.comm.allgather(found)
    ranks = [rank for rank, (_, _, count) in enumerate(everywhere) if count]
    name, value, count = everywhere[ranks[0]]
    more = f", and {count - 1} more differ" if count > 1 else ""
    raise AgreedError(
        f"{_listed(ranks)} not as rank 0: {name} is {_words(value)} on rank {ranks[0]}, "
        f"{_words(first.get(name))} on rank 0{more}: {remedy}"
    )


def _words(value: str | None) -> str:
    return "missing" if value is None else value


def _listed(ranks: list[int]) -> str:
    """``rank 3 is``, ``ranks 1, 2, 3, 4 and 12 others are``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]} is"
    others = len(ranks) - _MOST
    return f"ranks {', '.join(map(str, ranks[:_MOST]))}{f' and {others} others' if others > 0 else ''} are"
