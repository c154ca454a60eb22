"""Says where repeated times differ too much to conclude anything from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

QUIET = 0.1
"""The median of (largest - least) / median of repeats up to which nothing is said."""


def noisy(least: pd.Series, middle: pd.Series, most: pd.Series) -> list[str]:
    """Say that repeats of the same work differ much, if they do: a sentence, or none."""
    spread = ((most - least) / middle).dropna()
    if not len(spread) or spread.median() <= QUIET:
        return []
    return [
        f"This machine was noisy: repeats of the same work lie {spread.median():.0%} of their median apart, "
        f"{spread.max():.0%} at most, so smaller differences between ways mean nothing here."
    ]
