"""A row for each run of `experiments.asynchronous`: speed, time to the accuracy, mean staleness."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.asynchronous_points import BATCH

if TYPE_CHECKING:
    import pandas as pd

GOAL, FALLBACK = 0.90, 0.85
"""The validation accuracy that is waited for, and where no run gets there."""

RUN = ["kind", "net", "optimiser", "lr", "way", "workers", "slow", "run"]
"""The columns that tell runs apart."""


def goal_of(rows: pd.DataFrame) -> float:
    """Return the accuracy to wait for."""
    return GOAL if (rows.accuracy >= GOAL).any() else FALLBACK


def runs_of(rows: pd.DataFrame, goal: float) -> pd.DataFrame:
    """Return a row for each run: the columns `RUN`, and those of `_run`."""
    import pandas

    found = [
        {**dict(zip(RUN, key, strict=True)), **_run(mine.sort_values("epoch"), goal)}
        for key, mine in rows.groupby(RUN, sort=False)
    ]
    return pandas.DataFrame(found)


def _run(rows: pd.DataFrame, goal: float) -> dict[str, Any]:
    """Summarise the epochs of a run; NaN for what it has not: a run that diverged has no speed.

    ``rate`` is samples a second, without the first epoch; ``seconds`` and ``updates`` are those up to the
    first epoch whose end has the accuracy.
    """
    first, last = rows.iloc[0], rows.iloc[-1]
    arrived = rows[rows.accuracy >= goal]
    there = arrived.iloc[0] if len(arrived) else None
    more = len(rows) - 1
    return {
        "steps": math.ceil(first.samples / (BATCH * first.workers)),
        "rate": more * first.samples / (last.seconds - first.seconds) if more else math.nan,
        "seconds": math.nan if there is None else there.seconds,
        "updates": math.nan if there is None else there.updates,
        "epochs": int(last.epochs),
        "best": rows.accuracy.max(),
        "stale": mean_of(counts_of(last.staleness)),
        "least_seen": last.least_seen,
        "most_seen": last.most_seen,
    }


def counts_of(text: Any) -> np.ndarray:
    """Read how many updates were stale by 0, 1, .. versions; (0,) where that was not counted.

    A column of a single count is read as numbers.
    """
    if isinstance(text, str):
        return np.array(text.split(), int)
    return np.array([] if text is None or math.isnan(text) else [int(text)], int)


def mean_of(counts: np.ndarray) -> float:
    """Return the mean staleness; NaN of none."""
    return float(counts @ np.arange(len(counts)) / counts.sum()) if counts.sum() else math.nan
