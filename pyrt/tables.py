"""Tables for people, as wide as their terminal allows."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from tabulate import tabulate


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[Any]],
    formats: Sequence[str],
    dispensable: Sequence[str] = (),
    width: int | None = None,
) -> str:
    """Lay out a table in at most ``width`` characters a line; None: any number.

    ``formats`` are those of floats, by column. Columns named in ``dispensable`` are left out until the rest
    fits, empty ones first, then in this order; a last line names them.
    """
    columns = dict(zip(headers, zip(*rows, strict=True), strict=True))
    order = sorted(dispensable, key=lambda name: any(value is not None for value in columns[name]))
    for count in range(len(order) + 1):
        kept = [name for name in headers if name not in order[:count]]
        text = tabulate(
            {name: columns[name] for name in kept},
            headers="keys",
            floatfmt=[formats[headers.index(name)] for name in kept],
            intfmt="d",
        )
        if width is None or max(map(len, text.splitlines())) <= width:
            break
    if width is None or not count:
        return text
    note = f"(no room for {', '.join(order[:count])})"
    return f"{text}\n{textwrap.fill(note, width)}"
